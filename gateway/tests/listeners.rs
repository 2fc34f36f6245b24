//! Two muxgate processes: behaviour of listeners that tests with real clients do not cover.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::common::namespace::Namespace;
use crate::common::*;

const MIB: usize = 1 << 20;
/// The first message of a SOCKS5 client without a password, and the answer.
const METHODS: &[u8] = b"\x05\x01\x00";
const NO_METHOD: &[u8] = b"\x05\x00";

fn gates(forward: &str, allow: &str, head: &str) -> (Gate, Gate) {
    let carrier = free_port();
    let exit = Gate::with_file(&format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\nallow: [{allow_rule}]\n",
        allow_rule = crate::common::rule(allow)
    ));
    let list = match forward.contains("protocol: ") {
        true => "proxies",
        false => "forwards",
    };
    let entry = Gate::with_file(&format!(
        "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\n{head}\
         drain: {{acceptSeconds: 0, deadlineSeconds: 1}}\n{list}:\n- {{name: a, {forward}}}\n"
    ));
    (entry.until_ready(), exit)
}

/// An entry with a listener of `protocol` on loopback.
struct Dynamic {
    entry: Gate,
    _exit: Gate,
    port: SocketAddr,
}

fn dynamic(protocol: &str, allow: &str, head: &str) -> Dynamic {
    let port = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let forward = format!("listen: '{port}', protocol: {protocol}");
    let (entry, _exit) = gates(&forward, allow, head);
    Dynamic { entry, _exit, port }
}

/// A SOCKS5 CONNECT to `address`.
fn socks5_request(address: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(address) = address else {
        panic!("{address}");
    };
    let (ip, port) = (address.ip().octets(), address.port().to_be_bytes());
    [&b"\x05\x01\x00\x01"[..], &ip, &port].concat()
}

fn read_exactly(mut tcp: &TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    tcp.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn streams_go_from_a_unix_socket_to_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (near, far) = (at("near"), at("far"));
    let listener = UnixListener::bind(&far).unwrap();
    let forward = format!("listen: 'unix:{near}', targets: [{{unix: {far}}}]");
    let (entry, exit) = gates(&forward, &format!("unix:{far}"), "workers: 2\n");
    assert_eq!(
        std::fs::metadata(&near).unwrap().permissions().mode() & 0o777,
        0o600
    );
    for seed in 0..4 {
        let client = UnixStream::connect(&near).unwrap();
        let (server, _) = listener.accept().unwrap();
        let sending = [(&client, seed), (&server, seed + 10)].map(|(socket, seed)| {
            let mut socket = socket.try_clone().unwrap();
            std::thread::spawn(move || {
                socket.write_all(&pattern(seed, 8 * MIB)).unwrap();
                socket.shutdown(Shutdown::Write).unwrap();
            })
        });
        let read = |mut socket: &UnixStream| {
            let mut bytes = Vec::new();
            socket.read_to_end(&mut bytes).unwrap();
            bytes
        };
        let mut up = server.try_clone().unwrap();
        let up = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            up.read_to_end(&mut bytes).unwrap();
            bytes
        });
        assert_eq!(read(&client), pattern(seed + 10, 8 * MIB));
        assert_eq!(up.join().unwrap(), pattern(seed, 8 * MIB));
        sending
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
    entry.line(&["Stream closed", &format!("client=unix:{near}"), "completed"]);
    exit.line(&["Stream closed", &format!("dialled=unix:{far}"), "completed"]);
    assert_eq!(
        entry.status()["forwards"][0]["target"],
        format!("unix:{far}")
    );
    entry.signal("TERM");
    entry.wait();
    assert!(!Path::new(&near).exists(), "the socket was not removed");
}

#[test]
fn a_unix_target_has_to_be_allowed_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let far = folder.path().join("far").to_str().unwrap().to_owned();
    let listener = UnixListener::bind(&far).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let forward = format!("listen: '{port}', targets: [{{unix: {far}}}]");
    let (entry, exit) = gates(&forward, &format!("unix:{far}/other"), "");
    assert_reset(&connect(port));
    exit.line(&["MT0204", &far]);
    entry.line(&["MT0204", "Connection refused"]);
    let error = listener.accept().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn what_a_client_sends_before_its_answer_is_not_lost_and_the_answer_comes_first() {
    let (listener, waiting) = full_target();
    let target = listener.local_addr().unwrap();
    let tunnel = dynamic("SOCKS5", &target.to_string(), "");
    let mut client = connect(tunnel.port);
    let request = [METHODS, &socks5_request(target), b"early"].concat();
    client.write_all(&request).unwrap();
    assert_eq!(read_exactly(&client, 2), NO_METHOD);
    until("the exit has the early data", || {
        tunnel._exit.status()["carriers"][0]["receiveBudgetUsed"] == b"early".len()
    });
    client.set_nonblocking(true).unwrap();
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::WouldBlock,
        "answered before the target"
    );
    client.set_nonblocking(false).unwrap();
    drop(waiting);
    listener.set_nonblocking(false).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut server = loop {
        let server = accept(&listener);
        if read_all(&server) == b"early" {
            break server;
        }
    };
    server.write_all(b"payload").unwrap();
    drop(server);
    let port = target.port().to_be_bytes();
    let granted = [&b"\x05\x00\x00\x01\x7f\x00\x00\x01"[..], &port, b"payload"].concat();
    assert_eq!(read_all(&client), granted);
}

#[test]
fn bulk_behind_a_request_is_whole_both_ways() {
    let (listener, target) = target();
    for protocol in ["SOCKS5", "HTTP", "Auto"] {
        let tunnel = dynamic(protocol, &target.to_string(), "");
        let client = connect(tunnel.port);
        let request = match protocol {
            "HTTP" => format!("CONNECT {target} HTTP/1.1\r\n\r\n").into_bytes(),
            _ => [METHODS, &socks5_request(target)].concat(),
        };
        let up = [request, pattern(5, 16 * MIB)].concat();
        let sending = send_in_background(&client, up, true);
        let server = accept(&listener);
        let answering = send_in_background(&server, pattern(6, 16 * MIB), true);
        let receiving = std::thread::spawn(move || read_all(&server));
        let got = read_all(&client);
        assert!(got.ends_with(&pattern(6, 16 * MIB)), "{protocol}");
        assert!(got.len() - 16 * MIB < 64, "{protocol}");
        assert_eq!(
            receiving.join().unwrap(),
            pattern(5, 16 * MIB),
            "{protocol}"
        );
        sending.join().unwrap();
        answering.join().unwrap();
    }
}

#[test]
fn a_gateway_that_takes_no_more_streams_says_so_in_the_clients_protocol() {
    let (listener, target) = target();
    let tunnel = dynamic("Auto", &target.to_string(), "limits: {streams: 1}\n");
    let connect_request = format!("CONNECT {target} HTTP/1.1\r\n\r\n");
    let mut first = connect(tunnel.port);
    first.write_all(connect_request.as_bytes()).unwrap();
    let _server = accept(&listener);
    let granted = b"HTTP/1.1 200 Connection established\r\n\r\n";
    assert_eq!(read_exactly(&first, granted.len()), granted);
    let mut second = connect(tunnel.port);
    // The client sends more data than the gateway reads. If the gateway closed the socket at once,
    // the client would lose the reply.
    second
        .write_all(&[connect_request.as_bytes(), &[0; 100_000]].concat())
        .unwrap();
    let answer = String::from_utf8(read_all(&second)).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"),
        "{answer}"
    );
    let mut third = connect(tunnel.port);
    third
        .write_all(&[METHODS, &socks5_request(target)].concat())
        .unwrap();
    assert_eq!(
        read_all(&third),
        b"\x05\x00\x05\x01\x00\x01\x00\x00\x00\x00\x00\x00"
    );
}

#[test]
fn clients_that_say_nothing_are_bounded_and_leave_their_place() {
    let (listener, target) = target();
    let tunnel = dynamic("SOCKS5", &target.to_string(), "");
    let silent: Vec<_> = (0..1024).map(|_| connect(tunnel.port)).collect();
    let one_more = connect(tunnel.port);
    assert_reset(&one_more);
    tunnel.entry.line(&["MT0243", "Connection refused"]);
    drop(silent);
    until("the listener accepts a client again", || {
        let mut client = connect(tunnel.port);
        let request = [METHODS, &socks5_request(target)].concat();
        client.write_all(&request).is_ok() && client.read_exact(&mut [0; 12]).is_ok()
    });
    accept(&listener);
}

#[test]
fn a_sender_in_front_says_who_the_client_is() {
    let (listener, target) = target();
    let port = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let forward = format!(
        "listen: '{port}', targets: [{{host: 127.0.0.1, port: {}}}], proxyProtocol: {{accept: Required}}",
        target.port()
    );
    let (entry, _exit) = gates(&forward, &target.to_string(), "");
    let mut client = connect(port);
    let header =
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x07\x0a\x00\x00\x01\xc3\x50\x00\x50";
    client
        .write_all(&[&header[..], b"request"].concat())
        .unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&accept(&listener)), b"request");
    assert_eq!(read_all(&client), b"");
    entry.line(&["Stream closed", "client=192.0.2.7:50000"]);
    let mut client = connect(port);
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert_reset(&client);
    entry.line(&["MT0240", "PROXY"]);
}

#[test]
fn a_target_is_told_who_its_client_is_before_anything_else() {
    let (listener, target) = target();
    let told = |proxy: &str, sends: &[u8]| {
        let port = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let forward = format!(
            "listen: '{port}', targets: [{{host: 127.0.0.1, port: {}}}], proxyProtocol: {proxy}",
            target.port()
        );
        let (_entry, _exit) = gates(&forward, &target.to_string(), "");
        let mut client = connect(port);
        let address = client.local_addr().unwrap();
        client.write_all(sends).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let got = read_all(&accept(&listener));
        assert_eq!(read_all(&client), b"");
        (got, address, port)
    };
    let head = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c";
    let (got, client, port) = told("{send: V2}", b"request");
    let loopback = Ipv4Addr::LOCALHOST.octets();
    let ports = [client.port().to_be_bytes(), port.port().to_be_bytes()].concat();
    assert_eq!(
        got,
        [&head[..], &loopback, &loopback, &ports, b"request"].concat()
    );
    // The gateway forwards the address from the sender's header.
    let header = [
        &head[..],
        b"\xc0\x00\x02\x07\x0a\x00\x00\x01\xc3\x50\x00\x50",
    ]
    .concat();
    let sends = [&header[..], b"request"].concat();
    assert_eq!(told("{accept: Required, send: V2}", &sends).0, sends);
    assert_eq!(told("{accept: Required}", &sends).0, b"request");
}

#[test]
fn a_transparent_port_leads_nobody_to_itself() {
    let tunnel = dynamic("Transparent", "127.0.0.0/8", "");
    assert_reset(&connect(tunnel.port));
    tunnel.entry.line(&["MT0240", "Connection refused"]);
}

#[test]
fn users_that_cannot_be_read_keep_a_gateway_from_starting() {
    let carrier = free_port();
    let gate = Gate::without_admin(&[
        "entry",
        "--security",
        "none",
        "--connect",
        &format!("127.0.0.1:{carrier}"),
        "--socks5",
        &free_port().to_string(),
        "--proxy-auth",
        "alice",
        "--proxy-password-file",
        "/no/such/file",
    ]);
    let (status, log) = gate.wait_for_log();
    assert!(!status.success());
    assert!(
        log.contains("MT0101") && log.contains("cannot read /no/such/file"),
        "{log}"
    );
}

#[test]
fn a_port_whose_new_users_cannot_be_read_serves_nobody() {
    let (port, carrier) = (free_port(), free_port());
    let file = |auth: &str| {
        format!(
            "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\nproxies:\n\
             - {{name: a, listen: '127.0.0.1:{port}', protocol: SOCKS5{auth}}}\n"
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "alice:secret\n").unwrap();
    let asks = file(&format!(", usersFile: {}", users.display()));
    let gate = Gate::with_file(&asks);
    let is_served = || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
    until("the port listens", is_served);
    // The same users must still authenticate, even if their file becomes invalid.
    std::fs::write(&users, "nobody").unwrap();
    gate.rewrite(&format!("{asks}timeouts: {{idleSeconds: 9}}\n"));
    gate.line(&["users of", "is not name:password"]);
    assert!(is_served());
    gate.rewrite(&file(", usersFile: /no/such/file"));
    until("the port is closed", || !is_served());
}

/// Addresses of the test and of its namespace, on the link between them.
const OUTSIDE: &str = "10.249.61.1";
const INSIDE: &str = "10.249.61.2";
const OUTSIDE_IPV6: &str = "fd00:249:61::1";

#[test]
fn a_redirected_connection_goes_where_it_was_to_go() {
    let namespace = Namespace::new(
        &[&format!("{OUTSIDE}/30"), &format!("{OUTSIDE_IPV6}/64")],
        &[&format!("{INSIDE}/30"), "fd00:249:61::2/64"],
    );
    let (carrier, port) = (free_port(), free_port().to_string());
    let listen = format!("{OUTSIDE}:{carrier}");
    let allow = ["--allow", OUTSIDE, "--allow", OUTSIDE_IPV6];
    let exit_args = ["exit", "--security", "none", "--listen", &listen];
    let _exit = Gate::with_flags(&[&exit_args[..], &allow].concat());
    let ipv6_port = format!("[::1]:{port}");
    let args = ["entry", "--security", "none", "--connect", &listen];
    let ports = ["--transparent", &port, "--transparent", &ipv6_port];
    let args = [&args[..], &ports].concat();
    let entry = Gate::within(&namespace, INSIDE, &args).until_ready();
    for (outside, iptables) in [(OUTSIDE, "iptables"), (OUTSIDE_IPV6, "ip6tables")] {
        let listener = TcpListener::bind((outside, 0)).unwrap();
        let target = listener.local_addr().unwrap();
        let to = target.port().to_string();
        let rule = [
            iptables, "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-d", outside,
        ];
        let redirect = ["--dport", &to, "-j", "REDIRECT", "--to-ports", &port];
        namespace.run(&[&rule[..], &redirect].concat());
        let answering = std::thread::spawn(move || {
            let mut server = accept(&listener);
            server.write_all(b"here\n").unwrap();
            server.peer_addr().unwrap().ip().to_string()
        });
        let said = namespace.run(&["nc.openbsd", "-d", outside, &to]);
        assert_eq!(said, "here\n");
        assert_eq!(
            answering.join().unwrap(),
            outside,
            "it did not come through the exit"
        );
        let url = format!("tcp://{outside}:{to}");
        entry.line(&["Stream closed", &format!("target=\"{url}\"")]);
    }
}

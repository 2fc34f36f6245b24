//! HTTP/2 against nghttp2's programs and Go's net/http.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::common::interop::*;
use crate::common::tools::{Running, run, stdout};
use crate::common::*;

/// Starts `program` with `args`, and waits until it listens on `address`. `package` is the
/// instruction to install the program.
fn start(program: &str, args: &[String], address: SocketAddr, package: &str) -> Running {
    let null = || Stdio::from(File::options().write(true).open("/dev/null").unwrap());
    let process = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(null())
        .stderr(null())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}: {package}"));
    let process = Running(process);
    // A connection that only tests whether the program listens would open a stream, so the test
    // reads the kernel's table of sockets instead.
    let listens = format!(":{:04X} 00000000:0000 0A ", address.port());
    until(&format!("{program} listens"), || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        sockets.contains(&listens)
    });
    process
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Go's net/http with the files of its end and the name of the other end.
fn go_http2(
    arguments: &[&str],
    listen: SocketAddr,
    tls: Option<(&crate::common::authority::Files, &str)>,
) -> Running {
    let mut args = Vec::new();
    if let Some((files, name)) = tls {
        let files = [
            ("-certificate", &files.certificate),
            ("-key", &files.key),
            ("-ca", &files.ca),
        ];
        for (flag, file) in files {
            args.extend([flag.to_owned(), file.display().to_string()]);
        }
        args.extend(["-name".to_owned(), name.to_owned()]);
    }
    args.extend(arguments.iter().map(|&argument| argument.to_owned()));
    let package =
        "run e2e/peers, which builds it with Go, and put ~/.cache/muxtunnel/bin on the PATH";
    start("go-http2", &args, listen, package)
}

/// A stream from a Go client to our exit.
fn from_go(tls: Option<&Tls>, listener: &TcpListener) -> Ends {
    let target = listener.local_addr().unwrap();
    let (gate, carrier) = exit("HTTP2", tls, target);
    let listen = loopback();
    let forward = format!("{listen}={target}");
    let tls = tls.map(|tls| (&tls.entry, EXIT));
    let go = go_http2(&["entry", &carrier.to_string(), &forward], listen, tls);
    let client = connect(listen);
    Ends {
        server: accept(listener),
        client,
        gate,
        peer: Box::new(go),
    }
}

/// A stream from our entry to a Go server.
fn to_go(tls: Option<&Tls>, listener: &TcpListener) -> Ends {
    let target = listener.local_addr().unwrap();
    let carrier = loopback();
    let own = tls.map(|tls| (&tls.exit, ENTRY));
    let go = go_http2(&["exit", &carrier.to_string()], carrier, own);
    let (gate, forward) = entry("HTTP2", tls, carrier, target);
    let client = connect(forward);
    Ends {
        server: accept(listener),
        client,
        gate,
        peer: Box::new(go),
    }
}

#[test]
fn a_go_client_reaches_targets_through_an_exit_by_h2c_and_by_tls() {
    assert_interoperates(None, &|listener| from_go(None, listener));
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    assert_interoperates(None, &|listener| from_go(Some(&tls), listener));
}

#[test]
fn an_entry_reaches_targets_through_a_go_server_by_h2c_and_by_tls() {
    assert_interoperates(None, &|listener| to_go(None, listener));
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    assert_interoperates(None, &|listener| to_go(Some(&tls), listener));
}

/// When the target ends first, Go's server accepts no more data from the client. The server reports
/// this by a reset with NO_ERROR.
#[test]
fn a_target_that_ends_first_behind_a_go_server_is_an_end_for_the_client_and_no_cut() {
    let (listener, _) = target();
    let mut ends = to_go(None, &listener);
    ends.client.write_all(b"request").unwrap();
    ends.server.read_exact(&mut [0; 7]).unwrap();
    let down = pattern(2, 4 * MIB);
    let sends = send_in_background(&ends.server, down.clone(), true);
    assert!(read_all(&ends.client) == down);
    sends.join().unwrap();
    // The reset arrives within this time.
    std::thread::sleep(std::time::Duration::from_millis(300));
    ends.client.shutdown(std::net::Shutdown::Write).unwrap();
    until("the stream is completed", || {
        ends.gate.status()["streams"]["closed"]["completed"] == 1
    });
}

#[test]
fn refusals_arrive_at_a_go_client_and_from_a_go_server() {
    let (_listener, allowed) = target();
    let (_other, denied) = target();
    let (gate, carrier) = exit("HTTP2", None, allowed);
    let listen = loopback();
    let forward = format!("{listen}={denied}");
    let _go = go_http2(&["entry", &carrier.to_string(), &forward], listen, None);
    assert_reset(&connect(listen));
    assert!(gate.status()["streams"]["refused"]["MT0204"].as_u64() >= Some(1));

    let carrier = loopback();
    let _go = go_http2(&["exit", &carrier.to_string()], carrier, None);
    let (gate, forward) = entry("HTTP2", None, carrier, loopback());
    assert_reset(&connect(forward));
    gate.line(&["WARN", "Connection refused", "502"]);
}

/// An nghttpx that forwards requests, including CONNECT, from `listen` to the proxy at `backend`.
fn nghttpx(listen: SocketAddr, backend: SocketAddr, protocol: &str) -> Running {
    let at = |address: SocketAddr| format!("{},{}", address.ip(), address.port());
    let args = [
        "--http2-proxy".to_owned(),
        format!("--frontend={};no-tls", at(listen)),
        format!("--backend={};;proto={protocol}", at(backend)),
        "--workers=1".to_owned(),
        "--conf=/dev/null".to_owned(),
    ];
    start("nghttpx", &args, listen, "apt-get install nghttp2-proxy")
}

/// Requests a tunnel to `target` from the HTTP proxy at `proxy`. Returns the status.
fn connect_by(proxy: SocketAddr, target: SocketAddr) -> (TcpStream, String) {
    let mut client = connect(proxy);
    write!(
        client,
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
    )
    .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().to_owned();
    (client, status)
}

/// Transfers bulk data in one direction, then bulk data and an end in the other direction. nghttpx
/// does not forward the end of a client's half.
fn assert_carries(client: &TcpStream, mut server: &TcpStream) {
    let (up, down) = (pattern(1, 16 * MIB), pattern(2, 16 * MIB));
    let sends = send_in_background(client, up.clone(), false);
    let mut came = vec![0; up.len()];
    server.read_exact(&mut came).unwrap();
    assert!(came == up);
    sends.join().unwrap();
    let sends = send_in_background(server, down.clone(), true);
    assert!(read_all(client) == down);
    sends.join().unwrap();
}

#[test]
fn clients_of_an_nghttpx_reach_targets_through_an_exit_and_are_told_of_refusals() {
    let (listener, allowed) = target();
    let (_other, denied) = target();
    let (gate, carrier) = exit("HTTP2", None, allowed);
    let listen = loopback();
    let _nghttpx = nghttpx(listen, carrier, "h2");
    let (client, status) = connect_by(listen, allowed);
    assert_eq!(status, "200");
    let server = accept(&listener);
    assert_carries(&client, &server);
    drop((client, server));
    assert_eq!(connect_by(listen, denied).1, "403");
    assert_eq!(gate.status()["streams"]["refused"]["MT0204"], 1);
    // The target sees a reset or an end of file when a client disconnects.
    let (client, _) = connect_by(listen, allowed);
    let server = accept(&listener);
    reset(client);
    assert_reset_or_end(&server);
}

/// A stream from our entry to our exit, with an nghttpx between them.
fn by_nghttpx(listener: &TcpListener) -> Ends {
    let target = listener.local_addr().unwrap();
    let (exit, carrier) = exit("HTTP2", None, target);
    let listen = loopback();
    let nghttpx = nghttpx(listen, carrier, "h2");
    let (gate, forward) = entry("HTTP2", None, listen, target);
    let client = connect(forward);
    Ends {
        server: accept(listener),
        client,
        gate,
        peer: Box::new((nghttpx, exit)),
    }
}

#[test]
fn an_nghttpx_between_an_entry_and_an_exit_carries_bytes_ends_resets_and_refusals() {
    let (listener, address) = target();
    let ends = by_nghttpx(&listener);
    assert_carries(&ends.client, &ends.server);
    for resets in [Side::Entry, Side::Exit] {
        let (other, _stays) = reset_one(by_nghttpx(&listener), resets);
        // nghttpx forwards a reset as a reset or as an end of file.
        assert_reset_or_end(&other);
    }
    let (_other, denied) = target();
    let (_exit, carrier) = exit("HTTP2", None, address);
    let listen = loopback();
    let _nghttpx = nghttpx(listen, carrier, "h2");
    let (gate, forward) = entry("HTTP2", None, listen, denied);
    assert_reset(&connect(forward));
    gate.line(&["WARN", "Connection refused", "MT0204"]);
}

#[test]
fn requests_of_nghttp_and_h2load_that_are_no_connects_are_answered() {
    let (_listener, target) = target();
    let (gate, carrier) = exit("HTTP2", None, target);
    let url = format!("http://{carrier}/");
    let answers = stdout(&run(
        "nghttp",
        "nghttp2-client",
        &["--verbose", "--no-verify-peer", &url],
    ));
    assert!(answers.contains(":status: 405"), "{answers}");
    assert!(
        answers.contains("SETTINGS_ENABLE_CONNECT_PROTOCOL")
            || answers.contains("[UNKNOWN(0x08):1]"),
        "{answers}"
    );
    let args = [
        "--requests=1000",
        "--clients=10",
        "--max-concurrent-streams=10",
        &url,
    ];
    let load = stdout(&run("h2load", "nghttp2-client", &args));
    assert!(
        load.contains("1000 done") && load.contains("0 errored"),
        "{load}"
    );
    assert!(load.contains("1000 4xx"), "{load}");
    assert_eq!(gate.status()["streams"]["open"], 0);
}

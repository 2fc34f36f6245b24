//! Gateways with a low limit of open files (RLIMIT_NOFILE): the part of the limit that streams
//! cannot use keeps the admin port, the carriers and the open streams alive.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;

use crate::common::path::Path;
use crate::common::*;

/// The limit of open files of the gateway that the clients crowd.
const LOW: u64 = 256;
/// The limit of the other gateway.
const HIGH: u64 = 4096;
/// More clients than a gateway with the limit [`LOW`] has streams.
const CLIENTS: usize = 400;
/// The code of an open that was refused because of the limit.
const REFUSED: &str = "MT0260";
/// A forward of raw TCP connections.
const RAW: &str = "forwards: [LISTEN, targets: [TARGET]}]";

struct Crowd {
    entry: Gate,
    exit: Gate,
    path: Path,
    /// The port of the forward.
    forward: SocketAddr,
    /// Returns what it receives, on every connection.
    target: SocketAddr,
}

/// An entry and an exit with these limits of open files, with a path between them.
fn crowd(protocol: &str, [entry_limit, exit_limit]: [u64; 2], forward: &str) -> Crowd {
    let (target, carrier, port) = (echo(), free_port(), free_port());
    let both =
        format!("protocol: {protocol}\nsecurity: {{mode: None}}\nadmin: ADMIN\nworkers: 2\n");
    let exit = format!(
        "role: Exit\n{both}listen: 127.0.0.1:{carrier}\nallow: [{target_rule}]\nallowListen: [{port}]\n",
        target_rule = crate::common::rule(target)
    );
    let exit = Gate::with_open_files(exit_limit, &exit).until_ready();
    let path = Path::to(loopback(carrier));
    let to = format!("{{host: 127.0.0.1, port: {}}}", target.port());
    let entry = format!(
        "role: Entry\n{both}connect:\n- name: far\n  address: {}\n{}\n",
        path.address,
        forward
            .replace("TARGET", &to)
            .replace("LISTEN", &format!("{{name: a, listen: '127.0.0.1:{port}'"))
    );
    Crowd {
        entry: Gate::with_open_files(entry_limit, &entry).until_ready(),
        exit,
        path,
        forward: loopback(port),
        target,
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn echo() -> SocketAddr {
    let (listener, address) = target();
    std::thread::spawn(move || {
        for tcp in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut &tcp, &mut &tcp);
            });
        }
    });
    address
}

/// Whether the client has a stream that works.
fn echoes(mut client: &TcpStream) -> bool {
    let mut answer = [0; 4];
    let asked = client.write_all(b"ping");
    match asked.and_then(|()| client.read_exact(&mut answer)) {
        Ok(()) => answer == *b"ping",
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no answer in time"),
        Err(_) => false,
    }
}

/// Opens more clients than the gateway `crowded` has files for. Returns those with a stream.
fn fill(forward: SocketAddr, crowded: &Gate) -> Vec<TcpStream> {
    let clients: Vec<_> = (0..CLIENTS).map(|_| connect(forward)).collect();
    let streams: Vec<_> = clients.into_iter().filter(echoes).collect();
    assert!(streams.len() > LOW as usize / 4, "{}", streams.len());
    assert!(streams.len() < LOW as usize, "{}", streams.len());
    assert_answers(crowded);
    streams
}

/// Asserts that the gateway's admin port answers, and reports the limit and the refused opens.
fn assert_answers(gate: &Gate) {
    assert_eq!(gate.get("/healthz").0, 200);
    let status = gate.status();
    let refused = &status["streams"]["refused"][REFUSED];
    assert!(refused.as_u64().is_some_and(|refused| refused > 0));
    let files = &status["process"]["openFiles"];
    let value = |name: &str| files[name].as_u64().unwrap();
    assert_eq!(value("limit"), LOW);
    assert!(value("forStreams") < LOW && value("open") < LOW, "{files}");
    let (_, page) = gate.get("/metrics");
    let limit = format!("process_max_fds {LOW}.0\n");
    assert!(page.contains(&limit), "{page}");
}

/// A crowd, then the loss of all carriers, then the end of the crowd.
fn a_crowd_leaves_the_rest_alive(crowd: &Crowd, crowded: &Gate) {
    let streams = fill(crowd.forward, crowded);
    let carriers = crowd.path.count.load(Relaxed);
    crowd.path.cut_all();
    until("the entry dials new carriers", || {
        crowd.path.count.load(Relaxed) > carriers
    });
    assert!(streams.iter().all(echoes), "a stream has ended");
    assert_answers(crowded);
    drop(streams);
    until("a new stream opens", || echoes(&connect(crowd.forward)));
}

#[test]
fn an_entry_without_files_for_streams_answers_and_dials_carriers() {
    let crowd = crowd("Native", [LOW, HIGH], RAW);
    a_crowd_leaves_the_rest_alive(&crowd, &crowd.entry);
}

#[test]
fn an_exit_without_files_for_streams_answers_and_takes_carriers() {
    let crowd = crowd("Native", [HIGH, LOW], RAW);
    a_crowd_leaves_the_rest_alive(&crowd, &crowd.exit);
    let line = crowd.exit.line(&["Open refused", REFUSED]);
    assert!(line.contains("RLIMIT_NOFILE"), "{line}");
}

#[test]
fn the_streams_of_a_library_are_bounded_too() {
    for limits in [[LOW, HIGH], [HIGH, LOW]] {
        let crowd = crowd("HTTP2", limits, RAW);
        let crowded = match limits[0] {
            LOW => &crowd.entry,
            _ => &crowd.exit,
        };
        let streams = fill(crowd.forward, crowded);
        assert!(streams.iter().all(echoes));
        drop(streams);
        until("a new stream opens", || echoes(&connect(crowd.forward)));
    }
}

#[test]
fn a_port_that_the_exit_listens_on_for_an_entry_is_bounded_too() {
    let reverse = "reverseForwards: [LISTEN, targets: [TARGET]}]";
    for limits in [[LOW, HIGH], [HIGH, LOW]] {
        let crowd = crowd("Native", limits, reverse);
        until("the exit listens", || {
            TcpStream::connect(crowd.forward).is_ok()
        });
        let crowded = match limits[0] {
            LOW => &crowd.entry,
            _ => &crowd.exit,
        };
        a_crowd_leaves_the_rest_alive(&crowd, crowded);
    }
}

#[test]
fn clients_of_a_proxy_are_told_in_their_protocol() {
    let crowd = crowd("Native", [LOW, HIGH], "proxies: [LISTEN, protocol: Auto}]");
    let target = crowd.target;
    let ask = |request: &[u8], length: usize| {
        let mut client = connect(crowd.forward);
        client.write_all(request).unwrap();
        let mut answer = vec![0; length];
        client.read_exact(&mut answer).unwrap();
        (client, answer)
    };
    let connect = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    let mut streams = Vec::new();
    loop {
        let (client, answer) = ask(connect.as_bytes(), 12);
        if answer == b"HTTP/1.1 503" {
            break;
        }
        assert_eq!(answer, b"HTTP/1.1 200");
        streams.push(client);
        assert!(streams.len() < LOW as usize);
    }
    let get = format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n");
    assert_eq!(ask(get.as_bytes(), 12).1, b"HTTP/1.1 503");
    // The method without authentication, then CONNECT to an IPv4 address: a general failure.
    let port = target.port().to_be_bytes();
    let socks5 = [5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, port[0], port[1]];
    assert_eq!(ask(&socks5, 4).1, [5, 0, 5, 1]);
    let socks4 = [4, 1, port[0], port[1], 127, 0, 0, 1, 0];
    assert_eq!(ask(&socks4, 2).1, [0, 91]);
    assert_answers(&crowd.entry);
    drop(streams);
    until("a new stream opens", || {
        ask(connect.as_bytes(), 12).1 == b"HTTP/1.1 200"
    });
}

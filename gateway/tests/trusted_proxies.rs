//! Load balancers in front of carrier ports: trusted PROXY headers, untrusted headers, and
//! connections without a header. The load balancer has the address 127.0.0.2 in these tests.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::common::authority::Authority;
use crate::common::ends::*;
use crate::common::herd::Herd;
use crate::common::meeting::Place;
use crate::common::*;

const BALANCER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const CLIENT: &str = "203.0.113.7:5000";
const TRUSTED: &str = "{mode: None}\ntrustedProxies: [127.0.0.2]";
/// Maximum number of waiting connections of a gateway.
const PERMITS_MAX: usize = 256;

/// A connection from the load balancer.
fn dial(to: SocketAddr) -> TcpStream {
    let (domain, kind) = (socket2::Domain::for_address(to), socket2::Type::STREAM);
    let socket = socket2::Socket::new(domain, kind, None).unwrap();
    socket.bind(&SocketAddr::new(BALANCER, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let tcp = TcpStream::from(socket);
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    tcp.set_nodelay(true).unwrap();
    tcp
}

/// A connection that has sent `bytes`. The gateway may refuse it before all bytes are sent.
fn dial_with(to: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut tcp = dial(to);
    let _ = tcp.write_all(bytes);
    tcp
}

/// Starts a load balancer that sends `header` on each connection and then forwards the connection
/// to `to`. With `in_pieces`, the load balancer sends the header byte by byte. Returns the load
/// balancer's address.
fn balancer(to: SocketAddr, header: Vec<u8>, in_pieces: bool) -> SocketAddr {
    let (listener, address) = target();
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let header = header.clone();
            std::thread::spawn(move || {
                let mut server = dial(to);
                for piece in header.chunks(if in_pieces { 1 } else { header.len() }) {
                    let _ = server.write_all(piece);
                    if in_pieces {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                pass_on(&client, &server);
            });
        }
    });
    address
}

/// Copies data until both directions have ended.
fn pass_on(client: &TcpStream, server: &TcpStream) {
    server.set_read_timeout(None).unwrap();
    let copy = |mut from: &TcpStream, mut to: &TcpStream| {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| copy(client, server));
        copy(server, client);
    });
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A header of version 2, with addresses of the server's family.
fn binary(client: &str, server: &str) -> Vec<u8> {
    let (client, server) = (at(client), at(server));
    let (family, length) = if server.is_ipv4() {
        (0x11, 12)
    } else {
        (0x21, 36)
    };
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    bytes.extend([family, 0, length]);
    for ip in [client.ip(), server.ip()] {
        match ip {
            IpAddr::V4(ip) => bytes.extend(ip.octets()),
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
    }
    bytes.extend(client.port().to_be_bytes());
    bytes.extend(server.port().to_be_bytes());
    bytes
}

fn binary_of_client() -> Vec<u8> {
    binary(CLIENT, "192.0.2.9:64000")
}

fn line_of_client() -> Vec<u8> {
    b"PROXY TCP4 203.0.113.7 192.0.2.9 5000 64000\r\n".to_vec()
}

const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// Sends four bytes in both directions.
fn assert_echoes(listener: &TcpListener, forward: SocketAddr) {
    let mut client = connect(forward);
    client.write_all(b"ping").unwrap();
    let mut server = accept(listener);
    let mut read = [0; 4];
    server.read_exact(&mut read).unwrap();
    server.write_all(b"pong").unwrap();
    client.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"pong");
}

fn peers(exit: &Gate) -> Vec<String> {
    let status = exit.status();
    let carriers = status["carriers"].as_array().unwrap().iter();
    carriers
        .map(|carrier| carrier["peer"].as_str().unwrap().to_owned())
        .collect()
}

/// A tunnel between `ends` through a load balancer that sends `header`. Asserts that the exit
/// reports `client` as the peer of its carriers.
fn assert_is_of(client: &str, ends: &Ends, header: Vec<u8>, in_pieces: bool) {
    let (listener, target) = target();
    let port = free_port();
    let trusted = format!("{}\ntrustedProxies: [127.0.0.2]", ends.exit);
    // A dual-stack socket reports IPv6 addresses for all peers.
    let everywhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let exit = exit(&trusted, everywhere, target);
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let balancer = balancer(address, header, in_pieces);
    let (entry, forward) = entry(&ends.entry, "Native", balancer, target);
    let _entry = entry.until_ready();
    assert_echoes(&listener, forward);
    let peers = peers(&exit);
    assert!(!peers.is_empty());
    for peer in peers {
        assert!(peer.starts_with(client), "{peer} is not {client}");
    }
    exit.line(&["Stream closed", &format!("carrier=\"{client}")]);
    assert_eq!(exit.log().matches("WARN").count(), 0);
}

fn plain() -> Ends {
    Ends {
        exit: "{mode: None}".to_owned(),
        entry: "{mode: None}".to_owned(),
    }
}

#[test]
fn a_carrier_behind_a_load_balancer_is_shown_as_its_clients() {
    let v6 = "[2001:db8::7]:5000";
    let server = "[2001:db8::9]:64000";
    for (header, in_pieces, client) in [
        (binary_of_client(), false, CLIENT),
        (binary_of_client(), true, CLIENT),
        (line_of_client(), false, CLIENT),
        (line_of_client(), true, CLIENT),
        (binary(v6, server), false, v6),
        (binary("[::ffff:203.0.113.7]:5000", server), false, CLIENT),
        (b"PROXY UNKNOWN\r\n".to_vec(), true, "127.0.0.2:"),
        (LOCAL.to_vec(), false, "127.0.0.2:"),
    ] {
        assert_is_of(client, &plain(), header, in_pieces);
    }
}

#[test]
fn a_header_is_below_all_that_secures_a_carrier() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, tls) = tls(dir.path(), &Authority::new());
    assert_is_of(CLIENT, &tls, binary_of_client(), true);
    let keys = by_keys(dir.path());
    let keys = Ends {
        exit: keys.exit + "\ntransport: WebSocket\nwebSocket: {path: /carrier}",
        entry: keys.entry + "\ntransport: WebSocket\nwebSocket: {path: /carrier}",
    };
    assert_is_of(CLIENT, &keys, line_of_client(), false);
}

#[test]
fn from_any_other_address_no_header_is_read() {
    let (listener, target) = target();
    let carrier = carrier_address();
    let exit = exit(TRUSTED, carrier, target);
    for header in [binary_of_client(), line_of_client()] {
        let mut stranger = connect(carrier);
        stranger.write_all(&header).unwrap();
        let own = stranger.local_addr().unwrap().to_string();
        let _ = end_of(&stranger);
        exit.line(&["peer=\"127.0.0.1:", &own]);
    }
    // Connections from other addresses need no header.
    let (entry, forward) = entry("{mode: None}", "Native", carrier, target);
    let _entry = entry.until_ready();
    assert_echoes(&listener, forward);
    assert!(peers(&exit)[0].starts_with("127.0.0.1:"));
    assert!(!exit.log().contains("203.0.113.7"), "{}", exit.log());
}

#[test]
fn a_load_balancer_that_sends_no_header_is_refused_with_what_to_do() {
    let (_listener, target) = target();
    let carrier = carrier_address();
    let exit = exit(TRUSTED, carrier, target);
    let beyond = [b"PROXY UNKNOWN ", &[b'x'; 200][..]].concat();
    let long = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x02\x09";
    let refused: [(&[u8], &str); 4] = [
        (
            b"\x16\x03\x01\x40\0\x01\0\x3f\xfc\x03\x03",
            "does not begin with a PROXY header: enable PROXY headers on the load balancer",
        ),
        (
            b"PROXY TCP4 lb.example.com 192.0.2.9 1 2\r\n",
            "has a PROXY header of version 1 that cannot be read",
        ),
        (
            &beyond,
            "has a PROXY header of version 1 of more than 107 bytes",
        ),
        (long, "has a PROXY header of more than 536 bytes"),
    ];
    for (bytes, reason) in refused {
        let tcp = dial_with(carrier, bytes);
        let _ = end_of(&tcp);
        let reason = format!("a connection from trustedProxies {reason}");
        exit.line(&["MT0230", "peer=\"127.0.0.2:", &reason]);
    }
    // The timeout for the header equals the timeout of the handshake.
    let header = binary_of_client();
    let silent: Vec<_> = [&b""[..], b"PROXY TCP4 203", &header[..20]]
        .map(|begun| dial_with(carrier, begun))
        .into();
    for tcp in &silent {
        assert!(matches!(end_of(tcp), Ok(0) | Err(_)));
    }
    let late = "a connection from trustedProxies sent no PROXY header within 5 s";
    until("the exit has logged all silent connections", || {
        exit.log().matches(late).count() == silent.len()
    });
    let ended = dial_with(carrier, &header[..20]);
    ended.shutdown(Shutdown::Write).unwrap();
    exit.line(&["ended within its PROXY header"]);
    let refused = metric(&exit, "muxgate_opens_refused_total{code=\"MT0230\"}");
    assert_eq!(refused, 8);
}

#[test]
fn a_load_balancer_may_look_whether_the_port_answers() {
    let carrier = carrier_address();
    let listen = carrier.to_string();
    let exit = Gate::with_environment(
        &[
            "exit",
            "--security",
            "none",
            "--listen",
            &listen,
            "--trusted-proxy",
            "127.0.0.0/8",
            "--trusted-proxy",
            "2001:db8::/32",
        ],
        &[("RUST_LOG", "debug")],
    )
    .until_ready();
    let looks = [&b""[..], LOCAL, b"PROXY UNKNOWN\r\n"];
    for said in looks {
        drop(dial_with(carrier, said));
    }
    // This health check resets the connection instead of closing it.
    reset(dial(carrier));
    until("the exit has logged all health checks", || {
        let seen = exit.log();
        seen.matches("A load balancer only checked that the port accepts connections")
            .count()
            == looks.len() + 1
    });
    assert!(!exit.log().contains("WARN"), "{}", exit.log());
    assert_eq!(exit.status()["streams"]["refused"], serde_json::json!({}));
}

fn has_ended(mut tcp: &TcpStream) -> bool {
    tcp.set_nonblocking(true).unwrap();
    match tcp.read(&mut [0; 64]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// The test opens twice as many connections as there are permits, and waits until half of them were
/// evicted or dropped early. The share of each kind is random. The log is limited to a few lines
/// per second, so it may omit either message.
fn until_made_room(exit: &Gate) {
    until(
        "half of the connections were evicted or dropped early",
        || {
            let evicted = metric(exit, "muxgate_handshakes_evicted_total ");
            let dropped = metric(exit, "muxgate_handshakes_dropped_total ");
            evicted + dropped >= PERMITS_MAX as u64
        },
    );
}

#[test]
fn a_client_behind_a_load_balancer_keeps_no_other_client_of_it_out() {
    let (_listener, target) = target();
    let carrier = carrier_address();
    let exit = exit(TRUSTED, carrier, target);
    let patient = dial_with(carrier, &line_of_client());
    let other = binary("203.0.113.9:5000", "192.0.2.9:64000");
    let flood: Vec<_> = (0..2 * PERMITS_MAX)
        .map(|_| dial_with(carrier, &other))
        .collect();
    until_made_room(&exit);
    exit.line(&["MT0230", "peer=\"203.0.113.9:5000"]);
    until("one client holds fewer connections than permits", || {
        let left = flood.iter().filter(|tcp| !has_ended(tcp));
        left.count() < PERMITS_MAX
    });
    assert!(!has_ended(&patient), "{}", exit.log());
    assert!(!exit.log().contains("203.0.113.7"), "{}", exit.log());
}

#[test]
fn connections_that_have_no_header_yet_are_bounded() {
    let (_listener, target) = target();
    let carrier = carrier_address();
    let exit = exit(TRUSTED, carrier, target);
    let mut herd = Herd::new(BALANCER, carrier, b"PROXY TCP4 ", 2 * PERMITS_MAX);
    until_made_room(&exit);
    exit.line(&["MT0230", "peer=\"127.0.0.2:"]);
    until("at most as many connections as permits remain", || {
        herd.left() <= PERMITS_MAX
    });
}

#[test]
fn the_networks_are_taken_over_while_the_exit_runs() {
    let (listener, target) = target();
    let carrier = carrier_address();
    let file = |more: &str| {
        format!(
            "role: Exit\nsecurity: {{mode: None}}\nlisten: '{carrier}'\nadmin: ADMIN\nallow: [{target_rule}]\n{more}",
            target_rule = crate::common::rule(target)
        )
    };
    let exit = Gate::with_file(&file("")).until_ready();
    let mut balancers = dial_with(carrier, &binary_of_client());
    let _ = balancers.read(&mut [0; 64]);
    exit.line(&["Carrier ended", "peer=\"127.0.0.2:"]);
    exit.rewrite(&file("trustedProxies: [127.0.0.2]\n"));
    exit.line(&["Configuration reloaded"]);
    let balancer = balancer(carrier, binary_of_client(), false);
    let (entry, forward) = entry("{mode: None}", "Native", balancer, target);
    let _entry = entry.until_ready();
    assert_echoes(&listener, forward);
    assert_eq!(peers(&exit)[0], CLIENT);
}

#[test]
fn a_rendezvous_knows_the_clients_of_its_load_balancer_too() {
    let place = Place::new();
    let address = crate::common::meeting::loopback(place.port);
    let rendezvous = place.rendezvous_with(&["--trusted-proxy", "127.0.0.2"]);
    let nowhere = crate::common::meeting::loopback(1);
    let leaf =
        |at: SocketAddr| Gate::with_file(&place.exit_file_at("exit", nowhere, at)).until_ready();
    let direct = leaf(address);
    rendezvous.line(&["Leaf registered", "peer=\"127.0.0.1:"]);
    drop(direct);
    let _behind = leaf(balancer(address, line_of_client(), true));
    rendezvous.line(&["Leaf registered", &format!("peer=\"{CLIENT}\"")]);
    drop(dial(address));
    let refused = dial_with(address, b"MUXMEETS0123456789abcdef");
    let _ = end_of(&refused);
    let reason = "a connection from trustedProxies does not begin with a PROXY header";
    rendezvous.line(&["MT0230", "peer=\"127.0.0.2:", reason]);
    assert_eq!(rendezvous.log().matches("WARN").count(), 1);
}

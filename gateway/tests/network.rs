//! IP packets between two hosts: TCP, UDP and ICMP of both versions, dropped packets, and gateways
//! without capabilities.
//!
//! Each host is a network namespace with a TUN interface. Carriers of the native protocol are Unix
//! sockets, so the hosts are connected only by the interface. Carriers of QUIC use a separate link
//! with an MTU of 1,500.

mod interfaces;
mod queues;
mod translation;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::common::namespace::Namespace;
use crate::common::*;
use muxtunnel_testkit::port::free_network;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

const ENTRY: &str = "10.72.0.1";
const EXIT: &str = "10.72.0.2";
const ENTRY6: &str = "fd72::1";
const EXIT6: &str = "fd72::2";
/// The networks of both sides, as flags.
const NETWORKS: [&str; 8] = [
    "--entry-cidr",
    ENTRY,
    "--entry-cidr",
    ENTRY6,
    "--exit-cidr",
    EXIT,
    "--exit-cidr",
    EXIT6,
];
/// The protocols that carry packets.
const PROTOCOLS: [&str; 2] = ["Native", "QUIC"];
/// Longest packet, in bytes, in a QUIC datagram on a path with an MTU of 1,500 bytes.
const PATH_BYTES: usize = 1414;
const MIB: usize = 1 << 20;
/// The user who owns the interfaces, as in the images.
const OWNER: &str = "65532";

/// A host with an interface that no gateway has opened.
struct Host {
    namespace: Namespace,
    /// Address of the gateway's admin port.
    admin: &'static str,
    /// Addresses of the interface.
    networks: [String; 2],
}

impl Host {
    /// `queues`: the number of queues that the interface is created for.
    fn new(addresses: [&str; 2], queues: &str) -> Self {
        // Concurrent tests share the outer namespace, so each link has its own network.
        let network = free_network();
        let admin = format!("{network}.2").leak();
        let outside = format!("{network}.1/24");
        let namespace = Namespace::new(&[&outside], &[&format!("{admin}/24")]);
        let [v4, v6] = addresses;
        let host = Self {
            namespace,
            admin,
            networks: [format!("{v4}/24"), format!("{v6}/64")],
        };
        host.make_interface("/dev/net/tun", &["--queues", queues]);
        host
    }

    /// Creates the interface, or changes the settings that differ.
    fn make_interface(&self, node: &str, flags: &[&str]) {
        let [v4, v6] = &self.networks;
        let args = [
            env!("CARGO_BIN_EXE_muxgate"),
            "tun",
            "create",
            "--device-node",
            node,
            "--owner",
            OWNER,
            "--address",
            v4,
            "--address",
            v6,
        ];
        self.namespace.run(&[&args[..], flags].concat());
    }

    /// A socket at `address` of this host.
    fn udp(&self, address: &str) -> UdpSocket {
        let socket = self
            .namespace
            .enter(|| UdpSocket::bind((address, 0)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }
}

struct Hosts {
    entry: Host,
    exit: Host,
    folder: tempfile::TempDir,
    protocol: &'static str,
}

impl Hosts {
    fn new() -> Self {
        Self::with("Native")
    }

    fn with(protocol: &'static str) -> Self {
        Self::with_queues(protocol, ["1", "1"])
    }

    /// `queues`: the number of queues at the entry, and at the exit.
    fn with_queues(protocol: &'static str, queues: [&str; 2]) -> Self {
        let hosts = Self {
            entry: Host::new([ENTRY, ENTRY6], queues[0]),
            exit: Host::new([EXIT, EXIT6], queues[1]),
            folder: tempfile::tempdir().unwrap(),
            protocol,
        };
        if protocol == "QUIC" {
            let addresses = ["10.233.0.1/24", "10.233.0.2/24"];
            let (entry, exit) = (&hosts.entry.namespace, &hosts.exit.namespace);
            entry.join(exit, "path0", addresses);
        }
        hosts
    }

    fn carrier(&self) -> String {
        match self.protocol {
            "QUIC" => "10.233.0.2:64000".to_owned(),
            _ => format!("unix:{}/carrier", self.folder.path().display()),
        }
    }

    fn exit(&self, flags: &[&str]) -> Gate {
        self.gate(&self.exit, ["exit", "--listen"], flags)
    }

    fn entry(&self, flags: &[&str]) -> Gate {
        self.gate(&self.entry, ["entry", "--connect"], flags)
    }

    fn gate(&self, host: &Host, [role, to]: [&str; 2], flags: &[&str]) -> Gate {
        let carrier = self.carrier();
        let security = secured::flags(self.protocol, role);
        let protocol = self.protocol.to_lowercase();
        let mut args = vec![role, "--protocol", &protocol, to, &carrier];
        args.extend(security.iter().map(String::as_str));
        args.extend(flags);
        Gate::within(&host.namespace, host.admin, &args).until_ready()
    }
}

fn drops(gate: &Gate, reason: &str) -> u64 {
    gate.status()["packets"]["drops"][reason]
        .as_u64()
        .unwrap_or(0)
}

/// Sends a datagram to `to` and the same bytes back. Returns whether both datagrams arrived.
fn exchange(from: &UdpSocket, to: &UdpSocket, bytes: &[u8]) -> bool {
    let (here, there) = (from.local_addr().unwrap(), to.local_addr().unwrap());
    from.send_to(bytes, there).unwrap();
    if !arrives(to, bytes, here) {
        return false;
    }
    to.send_to(bytes, here).unwrap();
    arrives(from, bytes, there)
}

/// Waits for a datagram with these bytes and this sender. Other datagrams are late ones, which
/// [`exchange_at_last`] has sent again.
fn arrives(at: &UdpSocket, bytes: &[u8], sender: SocketAddr) -> bool {
    let mut buffer = vec![0; 70_000];
    while let Ok((length, from)) = at.recv_from(&mut buffer) {
        if (&buffer[..length], from) == (bytes, sender) {
            return true;
        }
    }
    false
}

/// Works as [`exchange`], and sends the datagrams again until both arrive.
fn exchange_at_last(from: &UdpSocket, to: &UdpSocket, bytes: &[u8]) {
    let patience = |time| {
        for socket in [from, to] {
            socket.set_read_timeout(Some(time)).unwrap();
        }
    };
    patience(Duration::from_millis(300));
    until("both datagrams arrive", || exchange(from, to, bytes));
    patience(PATIENCE);
}

/// Both ends of a connection to `address` of `server`. The client's end is first.
fn connected(client: &Namespace, server: &Namespace, address: &str) -> [TcpStream; 2] {
    let listener = server.enter(|| TcpListener::bind((address, 0)).unwrap());
    let to = listener.local_addr().unwrap();
    let near = client.enter(|| TcpStream::connect_timeout(&to, PATIENCE));
    [near.unwrap(), listener.accept().unwrap().0]
}

/// Transfers bulk data in both directions at once, and compares it. Returns the client's address as
/// the server sees it.
fn bulk(client: &Namespace, server: &Namespace, address: &str) -> IpAddr {
    let [near, far] = connected(client, server, address);
    let seen = far.peer_addr().unwrap();
    let (there, back) = (pattern(1, 24 * MIB), pattern(2, 24 * MIB));
    let send = |mut tcp: TcpStream, bytes: Vec<u8>| {
        thread::spawn(move || {
            tcp.write_all(&bytes).unwrap();
            tcp.shutdown(std::net::Shutdown::Write).unwrap();
        })
    };
    let sends = [
        send(near.try_clone().unwrap(), there.clone()),
        send(far.try_clone().unwrap(), back.clone()),
    ];
    let receive = |mut tcp: TcpStream| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            tcp.set_read_timeout(Some(PATIENCE)).unwrap();
            tcp.read_to_end(&mut bytes).unwrap();
            bytes
        })
    };
    let (at_far, at_near) = (receive(far), receive(near));
    assert!(at_far.join().unwrap() == there && at_near.join().unwrap() == back);
    sends.into_iter().for_each(|send| send.join().unwrap());
    seen.ip()
}

/// Sends an echo request from `from`, and expects the reply.
fn ping(from: &Host, to: &str) {
    let to: IpAddr = to.parse().unwrap();
    // A raw ICMPv6 socket receives messages without their IP header, and the kernel writes the
    // checksum of sent messages.
    let (domain, protocol, header, [ask, answer]) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 20, [8, 0]),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 0, [128, 129]),
    };
    let socket = from
        .namespace
        .enter(|| Socket::new(domain, Type::RAW, Some(protocol)).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = [ask, 0, 0xf7, 0xfd, 0, 1, 0, 1];
    socket
        .send_to(&request, &SockAddr::from(SocketAddr::new(to, 0)))
        .unwrap();
    let mut bytes = [0; 64];
    // The socket also receives neighbour discovery.
    let length = loop {
        let length = (&socket).read(&mut bytes).unwrap();
        if [ask, answer].contains(&bytes[header]) {
            break length;
        }
    };
    assert_eq!(
        (bytes[header], &bytes[header + 4..length]),
        (answer, &request[4..])
    );
}

#[test]
fn tcp_udp_and_icmp_go_both_ways_in_packets_of_any_length() {
    any_length_goes_both_ways("Native");
}

#[test]
fn tcp_udp_and_icmp_go_both_ways_in_quic_datagrams() {
    any_length_goes_both_ways("QUIC");
}

fn any_length_goes_both_ways(protocol: &'static str) {
    let hosts = Hosts::with(protocol);
    let (exit, entry) = (hosts.exit(&NETWORKS), hosts.entry(&NETWORKS));
    for (here, there) in [(ENTRY, EXIT), (ENTRY6, EXIT6)] {
        let [near, far] = [hosts.entry.udp(here), hosts.exit.udp(there)];
        for length in [0, 1, 1400, 1452, 9000, 60_000] {
            let bytes = pattern(3, length);
            for (from, to) in [(&near, &far), (&far, &near)] {
                // QUIC carries packets of at most 1,414 bytes. Once QUIC has measured the path, a
                // longer packet causes an ICMP error, after which the kernel fragments the next
                // datagram.
                if protocol == "QUIC" && length >= 1400 {
                    exchange_at_last(from, to, &bytes);
                }
                let of = from.local_addr().unwrap();
                assert!(exchange(from, to, &bytes), "{length} bytes of {of}");
            }
        }
        bulk(&hosts.entry.namespace, &hosts.exit.namespace, there);
        bulk(&hosts.exit.namespace, &hosts.entry.namespace, here);
    }
    for (here, there) in [(ENTRY, EXIT), (ENTRY6, EXIT6)] {
        ping(&hosts.entry, there);
        ping(&hosts.exit, here);
    }
    for gate in [&entry, &exit] {
        let packets = &gate.status()["packets"];
        assert_eq!(packets["sessions"], 1, "{packets}");
        assert_eq!(packets["drops"]["malformed"].as_u64(), None, "{packets}");
        // 96 MiB were transferred in each direction, some of it as super-packets. Without them, no
        // packet is longer than the MTU.
        let (sent, bytes) = (packets["sent"].as_u64(), packets["bytesSent"].as_u64());
        assert!(bytes.unwrap() > 96 * MIB as u64, "{packets}");
        assert!(bytes.unwrap() / sent.unwrap() > 1500, "{packets}");
        let (_, page) = gate.get("/metrics");
        assert!(
            page.contains("muxgate_packets_total{direction=\"sent\"}"),
            "{page}"
        );
    }
}

#[test]
fn without_offloads_each_packet_is_one_of_the_mtu() {
    for protocol in PROTOCOLS {
        let hosts = Hosts::with(protocol);
        let flags = [&NETWORKS[..], &["--no-offloads"]].concat();
        let (_exit, entry) = (hosts.exit(&flags), hosts.entry(&flags));
        bulk(&hosts.entry.namespace, &hosts.exit.namespace, EXIT);
        let packets = &entry.status()["packets"];
        let (sent, bytes) = (packets["sent"].as_u64(), packets["bytesSent"].as_u64());
        assert!(bytes.unwrap() / sent.unwrap() <= 1510, "{packets}");
    }
}

#[test]
fn packets_of_other_networks_are_dropped_on_both_sides_and_counted() {
    for protocol in PROTOCOLS {
        let hosts = Hosts::with(protocol);
        let exit = hosts.exit(&NETWORKS);
        // For the entry's side, the entry is configured with a larger network than the exit.
        let entry = hosts.entry(&["--entry-cidr", "10.72.0.0/25", "--exit-cidr", EXIT]);
        for address in ["10.72.0.9", "10.72.0.200"] {
            let line = format!("ip addr add {address}/32 dev mux0");
            hosts
                .entry
                .namespace
                .run(&line.split(' ').collect::<Vec<_>>());
        }
        let far = hosts.exit.udp(EXIT);
        let to = far.local_addr().unwrap();
        hosts.entry.udp("10.72.0.200").send_to(b"x", to).unwrap();
        until("the entry drops the packet", || {
            drops(&entry, "source_not_local") == 1
        });
        hosts.entry.udp("10.72.0.9").send_to(b"x", to).unwrap();
        until("the exit drops the packet", || {
            drops(&exit, "source_not_remote") == 1
        });
        hosts
            .entry
            .udp(ENTRY)
            .send_to(b"x", "10.72.0.77:9")
            .unwrap();
        until("the entry drops the packet", || {
            drops(&entry, "destination_not_remote") == 1
        });
        // The exit still forwards a packet that a rule allows.
        let near = hosts.entry.udp(ENTRY);
        assert!(exchange(&near, &far, b"own"));
    }
}

#[test]
fn a_rule_forbids_a_port_and_the_sender_is_told() {
    for protocol in PROTOCOLS {
        let hosts = Hosts::with(protocol);
        let rule = format!("{EXIT}:9");
        let flags = [&NETWORKS[..], &["--deny-packets", &rule]].concat();
        let exit = hosts.exit(&flags);
        let _entry = hosts.entry(&NETWORKS);
        let near = hosts.entry.udp(ENTRY);
        near.connect((EXIT, 9)).unwrap();
        near.send(b"x").unwrap();
        let told = near.recv(&mut [0; 9]).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::HostUnreachable);
        assert_eq!(drops(&exit, "policy"), 1);
        let [near, far] = [hosts.entry.udp(ENTRY), hosts.exit.udp(EXIT)];
        assert!(exchange(&near, &far, b"another port"));
    }
}

#[test]
fn a_reply_to_a_flow_that_the_exits_side_began_passes_without_a_rule() {
    for protocol in PROTOCOLS {
        let hosts = Hosts::with(protocol);
        let rule = format!("{EXIT}:9");
        let flags = [&NETWORKS[..], &["--allow-packets", &rule]].concat();
        let exit = hosts.exit(&flags);
        let _entry = hosts.entry(&NETWORKS);
        let [near, far] = [hosts.entry.udp(ENTRY), hosts.exit.udp(EXIT)];
        near.send_to(b"request", far.local_addr().unwrap()).unwrap();
        until("the exit drops the request", || drops(&exit, "policy") == 1);
        assert!(exchange(&far, &near, b"reply"));
        let [mut client, mut server] =
            connected(&hosts.exit.namespace, &hosts.entry.namespace, ENTRY);
        server.write_all(b"reply").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        ping(&hosts.exit, ENTRY);
        // The reply of one flow permits no other flow of the same hosts.
        let other = hosts.exit.udp(EXIT);
        let dropped = drops(&exit, "policy");
        near.send_to(b"request", other.local_addr().unwrap())
            .unwrap();
        until("the exit drops the request", || {
            drops(&exit, "policy") == dropped + 1
        });
    }
}

#[test]
fn a_host_of_the_exits_side_reaches_no_listener_of_the_entrys_gateway() {
    for protocol in PROTOCOLS {
        let hosts = Hosts::with(protocol);
        let _exit = hosts.exit(&NETWORKS);
        let flags = [&NETWORKS[..], &["--socks5", "[::]:1080"]].concat();
        let entry = hosts.entry(&flags);
        for address in [ENTRY, ENTRY6] {
            // Another server of the entry's host remains reachable.
            connected(&hosts.exit.namespace, &hosts.entry.namespace, address);
            let to = SocketAddr::new(address.parse().unwrap(), 1080);
            let dropped = drops(&entry, "policy");
            let refused = hosts
                .exit
                .namespace
                .enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(20)));
            assert!(refused.is_err(), "{to}");
            assert!(drops(&entry, "policy") > dropped);
        }
    }
}

#[test]
fn a_packet_that_no_datagram_holds_is_dropped_and_its_sender_told_how_long_one_may_be() {
    let hosts = Hosts::with("QUIC");
    let (_exit, entry) = (hosts.exit(&NETWORKS), hosts.entry(&NETWORKS));
    for (here, there, headers) in [(ENTRY, EXIT, 40), (ENTRY6, EXIT6, 60)] {
        // The MSS in the SYN already limits the TCP segments.
        let [near, _far] = connected(&hosts.entry.namespace, &hosts.exit.namespace, there);
        let segment = SockRef::from(&near).tcp_mss().unwrap() as usize;
        assert!(segment <= PATH_BYTES - headers, "{segment}");
        let near = hosts.entry.udp(here);
        let dropped = drops(&entry, "too_big");
        // The entry sends no ICMP error until QUIC has measured the path.
        until("the kernel knows the path's MTU", || {
            near.send_to(&pattern(3, 1452), (there, 9)).unwrap();
            let route = hosts.entry.namespace.run(&["ip", "route", "get", there]);
            route.contains(&format!("mtu {PATH_BYTES}"))
        });
        assert!(drops(&entry, "too_big") > dropped);
    }
}

#[test]
fn a_peer_without_a_network_is_named_and_its_streams_pass() {
    for protocol in PROTOCOLS {
        let hosts = Hosts::with(protocol);
        let flags = ["--allow", "127.0.0.1:7000"];
        let exit = hosts.exit(&[&flags[..], &NETWORKS].concat());
        let _entry = hosts.entry(&["--forward", "1080:127.0.0.1:7000"]);
        exit.line(&["MT0234", "carries no IP packets"]);
        let listen = || TcpListener::bind("127.0.0.1:7000").unwrap();
        let target = hosts.exit.namespace.enter(listen);
        let connect = || TcpStream::connect("127.0.0.1:1080").unwrap();
        let mut client = hosts.entry.namespace.enter(connect);
        client.write_all(b"a stream").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&accept(&target)), b"a stream");
    }
}

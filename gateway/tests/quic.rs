//! QUIC carriers: an entry that changes its address, unsolicited datagrams, and clients that do not
//! authenticate.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use crate::common::namespace::Namespace;
use crate::common::*;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

const MIB: usize = 1 << 20;
const HERE: &str = "10.207.0.1";
const BEFORE: &str = "10.207.0.2";
const AFTER: &str = "10.207.0.7";
/// The network of the entry's clients.
const CLIENTS: &str = "10.208.0.1";
const ENTRY: &str = "10.208.0.2";

fn network(address: &str) -> String {
    format!("{address}/24")
}

/// An entry in a network namespace of its own, and an exit outside this namespace. Returns the
/// namespace, both gateways, and the two ends of each stream.
fn entry_elsewhere(
    streams: usize,
) -> (
    Namespace,
    [Gate; 2],
    Vec<(std::net::TcpStream, std::net::TcpStream)>,
) {
    let namespace = Namespace::new(
        &[&network(HERE), &network(CLIENTS)],
        &[&network(BEFORE), &network(ENTRY)],
    );
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let target = listener.local_addr().unwrap();
    let (carrier, forward) = (free_port(), free_port());
    let mut args = vec![
        "exit".to_owned(),
        "--protocol".to_owned(),
        "quic".to_owned(),
    ];
    args.extend(secured::flags("QUIC", "exit"));
    args.extend([
        "--listen".to_owned(),
        format!("{HERE}:{carrier}"),
        "--allow".to_owned(),
        target.to_string(),
        // With several workers, the kernel by default passes packets from a changed address to the
        // socket of another worker.
        "--workers".to_owned(),
        "4".to_owned(),
    ]);
    let exit = Gate::with_flags(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let mut args = vec![
        "entry".to_owned(),
        "--protocol".to_owned(),
        "quic".to_owned(),
    ];
    args.extend(secured::flags("QUIC", "entry"));
    args.extend([
        "--connect".to_owned(),
        format!("{HERE}:{carrier}"),
        "--forward".to_owned(),
        format!("{ENTRY}:{forward}:{target}"),
    ]);
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let entry = Gate::within(&namespace, ENTRY, &args).until_ready();
    let forward: SocketAddr = at(ENTRY, forward).parse().unwrap();
    let streams = (0..streams)
        .map(|_| (connect(forward), accept(&listener)))
        .collect();
    (namespace, [entry, exit], streams)
}

#[test]
fn streams_go_on_where_the_address_of_the_entry_changes_under_load() {
    let (namespace, [entry, exit], streams) = entry_elsewhere(8);
    let before = exit.status()["carriers"].as_array().unwrap().len();
    assert_eq!(before, 1);
    let (client, server) = &streams[0];
    let bytes = pattern(1, 192 * MIB);
    let sender = send_in_background(client, bytes.clone(), true);
    let receiver = {
        let server = server.try_clone().unwrap();
        std::thread::spawn(move || read_all(&server))
    };
    until("the exit has received 8 MiB", || {
        exit.status()["streams"]["bytesReceived"].as_u64().unwrap() > 8 * MIB as u64
    });
    for (what, address) in [("delete", BEFORE), ("add", AFTER)] {
        namespace.run(&["ip", "address", what, &network(address), "dev", "eth0"]);
    }
    assert!(receiver.join().unwrap() == bytes);
    sender.join().unwrap();
    for (seed, (client, server)) in (0..).zip(&streams[1..]) {
        let bytes = pattern(seed, 100_000);
        for (from, to) in [(client, server), (server, client)] {
            let sender = send_in_background(from, bytes.clone(), true);
            assert!(read_all(to) == bytes);
            sender.join().unwrap();
        }
    }
    for gate in [&entry, &exit] {
        until("the streams have ended in order", || {
            gate.status()["streams"]["closed"]["completed"].as_u64() >= Some(7)
        });
    }
}

/// A flood of invalid datagrams does not block an entry, and the exit keeps a bounded amount of
/// state.
#[test]
fn datagrams_that_nobody_asked_for_change_nothing() {
    let (listener, target) = target();
    let carrier = free_port();
    let exit = Gate::exit("QUIC", carrier, &[&target.to_string()]);
    let before = exit.status()["process"]["maxRssBytes"].as_u64().unwrap();
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    flood.connect(("127.0.0.1", carrier)).unwrap();
    let noise = pattern(7, 64 << 10);
    for number in 0..20_000_usize {
        let mut datagram = noise[number % 4096..][..1200 + number % 100].to_vec();
        match number % 4 {
            // The datagrams look like an Initial of version 1, an Initial of an unknown version,
            // and a packet of a connection.
            0 => datagram[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]),
            1 => datagram[..6].copy_from_slice(&[0xc3, 0xba, 0xba, 0xba, 0xba, 8]),
            2 => datagram[0] = 0x40,
            _ => datagram.truncate(number % 40),
        }
        // The socket may report that a buffer is full.
        let _ = flood.send(&datagram);
    }
    let forward = free_port();
    let _entry = Gate::entry("QUIC", carrier, &[(forward, target)]).until_ready();
    let mut client = connect(([127, 0, 0, 1], forward).into());
    client.write_all(b"hello").unwrap();
    drop(client);
    assert_eq!(read_all(&accept(&listener)), b"hello");
    let grown = exit.status()["process"]["maxRssBytes"].as_u64().unwrap() - before;
    assert!(grown < 64 * MIB as u64, "{grown} bytes");
}

/// A restarted exit answers packets of its previous process with a stateless reset, so the entry
/// does not wait for the idle timeout.
#[test]
fn a_restarted_exit_resets_the_connections_of_its_previous_process() {
    let (listener, target) = target();
    let (carrier, forward) = (free_port(), free_port());
    let allowed = target.to_string();
    let exit = Gate::exit("QUIC", carrier, &[&allowed]);
    let entry = Gate::entry("QUIC", carrier, &[(forward, target)]).until_ready();
    let forward = SocketAddr::from(([127, 0, 0, 1], forward));
    let mut client = connect(forward);
    let _server = accept(&listener);
    exit.signal("KILL");
    drop(exit);
    let _exit = Gate::exit("QUIC", carrier, &[&allowed]);
    // The entry may learn of the restart before it sends these bytes.
    match client.write_all(b"to the previous process") {
        Ok(()) => assert_reset(&client),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    entry.line(&["reset by peer"]);
    let _entry = entry.until_ready();
    let mut client = connect(forward);
    client.write_all(b"to this process").unwrap();
    drop(client);
    assert_eq!(read_all(&accept(&listener)), b"to this process");
}

/// The TLS configuration of a client that presents no certificate.
fn without_certificate() -> Arc<QuicClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    let ca = std::fs::read(secured::ca()).unwrap();
    roots
        .add(CertificateDer::from_pem_slice(&ca).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut crypto = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    crypto.alpn_protocols = vec![b"muxtunnel-quic/1".to_vec()];
    Arc::new(QuicClientConfig::try_from(crypto).unwrap())
}

/// The first datagrams of clients that send no further data.
fn first_words(count: usize) -> Vec<Vec<u8>> {
    let crypto = without_certificate();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let nobody = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = nobody.local_addr().unwrap();
        let mut first = BTreeMap::new();
        let mut clients = Vec::new();
        while first.len() < count {
            let config = quinn::ClientConfig::new(Arc::clone(&crypto) as Arc<_>);
            clients.push(
                endpoint
                    .connect_with(config, to, "exit.example.com")
                    .unwrap(),
            );
            let mut datagram = vec![0; 2048];
            let length = nobody.recv(&mut datagram).await.unwrap();
            datagram.truncate(length);
            // RFC 9000, section 17.2: the connection id that the client chose for the other side.
            let id = datagram[6..6 + usize::from(datagram[5])].to_vec();
            first.entry(id).or_insert(datagram);
        }
        first.into_values().collect()
    })
}

/// A client with a forged address does not occupy a permit. Above 32 concurrent handshakes, the
/// exit keeps no state for a client that has not answered (RFC 9000, section 8.1.2).
#[test]
fn past_a_number_of_handshakes_clients_have_to_show_where_they_are() {
    let carrier = free_port();
    let exit = Gate::exit("QUIC", carrier, &["127.0.0.1:9"]);
    let clients = first_words(96).into_iter().map(|datagram| {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.send_to(&datagram, ("127.0.0.1", carrier)).unwrap();
        let mut answer = [0; 2048];
        client.recv(&mut answer).unwrap();
        // Section 17.2.5: a Retry packet.
        answer[0] & 0xf0 == 0xf0
    });
    let retried: Vec<bool> = clients.collect();
    assert!(!retried[0], "the first client got a Retry");
    assert!(retried[64..].iter().all(|retried| *retried), "{retried:?}");
    drop(exit);
}

/// 1,500 clients without a certificate begin handshakes. The exit still serves a valid entry.
#[test]
fn clients_that_prove_nothing_keep_nobody_out_and_cost_little() {
    let (listener, target) = target();
    let carrier = free_port();
    let exit = Gate::exit("QUIC", carrier, &[&target.to_string()]);
    let before = exit.status()["process"]["maxRssBytes"].as_u64().unwrap();
    let crypto = without_certificate();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _entry = runtime.block_on(async {
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], carrier));
        let mut connecting = tokio::task::JoinSet::new();
        for _ in 0..1500 {
            let config = quinn::ClientConfig::new(Arc::clone(&crypto) as Arc<_>);
            let client = endpoint
                .connect_with(config, to, "exit.example.com")
                .unwrap();
            connecting.spawn(async move {
                if let Ok(connection) = client.await {
                    // The handshake completes at the client, and the exit then refuses the client.
                    connection.closed().await;
                }
            });
        }
        let entry = tokio::task::spawn_blocking(move || {
            let forward = free_port();
            let entry = Gate::entry("QUIC", carrier, &[(forward, target)]).until_ready();
            let mut client = connect(([127, 0, 0, 1], forward).into());
            client.write_all(b"hello").unwrap();
            drop(client);
            assert_eq!(read_all(&accept(&listener)), b"hello");
            entry
        });
        let entry = entry.await.unwrap();
        let over = async { while connecting.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(30), over).await;
        entry
    });
    let status = exit.status();
    let grown = status["process"]["maxRssBytes"].as_u64().unwrap() - before;
    assert!(grown < 64 * MIB as u64, "{grown} bytes");
    assert_eq!(status["carriers"].as_array().unwrap().len(), 1);
}

#[test]
fn an_entry_that_is_no_peer_any_more_is_cut_off() {
    let (listener, target) = target();
    let carrier = free_port();
    let yaml = format!(
        "role: Exit\nprotocol: QUIC\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\nallow: [{target_rule}]\n",
        target_rule = crate::common::rule(target)
    );
    let exit = Gate::with_file(&yaml);
    let forward = free_port();
    let _entry = Gate::entry("QUIC", carrier, &[(forward, target)]).until_ready();
    let client = connect(([127, 0, 0, 1], forward).into());
    let mut server = accept(&listener);
    (&client).write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    let filled = secured::filled_in(&yaml);
    exit.rewrite(&filled.replace("entry.example.com", "other.example.com"));
    assert_reset(&client);
    assert_reset(&server);
    until("the exit counts or logs the revoked entry", || {
        exit.status()["streams"]["refused"]["MT0112"].as_u64() > Some(0)
            || exit.log().contains("no longer in security.peers")
    });
}

/// The address of a node, whose kernel translates the node port's datagrams to an exit.
const NODE: &str = "10.206.9.9";
const NODE_PORT: u16 = 30443;
const NODE_HERE: &str = "10.206.0.1";
const NODE_ENTRY: &str = "10.206.0.2";

/// Translates new flows to the node port as kube-proxy does. The kernel keeps the translation of a
/// known flow (conntrack) as long as the flow has datagrams.
fn translate(namespace: &Namespace, exit: u16) {
    let rule = format!(
        "iptables -t nat -A OUTPUT -p udp -d {NODE} --dport {NODE_PORT} -j DNAT --to-destination {NODE_HERE}:{exit}"
    );
    for rule in ["iptables -t nat -F OUTPUT", &rule] {
        namespace.run(&rule.split(' ').collect::<Vec<_>>());
    }
}

#[test]
fn opens_pass_again_through_a_node_port_whose_exit_was_killed() {
    let network = |address: &str| format!("{address}/24");
    let namespace = Namespace::new(&[&network(NODE_HERE)], &[&network(NODE_ENTRY)]);
    namespace.run(&["ip", "route", "add", NODE, "via", NODE_HERE]);
    let listener = TcpListener::bind((NODE_HERE, 0)).unwrap();
    let target = listener.local_addr().unwrap();
    let exit = || {
        let carrier = free_port();
        let listen = format!("{NODE_HERE}:{carrier}");
        let mut args = vec![
            "exit".to_owned(),
            "--protocol".to_owned(),
            "quic".to_owned(),
        ];
        args.extend(secured::flags("QUIC", "exit"));
        args.extend([
            "--listen".to_owned(),
            listen,
            "--allow".to_owned(),
            target.to_string(),
        ]);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        (Gate::with_flags(&args).until_ready(), carrier)
    };
    let [(killed, old), (_other, new)] = [exit(), exit()];
    translate(&namespace, old);
    let forward = free_port();
    let mut args = vec![
        "entry".to_owned(),
        "--protocol".to_owned(),
        "quic".to_owned(),
    ];
    args.extend(secured::flags("QUIC", "entry"));
    args.extend([
        "--connect".to_owned(),
        format!("{NODE}:{NODE_PORT}"),
        "--forward".to_owned(),
        format!("{NODE_ENTRY}:{forward}:{target}"),
    ]);
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let _entry = Gate::within(&namespace, NODE_ENTRY, &args).until_ready();
    let forward: SocketAddr = at(NODE_ENTRY, forward).parse().unwrap();
    drop((connect(forward), accept(&listener)));
    // A dead pod's address answers nothing, not even with an ICMP error.
    let silent = format!("iptables -A OUTPUT -p udp -d {NODE_HERE} --dport {old} -j DROP");
    namespace.run(&silent.split(' ').collect::<Vec<_>>());
    killed.signal("KILL");
    translate(&namespace, new);
    // The old flow still has its translation. New opens reach the other exit over a new flow.
    let begin = std::time::Instant::now();
    let opened = std::thread::spawn(move || accept(&listener));
    let mut clients = Vec::new();
    until("an open passes", || {
        clients.push(connect(forward));
        std::thread::sleep(Duration::from_millis(500));
        opened.is_finished()
    });
    opened.join().unwrap();
    println!(
        "an open passes {:.1} s after the kill",
        begin.elapsed().as_secs_f64()
    );
}

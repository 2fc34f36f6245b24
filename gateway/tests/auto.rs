//! Entries with transport Auto. Such an entry selects a transport that the path permits. Under
//! load, the entry compares KCP with another transport, and selects the faster of them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::authority::Authority;
use crate::common::ends::{Ends, MIB, assert_exact, carrier_address};
use crate::common::namespace::Namespace;
use crate::common::*;
use muxtunnel_testkit::port::free_network;

/// Hang bound for a change of the transport, which takes one observation of the losses and one
/// trial. A busy machine takes longer, because the test's traffic shares the processors.
const SWITCHED_WITHIN: Duration = Duration::from_secs(240);
const WEB_SOCKET: &str = "webSocket: {path: /carrier}\n";

fn exit(security: &str, carrier: SocketAddr, allow: SocketAddr) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\ntransport: Auto\n{WEB_SOCKET}security: {security}\nlisten: '{carrier}'\nadmin: ADMIN\nworkers: 2\n\
         allow: [{allow_rule}]\n", allow_rule = crate::common::rule(allow)
    ))
    .until_ready()
}

/// Starts an entry. `how` has the YAML fields of the entry's transport.
fn entry(how: &str, security: &str, connect: SocketAddr, to: SocketAddr) -> (Gate, SocketAddr) {
    let forward = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let gate = Gate::with_file(&format!(
        "role: Entry\n{how}security: {security}\nconnect:\n- name: far\n  address: '{connect}'\nadmin: ADMIN\nforwards:\n\
         - {{name: a, listen: '{forward}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        to.port()
    ));
    (gate.until_ready(), forward)
}

/// The transports of the established carriers.
fn transports(gate: &Gate) -> Vec<String> {
    let status = gate.status();
    let carriers = status["carriers"].as_array().unwrap().iter();
    let name = |carrier: &serde_json::Value| carrier["transport"].as_str().unwrap().to_owned();
    carriers.map(name).collect()
}

#[test]
fn one_port_of_an_exit_takes_carriers_of_every_transport() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (_, _, tls) = crate::common::ends::tls(folder.path(), &authority);
    let none = Ends {
        exit: "{mode: None}".to_owned(),
        entry: "{mode: None}".to_owned(),
    };
    for ends in [none, tls, crate::common::ends::by_keys(folder.path())] {
        let (listener, address) = target();
        let carrier = carrier_address();
        let exit = exit(&ends.exit, carrier, address);
        let web_socket = format!("transport: WebSocket\n{WEB_SOCKET}");
        let auto = format!("transport: Auto\n{WEB_SOCKET}");
        for (how, expected) in [
            ("transport: TCP\n", "TCP"),
            ("transport: KCP\n", "KCP"),
            (&web_socket, "WebSocket"),
            (&auto, "TCP, or KCP if it connects first on a busy machine"),
        ] {
            let (entry, forward) = entry(how, &ends.entry, carrier, address);
            assert_exact(&connect(forward), &listener);
            let used = transports(&entry);
            assert!(
                used.len() == 1 && expected.contains(&used[0]),
                "{how}{}: {used:?}",
                ends.entry
            );
            assert!(transports(&exit).contains(&used[0]));
        }
    }
}

/// Where a [`Middle`] forwards connections: WebSocket requests to `requests`, other connections to
/// `others`. With `others: None`, it closes the other connections.
#[derive(Clone, Copy)]
struct Passes {
    requests: SocketAddr,
    others: Option<SocketAddr>,
}

/// A firewall on a TCP path. It accepts every connection, and closes the connections that may not
/// pass.
struct Middle {
    address: SocketAddr,
    passes: Arc<Mutex<Passes>>,
    /// Both ends of each connection, the oldest connection first.
    carriers: Arc<Mutex<Vec<TcpStream>>>,
}

impl Middle {
    fn new(passes: Passes) -> Self {
        let (listener, address) = target();
        let middle = Self {
            address,
            passes: Arc::new(Mutex::new(passes)),
            carriers: Arc::default(),
        };
        let (passes, carriers) = (Arc::clone(&middle.passes), Arc::clone(&middle.carriers));
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let (passes, carriers) = (*passes.lock().unwrap(), Arc::clone(&carriers));
                std::thread::spawn(move || pass(&near, passes, &carriers));
            }
        });
        middle
    }

    /// Forwards only WebSocket requests to `exit`.
    fn of_requests_alone(exit: SocketAddr) -> Self {
        Self::new(Passes {
            requests: exit,
            others: None,
        })
    }

    fn passes(&self, passes: Passes) {
        *self.passes.lock().unwrap() = passes;
    }

    /// Cuts the `count` oldest connections.
    fn cut(&self, count: usize) {
        for tcp in self.carriers.lock().unwrap().drain(..2 * count) {
            let _ = tcp.shutdown(Shutdown::Both);
        }
    }
}

fn pass(near: &TcpStream, passes: Passes, carriers: &Mutex<Vec<TcpStream>>) {
    let mut first = [0; 4];
    let is_request = matches!(near.peek(&mut first), Ok(4)) && first == *b"GET ";
    let exit = if is_request {
        Some(passes.requests)
    } else {
        passes.others
    };
    let Some(far) = exit.and_then(|exit| TcpStream::connect(exit).ok()) else {
        let _ = near.shutdown(Shutdown::Both);
        return;
    };
    let both = |tcp: &TcpStream| [tcp.try_clone().unwrap(), tcp.try_clone().unwrap()];
    let ([mut from_near, mut to_near], [mut from_far, mut to_far]) = (both(near), both(&far));
    let kept = [near, &far].map(|tcp| tcp.try_clone().unwrap());
    carriers.lock().unwrap().extend(kept);
    std::thread::spawn(move || std::io::copy(&mut from_near, &mut to_far));
    std::thread::spawn(move || std::io::copy(&mut from_far, &mut to_near));
}

#[test]
fn web_socket_is_chosen_where_nothing_but_requests_passes_and_is_dialled_at_once_again() {
    let folder = tempfile::tempdir().unwrap();
    for ends in [
        Ends {
            exit: "{mode: None}".to_owned(),
            entry: "{mode: None}".to_owned(),
        },
        crate::common::ends::by_keys(folder.path()),
    ] {
        let (listener, address) = target();
        let carrier = carrier_address();
        let exit = exit(&ends.exit, carrier, address);
        let auto = format!("transport: Auto\n{WEB_SOCKET}");
        let (entry, forward) = entry(
            &auto,
            &ends.entry,
            Middle::of_requests_alone(carrier).address,
            address,
        );
        assert_exact(&connect(forward), &listener);
        assert_eq!(transports(&entry), ["WebSocket"]);
        assert_eq!(transports(&exit), ["WebSocket"]);
        entry.line(&["Carriers now use another transport", "transport=WebSocket"]);
    }
}

#[test]
fn the_carriers_of_a_session_come_to_one_transport_where_one_of_them_has_to_change() {
    let (listener, address) = target();
    let carrier = carrier_address();
    let _exit = exit("{mode: None}", carrier, address);
    let middle = Middle::new(Passes {
        requests: carrier,
        others: Some(carrier),
    });
    let how = format!("transport: Auto\nworkers: 1\npool: {{min: 2, max: 2}}\n{WEB_SOCKET}");
    let (entry, forward) = entry(&how, "{mode: None}", middle.address, address);
    until("both carriers use TCP", || {
        transports(&entry) == ["TCP", "TCP"]
    });
    assert_exact(&connect(forward), &listener);
    middle.passes(Passes {
        requests: carrier,
        others: None,
    });
    middle.cut(1);
    until("both carriers use WebSocket", || {
        transports(&entry) == ["WebSocket", "WebSocket"]
    });
    assert_exact(&connect(forward), &listener);
}

/// Each transport may reach a different exit, for example behind a load balancer, or behind a proxy
/// that resolves the name.
#[test]
fn streams_outlive_a_carrier_that_another_transport_led_to_another_exit() {
    let (listener, address) = target();
    let carriers = [carrier_address(), carrier_address()];
    let exits = carriers.map(|carrier| exit("{mode: None}", carrier, address));
    let [one, other] = carriers;
    let middle = Middle::new(Passes {
        requests: other,
        others: Some(one),
    });
    let how = format!("transport: Auto\nworkers: 1\n{WEB_SOCKET}");
    let (entry, forward) = entry(&how, "{mode: None}", middle.address, address);
    assert_eq!(transports(&entry), ["TCP"]);
    let mut client = connect(forward);
    let mut server = accept(&listener);
    middle.passes(Passes {
        requests: other,
        others: None,
    });
    let count = middle.carriers.lock().unwrap().len() / 2;
    middle.cut(count);
    // New streams do not wait for the unreachable exit.
    entry.line(&["The session accepts no more streams"]);
    assert_exact(&connect(forward), &listener);
    assert_eq!(exits[0].status()["streams"]["open"], 1);
    middle.passes(Passes {
        requests: other,
        others: Some(one),
    });
    let mut byte = [0];
    client.write_all(b"a").unwrap();
    server.read_exact(&mut byte).unwrap();
    server.write_all(b"b").unwrap();
    client.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"b");
}

/// An entry in another network namespace, in which the test can block traffic.
struct Elsewhere {
    entry: Gate,
    exit: Gate,
    namespace: Namespace,
    listener: TcpListener,
    forward: SocketAddr,
    carrier: u16,
}

impl Elsewhere {
    /// `rules`: iptables rules in the namespace. PORT is replaced with the exit's port.
    fn new(rules: &[&str]) -> Self {
        let network = free_network();
        let [here, there]: [&'static str; 2] =
            [1, 2].map(|end| &*format!("{network}.{end}").leak());
        let namespace = Namespace::new(&[&format!("{here}/24")], &[&format!("{there}/24")]);
        let listener = TcpListener::bind((here, 0)).unwrap();
        let target = listener.local_addr().unwrap();
        let (carrier, forward) = (free_port(), free_port());
        let (listen, to) = (at(here, carrier), format!("{there}:{forward}:{target}"));
        let allow = target.to_string();
        let exit = Gate::with_flags(&[
            "exit",
            "--transport",
            "auto",
            "--security",
            "none",
            "--listen",
            &listen,
            "--allow",
            &allow,
        ]);
        for rule in rules {
            iptables(&namespace, rule, carrier);
        }
        let entry = Gate::within(
            &namespace,
            there,
            &[
                "entry",
                "--transport",
                "auto",
                "--security",
                "none",
                "--connect",
                &listen,
                "--forward",
                &to,
            ],
        );
        Self {
            entry: entry.until_ready(),
            exit,
            namespace,
            listener,
            forward: at(there, forward).parse().unwrap(),
            carrier,
        }
    }
}

fn iptables(namespace: &Namespace, rule: &str, port: u16) {
    let rule = format!("iptables {rule}").replace("PORT", &port.to_string());
    namespace.run(&rule.split(' ').collect::<Vec<_>>());
}

/// Over the blocked transport, the entry gets no answer at all, as behind a firewall that drops
/// packets.
#[test]
fn streams_go_on_where_the_path_of_one_transport_ends_and_another_one_passes() {
    let elsewhere = Elsewhere::new(&["-A OUTPUT -p tcp --dport PORT -j DROP"]);
    let entry = &elsewhere.entry;
    assert_eq!(transports(entry), ["KCP"]);
    let client = connect(elsewhere.forward);
    let server = accept(&elsewhere.listener);
    let bytes = pattern(7, 256 * MIB);
    let sender = send_in_background(&client, bytes.clone(), true);
    let receiver = std::thread::spawn(move || read_all(&server));
    until("the exit has received 8 MiB", || {
        elsewhere.exit.status()["streams"]["bytesReceived"].as_u64() > Some(8 * MIB as u64)
    });
    iptables(&elsewhere.namespace, "-F OUTPUT", elsewhere.carrier);
    iptables(
        &elsewhere.namespace,
        "-A OUTPUT -p udp --dport PORT -j DROP",
        elsewhere.carrier,
    );
    assert!(receiver.join().unwrap() == bytes);
    sender.join().unwrap();
    until("all carriers use TCP", || transports(entry) == ["TCP"]);
    entry.line(&["Carriers now use another transport", "transport=TCP"]);
}

#[test]
fn what_loses_by_tcp_moves_to_kcp_under_load_and_no_stream_is_lost() {
    // Blocks KCP at first, so that the entry begins with TCP, even on a busy machine.
    let elsewhere = Elsewhere::new(&["-A OUTPUT -p udp --dport PORT -j DROP"]);
    let entry = &elsewhere.entry;
    assert_eq!(transports(entry), ["TCP"]);
    iptables(&elsewhere.namespace, "-F OUTPUT", elsewhere.carrier);
    // The rule limits incoming packets, because the kernel notices packets that a rule drops on
    // output, so TCP would not count them as lost. The limit makes TCP slow and causes losses.
    // Packets still pass at a constant rate, so TCP continues.
    let few = "-m limit --limit 500/s --limit-burst 20 -j ACCEPT";
    for passes in [few, "-j DROP"] {
        let rule = format!("-A INPUT -p tcp --sport PORT {passes}");
        iptables(&elsewhere.namespace, &rule, elsewhere.carrier);
    }
    let mut client = connect(elsewhere.forward);
    let server = accept(&elsewhere.listener);
    let bytes = pattern(9, MIB);
    let (mut received, mut after) = (vec![0; bytes.len()], 0);
    let begun = Instant::now();
    // Transfers the data until the transport has changed, and twice after the change.
    while after < 2 {
        assert!(begun.elapsed() < SWITCHED_WITHIN, "{}", entry.log());
        let sender = send_in_background(&server, bytes.clone(), false);
        client.read_exact(&mut received).unwrap();
        sender.join().unwrap();
        assert!(received == bytes);
        after += i32::from(transports(entry) == ["KCP"]);
    }
    for gate in [entry, &elsewhere.exit] {
        assert_eq!(gate.status()["streams"]["open"], 1);
    }
    entry.line(&["Tried another transport", "transport=KCP"]);
    entry.line(&[
        "Carriers now use another transport",
        "transport=KCP",
        "Mbit/s",
    ]);
}

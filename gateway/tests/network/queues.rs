//! Interfaces with several queues.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use super::*;

/// Number of datagrams of one flow in one direction that arrive.
const NUMBERS: u32 = 200;
const DATAGRAM_BYTES: usize = 600;
const FLOWS: usize = 16;

/// Sends numbered datagrams over [`FLOWS`] flows, in both directions at once, until [`NUMBERS`] have
/// arrived of each. A busy machine may lose datagrams, but the others must arrive in order, unless
/// `gates` have handed packets to other workers.
fn numbers_keep_their_order(hosts: &Hosts, gates: [&Gate; 2]) {
    let flow = |_| {
        let [near, far] = [hosts.entry.udp(ENTRY), hosts.exit.udp(EXIT)];
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        [near, far].map(|socket| (socket, AtomicBool::new(false)))
    };
    let flows: Vec<_> = (0..FLOWS).map(flow).collect();
    let overtaken = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for [near, far] in &flows {
            for ((from, _), (to, has_all)) in [(near, far), (far, near)] {
                scope.spawn(|| send_numbers(from, has_all));
                scope.spawn(|| {
                    overtaken.lock().unwrap().extend(take_numbers(to));
                    has_all.store(true, Relaxed);
                });
            }
        }
    });
    let handed = gates.map(|gate| gate.status()["packets"]["handed"].as_u64().unwrap());
    let overtaken = overtaken.into_inner().unwrap();
    assert!(overtaken.is_empty() || handed != [0, 0], "{overtaken:?}");
}

fn send_numbers(socket: &UdpSocket, has_all: &AtomicBool) {
    let (begun, mut bytes) = (Instant::now(), [0; DATAGRAM_BYTES]);
    for number in 0_u32.. {
        if has_all.load(Relaxed) || begun.elapsed() > PATIENCE {
            return;
        }
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        socket.send(&bytes).unwrap();
        if number % 2 == 1 {
            // More datagrams at once are lost in the queues of a busy machine.
            thread::sleep(Duration::from_millis(4));
        }
    }
}

/// Returns each number that arrived after a higher one, with the higher one.
fn take_numbers(socket: &UdpSocket) -> Vec<(u32, u32)> {
    let (mut highest, mut bytes, mut overtaken) = (0, [0; DATAGRAM_BYTES], Vec::new());
    for _ in 0..NUMBERS {
        socket.recv(&mut bytes).unwrap();
        let number = u32::from_be_bytes(bytes[..4].try_into().unwrap());
        if number < highest {
            overtaken.push((number, highest));
        }
        highest = highest.max(number);
    }
    overtaken
}

#[test]
fn both_queues_carry_packets_and_no_flow_is_reordered() {
    for protocol in PROTOCOLS {
        let hosts = Hosts::with_queues(protocol, ["2", "2"]);
        let flags = [&NETWORKS[..], &["--queues", "2"]].concat();
        let (exit, entry) = (hosts.exit(&flags), hosts.entry(&flags));
        for gate in [&exit, &entry] {
            until("each queue has a session", || {
                gate.status()["packets"]["sessions"] == 2
            });
        }
        numbers_keep_their_order(&hosts, [&exit, &entry]);
        // Carriers of QUIC do not count datagrams.
        for gate in [&exit, &entry].into_iter().filter(|_| protocol == "Native") {
            let busy = |gate: &Gate| {
                let status = gate.status();
                let carriers = status["carriers"].as_array().unwrap().iter();
                // Half of the bytes of one flow in one direction.
                let is_busy = |sent: &u64| *sent > u64::from(NUMBERS) * DATAGRAM_BYTES as u64 / 2;
                let sent = carriers.filter_map(|carrier| carrier["bytesSent"].as_u64());
                sent.filter(is_busy).count()
            };
            until("both sessions have carried packets", || busy(gate) == 2);
        }
    }
}

#[test]
fn queues_share_a_session_where_the_other_side_has_one() {
    for queues in [["1", "2"], ["2", "1"]] {
        let hosts = Hosts::with_queues("Native", queues);
        let flags = queues.map(|queues| [&NETWORKS[..], &["--queues", queues]].concat());
        let (exit, entry) = (hosts.exit(&flags[1]), hosts.entry(&flags[0]));
        let sessions = queues[0].parse::<u64>().unwrap();
        for gate in [&exit, &entry] {
            until("each of the entry's queues has a session", || {
                gate.status()["packets"]["sessions"] == sessions
            });
        }
        numbers_keep_their_order(&hosts, [&exit, &entry]);
        bulk(&hosts.entry.namespace, &hosts.exit.namespace, EXIT6);
        bulk(&hosts.exit.namespace, &hosts.entry.namespace, ENTRY6);
    }
}

#[test]
fn queues_that_an_interface_does_not_have_are_an_error_that_says_what_to_do() {
    let hosts = Hosts::with_queues("Native", ["1", "2"]);
    let refused = |host: &Host, queues: &str| {
        let args = [
            &["exit", "--security", "none", "--listen", "127.0.0.1:0"],
            &NETWORKS[..],
            &["--queues", queues],
        ];
        let gate = host.namespace.enter(|| Gate::without_admin(&args.concat()));
        let (status, log) = gate.wait_for_log();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("MT0234"), "{log}");
        log
    };
    let log = refused(&hosts.entry, "2");
    assert!(
        log.contains("was created for one queue: delete it (`muxgate tun delete --device mux0`)"),
        "{log}"
    );
    let log = refused(&hosts.exit, "1");
    assert!(log.contains("was created for several queues"), "{log}");
    let flags = [&NETWORKS[..], &["--queues", "2"]].concat();
    let _exit = hosts.exit(&flags);
    let log = refused(&hosts.exit, "2");
    assert!(
        log.contains("has 8 open queues, and this gateway opened 4"),
        "{log}"
    );
}

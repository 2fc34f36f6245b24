//! Packets between two sessions on loopback, and peers that carry no packets.

use std::cell::{Cell, RefCell};

use muxtunnel_packet::from_device;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::io::carrier::Carrier;
use crate::io::quic::tests::{PROTOCOL, pair};
use crate::session::bridge::tests::{
    entry_of, exit_of, in_time, leads_to, nowhere, open, sessions_of,
};
use crate::session::mux::{Mux, Progress};
use crate::session::quic::tests::hello;

/// The protocol QUIC, with the addresses of both ends of a network.
const WITH_PACKETS: &str = "QUIC\nnetwork: {entryCIDRs: [10.72.0.1], exitCIDRs: [10.72.0.2]}";
/// Length of the headers of IPv4 and TCP, in bytes.
const HEADERS: usize = 40;

/// A TCP super-packet as an interface delivers it. The packet has `payload` bytes, starting at
/// `sequence`, in segments of 1,000 bytes.
fn super_packet(sequence: u32, payload: usize) -> Vec<u8> {
    let length = u16::try_from(HEADERS + payload).unwrap();
    let mut ip = vec![0x45, 0];
    ip.extend(length.to_be_bytes());
    ip.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 72, 0, 1, 10, 72, 0, 2]);
    let words = ip
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    ip.extend([0x9c, 0x40, 0, 80]);
    ip.extend(sequence.to_be_bytes());
    ip.extend([0, 0, 0, 9, 0x50, 0x10, 1, 0xf6, 0, 0, 0, 0]);
    ip.extend((0..payload).map(|at| at as u8));
    let mut framed = [&[1, 1, 40, 0, 232, 3, 20, 0, 16, 0][..], &ip].concat();
    from_device(&mut framed).unwrap();
    framed
}

fn send(mux: &Rc<dyn Mux>, framed: &[u8]) {
    let datagrams = mux.datagrams().unwrap();
    datagrams.send(7, Packet::from(framed));
}

fn heard(mux: &Rc<dyn Mux>, offloads: Offloads) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let heard = Rc::new(RefCell::new(Vec::new()));
    let hears = Rc::clone(&heard);
    let hear = Box::new(move |framed: &[u8]| hears.borrow_mut().push(framed.to_vec()));
    mux.datagrams().unwrap().hear(hear, offloads);
    heard
}

async fn until(is: impl Fn() -> bool) {
    while !is() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Checks that `packets` are in order and without gaps. Returns the number of their payload bytes.
fn in_order(packets: &[Vec<u8>]) -> usize {
    let mut next = 0;
    for framed in packets {
        let sequence = u32::from_be_bytes(*framed[34..].first_chunk().unwrap());
        assert_eq!(sequence as usize, next);
        next += check(framed).unwrap().length - HEADERS;
    }
    next
}

#[tokio::test]
async fn a_super_packet_is_cut_to_the_path_and_joined_again() {
    in_time(async {
        let (entry, exit) = sessions_of(WITH_PACKETS, nowhere(), nowhere()).await;
        exit.reached(Progress::Ready).await;
        let heard = heard(&exit, Offloads::TcpAndUdp);
        let limit = entry.datagrams().unwrap().limit().unwrap();
        assert!(
            (1150..1500).contains(&limit.bytes) && !limit.is_known,
            "{limit:?}"
        );
        for index in 0..10 {
            send(&entry, &super_packet(index * 50_000, 50_000));
            // Datagrams that overflow the socket of a busy receiver are lost, so only one
            // super-packet is in flight.
            until(|| in_order(&heard.borrow()) == 50_000 * (index as usize + 1)).await;
        }
        // The path carried 500 packets. A smaller number shows that packets were joined.
        let joined = heard.borrow().len();
        assert!(joined < 400, "{joined} packets");
    })
    .await;
}

#[tokio::test]
async fn an_interface_without_offloads_is_given_packets_as_they_come() {
    in_time(async {
        let (entry, exit) = sessions_of(WITH_PACKETS, nowhere(), nowhere()).await;
        exit.reached(Progress::Ready).await;
        let heard = heard(&exit, Offloads::Nothing);
        send(&entry, &super_packet(0, 50_000));
        until(|| heard.borrow().len() == 50).await;
        assert_eq!(in_order(&heard.borrow()), 50_000);
    })
    .await;
}

#[tokio::test]
async fn packets_are_agreed_on_where_both_ends_have_a_network() {
    in_time(async {
        let (near, exit) = exit_of(WITH_PACKETS, nowhere()).await;
        // The peer sends a HELLO without any feature.
        let _control = hello(&near).await;
        exit.reached(Progress::Ready).await;
        assert!(exit.datagrams().is_none());
        for bytes in [&b"no packet"[..], b""] {
            near.quic()
                .send_datagram(Bytes::from_static(bytes))
                .unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!exit.has_ended());
        let (entry, exit) = sessions_of(PROTOCOL, nowhere(), nowhere()).await;
        assert!(entry.datagrams().is_none() && exit.datagrams().is_none());
    })
    .await;
}

#[tokio::test]
async fn what_is_no_packet_is_dropped_and_others_arrive() {
    in_time(async {
        let (near, exit) = exit_of(WITH_PACKETS, nowhere()).await;
        let mut control = near.quic().open_uni().await.unwrap();
        control
            .write_all(b"\x01\0\x06\x01\0\0\0\0\x01")
            .await
            .unwrap();
        exit.reached(Progress::Ready).await;
        let heard = heard(&exit, Offloads::TcpAndUdp);
        let framed = super_packet(0, 1000);
        let forged = [&framed[10..][..30], &[0xff; 400]].concat();
        for datagram in [forged, b"x".to_vec(), Vec::new(), framed[10..].to_vec()] {
            near.quic().send_datagram(datagram.into()).unwrap();
        }
        until(|| !heard.borrow().is_empty()).await;
        assert_eq!(heard.borrow()[..], [[&[0; 10], &framed[10..]].concat()]);
    })
    .await;
}

#[tokio::test]
async fn packets_go_over_another_carrier_where_theirs_is_lost() {
    in_time(async {
        let (first, exit) = exit_of(WITH_PACKETS, nowhere()).await;
        let entry = entry_of(WITH_PACKETS, first.clone(), nowhere());
        exit.reached(Progress::Ready).await;
        let (near, far) = pair(WITH_PACKETS).await;
        for (mux, carrier) in [(&entry, near), (&exit, far)] {
            let carriers = mux.carriers().unwrap();
            let added = carriers.add(Carrier::Quic(carrier), Vec::new(), None);
            drop(added.unwrap());
        }
        let heard = heard(&exit, Offloads::TcpAndUdp);
        let up = |mux: &Rc<dyn Mux>| mux.carriers().unwrap().numbers().up;
        until(|| up(&entry) == 2 && up(&exit) == 2).await;
        first.shut();
        until(|| up(&entry) == 1 && up(&exit) == 1).await;
        send(&entry, &super_packet(0, 10_000));
        until(|| in_order(&heard.borrow()) == 10_000).await;
        assert!(entry.carriers().unwrap().retire_one());
        until(|| entry.datagrams().unwrap().limit().is_none()).await;
    })
    .await;
}

#[tokio::test]
async fn neither_packets_nor_streams_starve_the_others() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (entry, exit) = sessions_of(WITH_PACKETS, nowhere(), leads_to(address)).await;
        exit.reached(Progress::Ready).await;
        let packets = Rc::new(Cell::new(0));
        let hears = Rc::clone(&packets);
        let hear = move |framed: &[u8]| hears.set(hears.get() + framed.len());
        exit.datagrams()
            .unwrap()
            .hear(Box::new(hear), Offloads::TcpAndUdp);
        let (client, _end) = open(&entry, "tcp://web:80").await;
        let (mut target, _) = listener.accept().await.unwrap();
        drop(tokio::task::spawn_local(async move {
            let bytes = vec![1; 1 << 20];
            loop {
                client.writable().await.unwrap();
                let _ = client.try_write(&bytes);
            }
        }));
        let flooding = Rc::clone(&entry);
        drop(tokio::task::spawn_local(async move {
            // Each round sends a single packet, since more work between two yields would make the
            // turns of the sender coarse. The loop uses no timer: on a busy machine a late timer
            // would leave the queue empty, and streams would get the whole path.
            let flood: Vec<_> = (0..20)
                .map(|index| super_packet(index * 50_000, 50_000))
                .collect();
            for packet in flood.iter().cycle() {
                send(&flooding, packet);
                tokio::task::yield_now().await;
            }
        }));
        let (begun, mut streams, mut buffer) = (Instant::now(), 0, vec![0; 1 << 20]);
        while begun.elapsed() < Duration::from_secs(3) {
            streams += target.read(&mut buffer).await.unwrap();
        }
        let packets = packets.get();
        assert!(
            streams > packets / 8 && packets > streams / 8,
            "{streams} {packets}"
        );
    })
    .await;
}

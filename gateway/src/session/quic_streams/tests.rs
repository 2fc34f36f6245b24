//! Cases for both protocols: room for streams, cancelled streams, and silent peers.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures::FutureExt;
use quinn::{RecvStream, SendStream, VarInt};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::io::carrier::Carrier;
use crate::io::quic::tests::pair;
use crate::session::bridge::tests::{entry_of, exit_of, in_time, leads_to, nowhere, open};
use crate::session::mux::{Dial, Dialler, Mux, Progress};

const PROTOCOLS: [&str; 2] = ["QUIC", "HTTP3"];

/// Sends the first messages of a peer of `protocol`.
async fn greet(protocol: &str, connection: &Connection) -> SendStream {
    let mut control = connection.quic().open_uni().await.unwrap();
    let hello: &[u8] = match protocol {
        "QUIC" => b"\x01\0\x05\x01\0\0\0\x64",
        _ => &[0, 4, 0],
    };
    control.write_all(hello).await.unwrap();
    control
}

/// Opens a stream to port 80 of `host`, a name of three letters.
async fn ask(protocol: &str, connection: &Connection, host: &str) -> (SendStream, RecvStream) {
    let (mut sender, receiver) = connection.quic().open_bi().await.unwrap();
    let ask = match protocol {
        "QUIC" => [b"\x03\0\x0f\0\0\x0ctcp://", host.as_bytes(), b":80"].concat(),
        // :method is an entry of the static table; :authority uses its name from the table.
        _ => [b"\x01\x0b\0\0\xcf\x50\x06", host.as_bytes(), b":80"].concat(),
    };
    sender.write_all(&ask).await.unwrap();
    (sender, receiver)
}

/// Grants a stream that the peer opened.
async fn agree(
    protocol: &str,
    (mut sender, receiver): (SendStream, RecvStream),
) -> [Box<dyn std::any::Any>; 2] {
    let answer: &[u8] = match protocol {
        "QUIC" => b"\x04\0\x02\0\0",
        // :status 200 from the static table.
        _ => &[1, 3, 0, 0, 0xd9],
    };
    sender.write_all(answer).await.unwrap();
    [Box::new(sender), Box::new(receiver)]
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let within = Duration::from_secs(10);
    tokio::time::timeout(within, what).await.unwrap()
}

/// An entry, and a link of its session to a peer that takes `streams` concurrent streams.
async fn entry_to(protocol: &str, streams: u32) -> (Rc<dyn Mux>, Connection, SendStream) {
    let (near, far) = pair(protocol).await;
    let entry = entry_of(protocol, near, nowhere());
    far.quic().set_max_concurrent_bi_streams(streams.into());
    let control = greet(protocol, &far).await;
    entry.reached(Progress::Ready).await;
    (entry, far, control)
}

#[tokio::test]
async fn a_stream_beyond_what_a_peer_takes_at_once_goes_over_another_connection() {
    in_time(async {
        for protocol in PROTOCOLS {
            let (entry, far, _control) = entry_to(protocol, 2).await;
            let carriers = entry.carriers().unwrap();
            let (first, _end) = open(&entry, "tcp://web:80").await;
            let _first = agree(protocol, soon(far.quic().accept_bi()).await.unwrap()).await;
            let (_client, _end) = open(&entry, "tcp://web:80").await;
            let _second = agree(protocol, soon(far.quic().accept_bi()).await.unwrap()).await;
            assert_eq!(carriers.numbers().wanted(), 1, "{protocol}");
            let (_client, _end) = open(&entry, "tcp://web:80").await;
            soon(carriers.until(&|numbers| numbers.wanted() == 2)).await;

            let (near, other) = pair(protocol).await;
            other.quic().set_max_concurrent_bi_streams(2_u32.into());
            let _greeted = greet(protocol, &other).await;
            let added = carriers.add(Carrier::Quic(near), Vec::new(), None);
            assert!(soon(added.unwrap()).await);
            let _third = agree(protocol, soon(other.quic().accept_bi()).await.unwrap()).await;
            let (_client, _end) = open(&entry, "tcp://web:80").await;
            let _fourth = agree(protocol, soon(other.quic().accept_bi()).await.unwrap()).await;
            // Both links are full, so the open waits for the end of another stream.
            let (_client, _end) = open(&entry, "tcp://web:80").await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(entry.stream_count(), 5, "{protocol}");
            first.set_zero_linger().unwrap();
            drop((first, _first));
            let _fifth = soon(far.quic().accept_bi()).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_takes_streams_a_little_later_costs_no_connection_more() {
    in_time(async {
        for protocol in PROTOCOLS {
            let (entry, far, _control) = entry_to(protocol, 0).await;
            let (_client, _end) = open(&entry, "tcp://web:80").await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            far.quic().set_max_concurrent_bi_streams(8_u32.into());
            let mut streams = vec![soon(far.quic().accept_bi()).await.unwrap()];
            for _ in 0..4 {
                let (client, _end) = open(&entry, "tcp://web:80").await;
                std::mem::forget(client);
                streams.push(soon(far.quic().accept_bi()).await.unwrap());
            }
            assert_eq!(
                entry.carriers().unwrap().numbers().wanted(),
                1,
                "{protocol}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn opens_that_wait_for_room_go_elsewhere_where_their_session_goes_away() {
    in_time(async {
        for protocol in PROTOCOLS {
            let (entry, _far, mut control) = entry_to(protocol, 0).await;
            let (_client, end) = open(&entry, "tcp://web:80").await;
            let leaves: &[u8] = match protocol {
                "QUIC" => b"\x02\0\0",
                _ => &[7, 1, 0],
            };
            control.write_all(leaves).await.unwrap();
            let end = soon(end).await.unwrap();
            assert!(
                matches!(end, crate::session::mux::OpenEnd::Returned(_)),
                "{protocol}"
            );
        }
    })
    .await;
}

/// A dialler that reaches `web` at the listener. Dials of other targets are counted and never
/// complete.
fn counting(listener: &TcpListener, dialled: &Rc<Cell<u64>>) -> Dialler {
    let (leads, dialled) = (leads_to(listener.local_addr().unwrap()), Rc::clone(dialled));
    Box::new(move |target, identity, source| -> Dial {
        if target.starts_with("tcp://web:") {
            return leads(target, identity, source);
        }
        dialled.set(dialled.get() + 1);
        Box::pin(std::future::pending())
    })
}

#[tokio::test]
async fn whoever_takes_streams_back_again_and_again_is_served_slowly_and_others_go_on() {
    in_time(async {
        for protocol in PROTOCOLS {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let dialled = Rc::default();
            let (near, exit) = exit_of(protocol, counting(&listener, &dialled)).await;
            let _control = greet(protocol, &near).await;
            let (mut sender, _receiver) = ask(protocol, &near, "web").await;
            let (mut target, _) = soon(listener.accept()).await.unwrap();
            // With a burst of 1,000 streams and 200 streams per second, 1,400 streams take 2 s.
            let begun = Instant::now();
            for number in 0..1400 {
                let (_sender, mut receiver) = ask(protocol, &near, "off").await;
                soon(async {
                    while dialled.get() <= number {
                        tokio::task::yield_now().await;
                    }
                })
                .await;
                receiver.stop(VarInt::from_u32(0x10c)).unwrap();
            }
            let took = begun.elapsed();
            assert!(took > Duration::from_millis(1900), "{protocol}: {took:?}");
            let payload: &[u8] = match protocol {
                "QUIC" => b"more",
                _ => b"\0\x04more",
            };
            sender.write_all(payload).await.unwrap();
            soon(target.read_exact(&mut [0; 4])).await.unwrap();
            let _other = ask(protocol, &near, "web").await;
            soon(listener.accept()).await.unwrap();
            assert!(!exit.has_ended(), "{protocol}");
        }
    })
    .await;
}

/// Advances the clock by `time` in one step.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_peer_that_says_no_hello_in_time_is_cut_off() {
    in_time(async {
        for (protocol, code) in [("QUIC", 3), ("HTTP3", 0x10a)] {
            let (near, exit) = exit_of(protocol, nowhere()).await;
            let (dialled, far) = pair(protocol).await;
            let entry = entry_of(protocol, dialled, nowhere());
            // The peer sends its hello, but gives this side no credit to send one.
            let (silenced, deaf) = pair(protocol).await;
            let mut credit = Vec::new();
            while let Some(stream) = silenced.quic().open_uni().now_or_never() {
                credit.push(stream.unwrap());
            }
            let mute = entry_of(protocol, silenced, nowhere());
            let _hello = greet(protocol, &deaf).await;
            let (greeted, other) = exit_of(protocol, nowhere()).await;
            let _control = greet(protocol, &greeted).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            pass(Duration::from_millis(4900)).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
            assert!(!exit.has_ended() && !entry.has_ended(), "{protocol}");
            pass(Duration::from_millis(200)).await;
            for peer in [near, far, deaf] {
                let closed = soon(peer.quic().closed()).await;
                let quinn::ConnectionError::ApplicationClosed(close) = closed else {
                    panic!("{protocol}: {closed}");
                };
                assert_eq!(close.error_code, VarInt::from_u32(code), "{protocol}");
            }
            soon(async {
                while ![&exit, &entry, &mute].iter().all(|mux| mux.has_ended()) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
            assert!(!other.has_ended(), "{protocol}");
        }
    })
    .await;
}

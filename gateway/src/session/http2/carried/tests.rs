//! The transport delivers each byte once and in order, however the bytes are split.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::future::poll_fn;
use std::io::ErrorKind;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use muxtunnel_gateway_config::Config;
use muxtunnel_gateway_config::status::CarrierTransport;

use super::*;
use crate::base::telemetry::Telemetry;
use crate::io::transport::Unix;
use crate::session::http2::meter::TURN_FRAMES;

/// The bytes of a frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Both ends of a transport, from which `unread` was already read.
fn carried(unread: &[u8]) -> (Carried, UnixStream, Rc<RefCell<Meter>>) {
    let (near, far) = UnixStream::pair().unwrap();
    let transport: Rc<dyn Transport> = Unix::boxed(near, "").into();
    let meter = Rc::new(RefCell::new(Meter::default()));
    let config = Config::from_yaml(
        "role: Exit\nprotocol: HTTP2\nsecurity: {mode: None}\nlisten: 127.0.0.1:1\n",
    )
    .unwrap();
    let stats = Telemetry::new(&config, "", 1, None).carrier(
        (String::new(), None, None),
        CarrierTransport::Unix,
        None,
    );
    let read = (stats, 1 << 20);
    let carried = Carried::new((Side::Accepts, transport), unread.to_vec(), &meter, read);
    (carried, far, meter)
}

/// Reads up to the end with buffers of `room` bytes, and begins a turn whenever frames wait.
async fn read_all(carried: &mut Carried, meter: &RefCell<Meter>, room: usize) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut bytes = vec![0; room];
        let mut buffer = ReadBuf::new(&mut bytes);
        poll_fn(|context| {
            let polled = Pin::new(&mut *carried).poll_read(context, &mut buffer);
            if polled.is_pending() && meter.borrow_mut().begin_turn() {
                context.waker().wake_by_ref();
            }
            polled
        })
        .await
        .unwrap();
        if buffer.filled().is_empty() {
            return all;
        }
        all.extend_from_slice(buffer.filled());
    }
}

#[tokio::test]
async fn empty_data_is_removed_and_all_else_arrives_unchanged_in_pieces_of_any_size() {
    let kept = [
        PREFACE.to_vec(),
        frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]),
        frame(0, 0, 1, b"payload"),
        // The end of a stream.
        frame(0, 1, 1, b""),
        frame(0, 0, 3, &[7; 3000]),
        // An error, which the library detects: empty DATA within a block of fields, or of no stream.
        frame(1, 0, 5, b"block"),
        frame(0, 0, 5, b""),
        frame(9, 4, 5, b"rest"),
        frame(0, 0, 0, b""),
        frame(6, 0, 0, &[0; 8]),
    ];
    let empty = frame(0, 0, 3, b"");
    // The stream ends within a head.
    let end = vec![0, 0, 9];
    let holes = [
        kept[..6].join(&empty[..]),
        kept[6..].concat(),
        empty.repeat(3),
        end.clone(),
    ];
    let (holes, expected) = (holes.concat(), [kept.concat(), end].concat());
    for room in [1, 8, 9, 63, 64, 65, 200, 100_000] {
        for piece in [1, 2, 9, 10, 1000, 100_000] {
            let unread = holes.len().min(piece);
            let (mut carried, mut far, meter) = carried(&holes[..unread]);
            let rest = holes[unread..].to_vec();
            let sends = async move {
                for piece in rest.chunks(piece) {
                    far.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let (came, ()) = tokio::join!(read_all(&mut carried, &meter, room), sends);
            assert!(came == expected, "{room} {piece}");
        }
    }
}

#[tokio::test]
async fn a_turn_has_a_bounded_number_of_frames() {
    let one = frame(8, 0, 0, &[0, 0, 0, 1]);
    let all = [PREFACE.to_vec(), one.repeat(2 * TURN_FRAMES + 1)].concat();
    let (mut carried, mut far, meter) = carried(&all);
    far.shutdown().await.unwrap();
    let mut bytes = vec![0; all.len()];
    let mut buffer = ReadBuf::new(&mut bytes);
    let mut turns = 0;
    poll_fn(|context| {
        while Pin::new(&mut carried)
            .poll_read(context, &mut buffer)
            .is_ready()
        {
            if buffer.filled().len() == all.len() {
                return Poll::Ready(());
            }
        }
        turns += 1;
        let passed = PREFACE.len() + turns * TURN_FRAMES * one.len();
        assert_eq!(buffer.filled().len(), passed);
        assert!(meter.borrow_mut().begin_turn());
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    assert_eq!(turns, 2);
    assert!(buffer.filled() == all);
}

#[tokio::test]
async fn a_peer_that_reads_nothing_is_read_no_further_until_it_reads() {
    let (mut carried, mut far, meter) = carried(PREFACE);
    let full = poll_fn(|context| {
        loop {
            match Pin::new(&mut carried).poll_write(context, &frame(0, 0, 1, &[0; 1000])) {
                Poll::Ready(written) => drop(written.unwrap()),
                Poll::Pending => return Poll::Ready(()),
            }
        }
    });
    full.await;
    let (all, mut at) = (frame(0, 0, 1, &[7; 100]).repeat(TURN_FRAMES), 0);
    let mut turns = 0;
    let mut bytes = vec![0; 1 << 20];
    let passed = poll_fn(|context| {
        let mut buffer = ReadBuf::new(&mut bytes);
        match Pin::new(&mut carried).poll_read(context, &mut buffer) {
            Poll::Ready(read) => read.unwrap(),
            Poll::Pending if meter.borrow().is_shut() => match meter.borrow_mut().begin_turn() {
                true => {
                    turns += 1;
                    assert!(turns < 1000, "the peer is read without a bound");
                }
                false => return Poll::Ready(turns),
            },
            // The peer sends more.
            Poll::Pending => match far.try_write(&all[at..]) {
                Ok(length) => at = (at + length) % all.len(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            },
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    assert!(passed > 1);
    let mut read = vec![0; 1 << 20];
    while far.read(&mut read).await.unwrap() == read.len() {}
    poll_fn(|context| Pin::new(&mut carried).poll_write(context, b"more"))
        .await
        .unwrap();
    meter.borrow_mut().begin_turn();
    assert!(!meter.borrow().is_shut());
}

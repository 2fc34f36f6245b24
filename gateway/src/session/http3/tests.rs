//! Peers that are not MuxTunnel gateways.

mod violations;

use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use quinn::RecvStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::io::quic::Connection;
use crate::session::bridge::tests::{entry_of, exit_of, in_time, leads_to, nowhere, open};
use crate::session::mux::{Dial, Mux, OpenEnd, Progress};

const PROTOCOL: &str = "HTTP3";

/// A frame with the fields of a CONNECT.
fn connect(authority: &str) -> Vec<u8> {
    message::push_request(&connect_to(&format!("tcp://{authority}")).unwrap()).0
}

fn frame(kind: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::push(&mut bytes, kind, body);
    bytes
}

/// A control stream with valid settings.
async fn control(connection: &Connection) -> quinn::SendStream {
    let mut control = connection.quic().open_uni().await.unwrap();
    control.write_all(&[0]).await.unwrap();
    control
        .write_all(&frame(frame::SETTINGS, &[]))
        .await
        .unwrap();
    control
}

async fn request(connection: &Connection, bytes: &[u8]) -> (quinn::SendStream, RecvStream) {
    let (mut sender, receiver) = connection.quic().open_bi().await.unwrap();
    sender.write_all(bytes).await.unwrap();
    (sender, receiver)
}

async fn status(receiver: &mut RecvStream) -> u16 {
    let frame = Frames::new(&Rc::default()).next(receiver).await.unwrap();
    let fields = qpack::decode(&frame.unwrap().body).unwrap();
    message::answer(fields).unwrap().status.as_u16()
}

/// The code with which the peer closed a connection.
async fn closed(connection: &Connection) -> VarInt {
    match connection.quic().closed().await {
        ConnectionError::ApplicationClosed(close) => close.error_code,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn requests_that_are_none_are_answered_and_the_session_goes_on() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, _exit) = exit_of(PROTOCOL, leads_to(listener.local_addr().unwrap())).await;
        let _control = control(&near).await;
        let fields = |fields: &[(&str, &str)]| {
            let fields = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
            frame(frame::HEADERS, &qpack::encode(fields))
        };
        let get = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "a"),
            (":path", "/"),
        ];
        let large = "a".repeat(FIELD_BYTES_MAX - 100);
        let mut long = Vec::new();
        frame::push_head(&mut long, frame::HEADERS, 1 << 40);
        for (bytes, expected) in [
            (fields(&get), 405),
            (
                fields(&[(":method", "CONNECT"), (":authority", "web")]),
                400,
            ),
            (fields(&[(":method", "CONNECT")]), 400),
            (
                fields(&[
                    (":method", "CONNECT"),
                    (":authority", "web:80"),
                    ("large", &large),
                ]),
                431,
            ),
            (long, 431),
            (connect("db:5432"), 403),
        ] {
            let (_sender, mut receiver) = request(&near, &bytes).await;
            assert_eq!(status(&mut receiver).await, expected);
            assert!(receiver.read_to_end(1).await.unwrap().is_empty());
        }
        // A request that ends without its fields.
        let (mut sender, mut receiver) = request(&near, &[]).await;
        sender.finish().unwrap();
        let cut = receiver.read_to_end(1).await.unwrap_err();
        let expected = quinn::ReadError::Reset(code::REQUEST_INCOMPLETE);
        assert_eq!(cut, quinn::ReadToEndError::Read(expected));
        // The request arrives in pieces, after frames of unknown types.
        let mut bytes = frame(0x21, b"grease");
        bytes.extend(frame(0x1f * 5 + 0x21, &[]));
        bytes.extend(connect("web:80"));
        let (mut sender, mut receiver) = request(&near, &[]).await;
        for byte in bytes {
            sender.write_all(&[byte]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(status(&mut receiver).await, 200);
        listener.accept().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_client_that_has_ended_with_its_fields_gets_what_its_target_sends() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, exit) = exit_of(PROTOCOL, leads_to(listener.local_addr().unwrap())).await;
        let _control = control(&near).await;
        let (mut sender, mut receiver) = request(&near, &connect("web:80")).await;
        sender.finish().unwrap();
        assert_eq!(status(&mut receiver).await, 200);
        let (mut target, _) = listener.accept().await.unwrap();
        assert_eq!(target.read(&mut [0]).await.unwrap(), 0);
        target.write_all(b"answer").await.unwrap();
        drop(target);
        let answer = receiver.read_to_end(100).await.unwrap();
        assert_eq!(answer, frame(frame::DATA, b"answer"));
        exit.idle().await;
        assert!(!exit.has_ended());
    })
    .await;
}

#[tokio::test]
async fn a_client_that_takes_a_request_back_ends_its_dial() {
    in_time(async {
        let (near, exit) = exit_of(PROTOCOL, nowhere()).await;
        let _control = control(&near).await;
        let (_sender, mut receiver) = request(&near, &connect("web:80")).await;
        while exit.stream_count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        receiver.stop(code::REQUEST_CANCELLED).unwrap();
        while exit.stream_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!exit.has_ended());
    })
    .await;
}

#[tokio::test]
async fn a_client_that_resets_its_half_before_the_answer_resets_the_target() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dials = leads_to(listener.local_addr().unwrap());
        let (reset, is_reset) = watch::channel(false);
        let dials = Box::new(move |target, identity, source| -> Dial {
            let (dial, mut is_reset) = (dials(target, identity, source), is_reset.clone());
            Box::pin(async move {
                is_reset.wait_for(|is_reset| *is_reset).await.unwrap();
                dial.await
            })
        });
        let (near, exit) = exit_of(PROTOCOL, dials).await;
        let _control = control(&near).await;
        let (mut sender, mut receiver) = request(&near, &connect("web:80")).await;
        while exit.stream_count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        sender.reset(code::REQUEST_CANCELLED).unwrap();
        reset.send_replace(true);
        let (mut target, _) = listener.accept().await.unwrap();
        let cut = target.read(&mut [0]).await.unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
        let cut = receiver.read_to_end(1000).await.unwrap_err();
        let expected = quinn::ReadError::Reset(code::CONNECT_ERROR);
        assert_eq!(cut, quinn::ReadToEndError::Read(expected));
        assert!(!exit.has_ended());
    })
    .await;
}

#[tokio::test]
async fn an_exit_that_has_left_rejects_requests() {
    in_time(async {
        let (near, exit) = exit_of(PROTOCOL, nowhere()).await;
        let _control = control(&near).await;
        let mut theirs = near.quic().accept_uni().await.unwrap();
        assert_eq!(
            theirs.read_chunk(1, true).await.unwrap().unwrap().bytes[0],
            0
        );
        let mut frames = Frames::new(&Rc::default());
        let kind = async |frames: &mut Frames, stream: &mut RecvStream| {
            let frame = frames.next(stream).await.unwrap().unwrap();
            (frame.kind, frame.body)
        };
        assert_eq!(kind(&mut frames, &mut theirs).await.0, frame::SETTINGS);
        let (_sender, _receiver) = request(&near, &connect("web:80")).await;
        while exit.stream_count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        exit.go_away();
        // The exit took the first request, number 0, and takes no request from number 4 on.
        assert_eq!(
            kind(&mut frames, &mut theirs).await,
            (frame::GOAWAY, vec![4])
        );
        let (_sender, mut receiver) = request(&near, &connect("web:80")).await;
        let cut = receiver.read(&mut [0]).await.unwrap_err();
        assert_eq!(cut, quinn::ReadError::Reset(code::REQUEST_REJECTED));
        assert_eq!(exit.stream_count(), 1);
    })
    .await;
}

#[tokio::test]
async fn streams_and_frames_that_nobody_knows_are_passed_over() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, _exit) = exit_of(PROTOCOL, leads_to(listener.local_addr().unwrap())).await;
        let mut control = control(&near).await;
        control
            .write_all(&frame(0x1f * 2 + 0x21, &[7; 70_000]))
            .await
            .unwrap();
        control
            .write_all(&frame(frame::MAX_PUSH_ID, &[8]))
            .await
            .unwrap();
        let mut kinds = Vec::new();
        // The loop opens more streams than may be open at once.
        for number in 0..50_u64 {
            frame::push_integer(&mut kinds, 0x1f * number + 0x21);
            let mut stream = near.quic().open_uni().await.unwrap();
            stream.write_all(&kinds).await.unwrap();
            kinds.clear();
            let code = stream.stopped().await.unwrap();
            assert_eq!(code, Some(code::STREAM_CREATION_ERROR));
        }
        let (mut sender, mut receiver) = request(&near, &connect("web:80")).await;
        assert_eq!(status(&mut receiver).await, 200);
        let (mut target, _) = listener.accept().await.unwrap();
        let mut bytes = frame(frame::DATA, b"one ");
        bytes.extend(frame(0x1f * 4 + 0x21, b"grease"));
        bytes.extend(frame(frame::DATA, b"two"));
        sender.write_all(&bytes).await.unwrap();
        sender.finish().unwrap();
        let mut came = Vec::new();
        target.read_to_end(&mut came).await.unwrap();
        assert_eq!(came, b"one two");
    })
    .await;
}

/// An entry's connection to an exit that is not a MuxTunnel gateway and has sent its settings.
async fn foreign_exit() -> (Connection, Rc<dyn Mux>, quinn::SendStream) {
    let (near, far) = crate::io::quic::tests::pair(PROTOCOL).await;
    let entry = entry_of(PROTOCOL, near, nowhere());
    far.quic().set_max_concurrent_bi_streams(10_u32.into());
    let control = control(&far).await;
    entry.reached(Progress::Ready).await;
    (far, entry, control)
}

fn answered(status: &str) -> Vec<u8> {
    frame(
        frame::HEADERS,
        &qpack::encode([(":status", status.as_bytes())]),
    )
}

#[tokio::test]
async fn interim_answers_are_passed_over_and_no_error_is_no_cut() {
    in_time(async {
        let (far, entry, _control) = foreign_exit().await;
        let (mut client, _end) = open(&entry, "tcp://web:80").await;
        let (mut sender, mut receiver) = far.quic().accept_bi().await.unwrap();
        let asked = Frames::new(&Rc::default())
            .next(&mut receiver)
            .await
            .unwrap();
        let fields = qpack::decode(&asked.unwrap().body).unwrap();
        let asked = message::request(fields).unwrap();
        assert_eq!(asked, message::Asks::Tunnel("tcp://web:80".to_owned()));
        let mut bytes = answered("103");
        bytes.extend(answered("200"));
        bytes.extend(frame(frame::DATA, b"all there is"));
        sender.write_all(&bytes).await.unwrap();
        sender.finish().unwrap();
        let mut early = [0; 8];
        receiver.read_exact(&mut early).await.unwrap();
        assert_eq!(&early, b"\0\x06early ");
        // Servers stop a stream with NO_ERROR when they need no more bytes from a client.
        receiver.stop(code::NO_ERROR).unwrap();
        let mut came = Vec::new();
        client.read_to_end(&mut came).await.unwrap();
        assert_eq!(came, b"all there is");
        client.shutdown().await.unwrap();
        entry.idle().await;
        assert_eq!(entry.stream_count(), 0);
    })
    .await;
}

#[tokio::test]
async fn requests_that_an_exit_did_not_take_come_back() {
    in_time(async {
        let (far, entry, mut control) = foreign_exit().await;
        let (_client, mut taken) = open(&entry, "tcp://web:80").await;
        let (_sender, _receiver) = far.quic().accept_bi().await.unwrap();
        let (_client, rejected) = open(&entry, "tcp://web:80").await;
        let (mut sender, _receiver) = far.quic().accept_bi().await.unwrap();
        sender.reset(code::REQUEST_REJECTED).unwrap();
        assert!(matches!(rejected.await.unwrap(), OpenEnd::Returned(_)));
        let (_client, reset) = open(&entry, "tcp://web:80").await;
        let (mut sender, _receiver) = far.quic().accept_bi().await.unwrap();
        sender.reset(code::CONNECT_ERROR).unwrap();
        match reset.await.unwrap() {
            OpenEnd::Refused(refusal) => assert!(refusal.description.contains("0x10f")),
            _ => panic!("the open was not refused"),
        }
        // The GOAWAY excludes request number 12, which is the fourth request. The first request
        // continues.
        let (_client, returned) = open(&entry, "tcp://web:80").await;
        let (_other, _receiver) = far.quic().accept_bi().await.unwrap();
        control
            .write_all(&frame(frame::GOAWAY, &[12]))
            .await
            .unwrap();
        assert!(matches!(returned.await.unwrap(), OpenEnd::Returned(_)));
        entry.reached(Progress::GoingAway).await;
        assert!(taken.try_recv().is_err());
        control
            .write_all(&frame(frame::GOAWAY, &[16]))
            .await
            .unwrap();
        assert_eq!(closed(&far).await, code::ID_ERROR);
    })
    .await;
}

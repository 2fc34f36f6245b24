//! Peers that violate or abuse the protocol.

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;

#[tokio::test]
async fn a_client_that_breaks_the_protocol_is_told_by_which_code() {
    let uni = |bytes: &[u8]| (false, bytes.to_vec());
    let bi = |bytes: Vec<u8>| (true, bytes);
    let after = |bytes: &[u8]| uni(&[&[0, 4, 0][..], bytes].concat());
    let headers = |section: &[u8]| bi(frame(frame::HEADERS, section));
    let cases = [
        (uni(&[0, 7, 1, 0]), code::MISSING_SETTINGS),
        (after(&[4, 0]), code::FRAME_UNEXPECTED),
        (after(&[0, 0]), code::FRAME_UNEXPECTED),
        (after(&[1, 0]), code::FRAME_UNEXPECTED),
        (after(&[3, 1, 0]), code::ID_ERROR),
        (after(&[7, 0]), code::FRAME_ERROR),
        (after(&[7, 2, 0, 0]), code::FRAME_ERROR),
        (after(&[5, 0]), code::FRAME_UNEXPECTED),
        (uni(&[0, 4, 2, 2, 0]), code::SETTINGS_ERROR),
        (uni(&[0, 4, 0x80, 0xff, 0xff, 0xff]), code::EXCESSIVE_LOAD),
        (uni(&[1, 0]), code::STREAM_CREATION_ERROR),
        (
            uni(&[2, 0x3f, 0xe1, 0x1f]),
            code::QPACK_ENCODER_STREAM_ERROR,
        ),
        (bi(frame(frame::DATA, b"early")), code::FRAME_UNEXPECTED),
        (bi(frame(frame::SETTINGS, &[])), code::FRAME_UNEXPECTED),
        (bi(frame(0x9, &[])), code::FRAME_UNEXPECTED),
        (headers(&[0, 0, 0x80]), code::QPACK_DECOMPRESSION_FAILED),
        (headers(&[1, 0, 0xc0]), code::QPACK_DECOMPRESSION_FAILED),
        (headers(&[]), code::QPACK_DECOMPRESSION_FAILED),
    ];
    in_time(async {
        for ((is_request, bytes), expected) in cases {
            let (near, exit) = exit_of(PROTOCOL, nowhere()).await;
            let _streams = match is_request {
                true => (None, Some(request(&near, &bytes).await)),
                false => {
                    let mut stream = near.quic().open_uni().await.unwrap();
                    stream.write_all(&bytes).await.unwrap();
                    (Some(stream), None)
                }
            };
            assert_eq!(closed(&near).await, expected, "{bytes:x?}");
            while !exit.has_ended() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn streams_that_the_connection_needs_are_one_each_and_do_not_end() {
    in_time(async {
        for kind in [0, 2, 3] {
            for ends in [false, true] {
                let (near, _exit) = exit_of(PROTOCOL, nowhere()).await;
                let begin: &[u8] = if kind == 0 { &[0, 4, 0] } else { &[kind] };
                let mut first = near.quic().open_uni().await.unwrap();
                first.write_all(begin).await.unwrap();
                let mut second = near.quic().open_uni().await.unwrap();
                let expected = match ends {
                    true => {
                        first.finish().unwrap();
                        code::CLOSED_CRITICAL_STREAM
                    }
                    false => {
                        second.write_all(begin).await.unwrap();
                        code::STREAM_CREATION_ERROR
                    }
                };
                assert_eq!(closed(&near).await, expected, "{kind} {ends}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn an_end_within_a_frame_is_a_cut() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, _exit) = exit_of(PROTOCOL, leads_to(listener.local_addr().unwrap())).await;
        let _control = control(&near).await;
        let (mut sender, mut receiver) = request(&near, &connect("web:80")).await;
        assert_eq!(status(&mut receiver).await, 200);
        let (mut target, _) = listener.accept().await.unwrap();
        sender
            .write_all(&frame(frame::DATA, b"whole"))
            .await
            .unwrap();
        sender
            .write_all(&frame(frame::DATA, b"half of it")[..7])
            .await
            .unwrap();
        sender.finish().unwrap();
        assert_eq!(closed(&near).await, code::FRAME_ERROR);
        let mut came = Vec::new();
        let cut = target.read_to_end(&mut came).await.unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
        assert_eq!(came, b"wholehalf ");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_breaks_the_protocol_is_told_by_which_code() {
    in_time(async {
        for (bytes, expected) in [
            (&[7, 1, 1][..], code::ID_ERROR),
            (&[0xd, 1, 0], code::FRAME_UNEXPECTED),
            (&[3, 1, 0], code::ID_ERROR),
        ] {
            let (far, _entry, mut control) = foreign_exit().await;
            control.write_all(bytes).await.unwrap();
            assert_eq!(closed(&far).await, expected, "{bytes:?}");
        }
        let (far, _entry, _control) = foreign_exit().await;
        let mut push = far.quic().open_uni().await.unwrap();
        push.write_all(&[1, 0]).await.unwrap();
        assert_eq!(closed(&far).await, code::ID_ERROR);
        for bytes in [frame(frame::DATA, b"early"), frame(0x5, &[0, 0, 0])] {
            let (far, entry, _control) = foreign_exit().await;
            let (_client, _end) = open(&entry, "tcp://web:80").await;
            let (mut sender, _receiver) = far.quic().accept_bi().await.unwrap();
            sender.write_all(&bytes).await.unwrap();
            assert_eq!(closed(&far).await, code::FRAME_UNEXPECTED, "{bytes:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn fields_that_never_end_are_bounded_together() {
    in_time(async {
        let (near, _exit) = exit_of(PROTOCOL, nowhere()).await;
        let _control = control(&near).await;
        let mut begun = Vec::new();
        frame::push_head(&mut begun, frame::HEADERS, FIELD_BYTES_MAX);
        let mut streams = Vec::new();
        for _ in 0..frame::READING_MAX / FIELD_BYTES_MAX + 1 {
            streams.push(request(&near, &begun).await);
        }
        assert_eq!(closed(&near).await, code::EXCESSIVE_LOAD);
    })
    .await;
}

/// A stream to a target that answers.
async fn tunnel(
    near: &Connection,
    listener: &TcpListener,
) -> (quinn::SendStream, RecvStream, tokio::net::TcpStream) {
    let (sender, mut receiver) = request(near, &connect("web:80")).await;
    assert_eq!(status(&mut receiver).await, 200);
    let (target, _) = listener.accept().await.unwrap();
    (sender, receiver, target)
}

#[tokio::test]
async fn frames_that_carry_nothing_end_the_connection_where_there_are_too_many() {
    enum On {
        Control,
        Request,
        Tunnel,
    }
    let (empty, grease) = (frame(frame::DATA, &[]), frame(0x21, b"?"));
    let crumbs = [frame(frame::DATA, b"."), grease.clone()].concat();
    in_time(async {
        for (on, bytes) in [
            (On::Tunnel, empty.repeat(1000)),
            (On::Tunnel, grease.repeat(1000)),
            (On::Tunnel, crumbs.repeat(30_000)),
            (On::Request, grease.repeat(1000)),
            (On::Control, grease.repeat(30_000)),
            (On::Control, frame(frame::MAX_PUSH_ID, &[1]).repeat(30_000)),
            (On::Control, frame(frame::GOAWAY, &[0]).repeat(30_000)),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let dials = leads_to(listener.local_addr().unwrap());
            let (near, _exit) = exit_of(PROTOCOL, dials).await;
            let mut control = control(&near).await;
            let (mut streams, mut targets) = (Vec::new(), Vec::new());
            let sender = match on {
                On::Control => &mut control,
                On::Request => {
                    streams.push(request(&near, &[]).await);
                    &mut streams[0].0
                }
                On::Tunnel => {
                    let (sender, receiver, target) = tunnel(&near, &listener).await;
                    targets.push(target);
                    streams.push((sender, receiver));
                    &mut streams[0].0
                }
            };
            // This fails once the connection has ended.
            let _ = sender.write_all(&bytes).await;
            let closed = tokio::time::timeout(Duration::from_secs(10), closed(&near)).await;
            assert_eq!(closed, Ok(code::EXCESSIVE_LOAD), "{:x?}", &bytes[..6]);
        }
    })
    .await;
}

#[tokio::test]
async fn a_few_frames_that_carry_nothing_are_passed_over_for_ever() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, exit) = exit_of(PROTOCOL, leads_to(listener.local_addr().unwrap())).await;
        let mut control = control(&near).await;
        // Some clients send the priority of each request.
        control
            .write_all(&frame(0xf0700, b"\0u=1").repeat(1000))
            .await
            .unwrap();
        let (mut sender, _receiver, mut target) = tunnel(&near, &listener).await;
        for _ in 0..9 {
            let mut bytes = frame(frame::DATA, &[]).repeat(50);
            bytes.extend(frame(0x21, b"?").repeat(50));
            bytes.extend(frame(frame::DATA, b"payload"));
            sender.write_all(&bytes).await.unwrap();
            let mut came = [0; 7];
            target.read_exact(&mut came).await.unwrap();
            assert_eq!(&came, b"payload");
        }
        assert!(!exit.has_ended());
    })
    .await;
}

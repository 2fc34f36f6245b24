//! Entries that send messages that MuxTunnel gateways never send.

use tokio::net::TcpListener;

use super::*;
use crate::io::quic::Connection;
use crate::io::quic::tests::PROTOCOL;
use crate::session::bridge::tests::{exit_of, in_time, leads_to, nowhere};

/// Sends the HELLO of an entry that is not a MuxTunnel gateway.
pub(super) async fn hello(near: &Connection) -> quinn::SendStream {
    let mut control = near.quic().open_uni().await.unwrap();
    let hello = Message::Hello {
        version: 9,
        streams_max: 0,
        packets: false,
    };
    control.write_all(&hello.encode()).await.unwrap();
    control
}

#[tokio::test]
async fn what_is_no_open_is_reset_and_the_session_goes_on() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, exit) = exit_of(PROTOCOL, leads_to(listener.local_addr().unwrap())).await;
        let mut control = hello(&near).await;
        // A message of a later version, which is ignored.
        control.write_all(b"\x63\0\x01?").await.unwrap();
        for bytes in [
            &b"\x03\xff\xff"[..],
            b"\x02\0\0",
            b"\x63\0\0",
            b"\x03\0\x03\0\0\x09",
            b"",
        ] {
            let (mut sender, mut receiver) = near.quic().open_bi().await.unwrap();
            sender.write_all(bytes).await.unwrap();
            if bytes.is_empty() {
                sender.finish().unwrap();
            }
            let cut = receiver.read(&mut [0]).await.unwrap_err();
            assert!(
                matches!(cut, quinn::ReadError::Reset(_)),
                "{bytes:?}: {cut}"
            );
        }
        let (mut sender, mut receiver) = near.quic().open_bi().await.unwrap();
        let open = Message::Open {
            priority: Priority::Auto,
            target: "tcp://web:80".to_owned(),
        };
        // The open arrives in pieces.
        for byte in open.encode() {
            sender.write_all(&[byte]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let mut answer = [0; 1];
        receiver.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, [4]);
        assert!(!exit.has_ended());
    })
    .await;
}

#[tokio::test]
async fn whoever_breaks_the_protocol_on_the_control_stream_is_cut_off() {
    in_time(async {
        for bytes in [
            &b"\x02\0\0"[..],
            b"\x01\0\x05\x01\0\0\0\0\x03\0\x03\0\0\0",
            b"\x01\xff\xff",
        ] {
            let (near, exit) = exit_of(PROTOCOL, nowhere()).await;
            let mut control = near.quic().open_uni().await.unwrap();
            control.write_all(bytes).await.unwrap();
            let ConnectionError::ApplicationClosed(close) = near.quic().closed().await else {
                panic!("{bytes:?}");
            };
            assert_eq!(close.error_code, CloseCode::Violation.into(), "{bytes:?}");
            while !exit.has_ended() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn messages_that_say_nothing_end_the_connection_where_there_are_too_many() {
    in_time(async {
        for message in [&b"\x63\0\0"[..], b"\x02\0\0"] {
            let (near, _exit) = exit_of(PROTOCOL, nowhere()).await;
            let mut control = hello(&near).await;
            // This fails once the connection has ended.
            let _ = control.write_all(&message.repeat(30_000)).await;
            let closed = tokio::time::timeout(Duration::from_secs(10), near.quic().closed());
            let Ok(ConnectionError::ApplicationClosed(close)) = closed.await else {
                panic!("{message:?}");
            };
            assert_eq!(close.error_code, CloseCode::Violation.into());
        }
    })
    .await;
}

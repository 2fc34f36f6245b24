//! Two sessions over one connection, and an entry that says what none says.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::LocalSet;

use muxtunnel_testkit::socket::pair;

use super::*;
use crate::base::telemetry::Telemetry;
use crate::ingress::listener::answer::Answer;
use crate::io::carrier::Carrier;
use crate::io::local_socket::LocalSocket;
use crate::io::quic::Connection;
use crate::io::quic::tests as quic;
use crate::net::dial::Dialled;
use crate::session::mux::{Dial, Dialler, Mux, OpenEnd, Progress};
use crate::session::new_session::{self, Context};
use crate::stream::account::Local as LocalIs;
use crate::stream::early_data::Connection as Client;

fn context(protocol: &str, role: &str) -> Context {
    let config = quic::config(protocol, role);
    Context {
        telemetry: Telemetry::new(&config, "", 1, None),
        reloadable: watch::channel(Arc::new(config.reloadable())).1,
        config: config.session(),
        buffers: Rc::default(),
    }
}

fn run(mux: &Rc<dyn Mux>, connection: Connection) {
    let carriers = mux.carriers().unwrap();
    let added = carriers.add(Carrier::Quic(connection), Vec::new(), None);
    drop(added.unwrap());
    let mux = Rc::clone(mux);
    tokio::task::spawn_local(async move { mux.run().await });
}

/// An exit that dials as `dials` says, and a connection to it.
pub(super) async fn exit(dials: Dialler) -> (Connection, Rc<dyn Mux>) {
    exit_of(quic::PROTOCOL, dials).await
}

/// The same of another protocol on QUIC.
pub(crate) async fn exit_of(protocol: &str, dials: Dialler) -> (Connection, Rc<dyn Mux>) {
    let context = context(protocol, quic::EXIT);
    let exit = new_session::accept(context, new_session::identity(0), dials);
    let (near, far) = quic::pair(protocol).await;
    run(&exit, far);
    (near, exit)
}

/// Nothing is ever reached.
pub(crate) fn nowhere() -> Dialler {
    Box::new(|_, _, _| -> Dial { Box::pin(std::future::pending()) })
}

/// Both ends of a session.
async fn sessions(dials: Dialler) -> (Rc<dyn Mux>, Rc<dyn Mux>) {
    sessions_both(nowhere(), dials).await
}

/// Both ends of a session, the entry's first.
pub(super) async fn sessions_both(
    entry_dials: Dialler,
    exit_dials: Dialler,
) -> (Rc<dyn Mux>, Rc<dyn Mux>) {
    sessions_of(quic::PROTOCOL, entry_dials, exit_dials).await
}

/// The same of another protocol on QUIC.
pub(crate) async fn sessions_of(
    protocol: &str,
    entry_dials: Dialler,
    exit_dials: Dialler,
) -> (Rc<dyn Mux>, Rc<dyn Mux>) {
    let (near, exit) = exit_of(protocol, exit_dials).await;
    let entry = entry_of(protocol, near, entry_dials);
    entry.reached(Progress::Ready).await;
    (entry, exit)
}

/// An entry of another protocol on QUIC.
pub(crate) fn entry_of(protocol: &str, near: Connection, dials: Dialler) -> Rc<dyn Mux> {
    let entry = new_session::dial(context(protocol, quic::ENTRY), dials);
    run(&entry, near);
    entry
}

/// A dialler all of whose targets are at `address`.
pub(crate) fn leads_to(address: SocketAddr) -> Dialler {
    Box::new(move |target, _, _| -> Dial {
        Box::pin(async move {
            if !target.starts_with("tcp://web:") {
                let text = format!("{target} is denied");
                return Err(Refusal::new(Reason::NotAllowed, text));
            }
            let tcp = TcpStream::connect(address).await.unwrap();
            Ok(Dialled {
                socket: Box::new(LocalSocket::from(tcp)),
                address: address.into(),
                admission: None,
                url: None,
            })
        })
    })
}

/// Opens a stream; its client, and what comes of it where it comes to nothing.
pub(crate) async fn open(
    mux: &Rc<dyn Mux>,
    target: &str,
) -> (TcpStream, oneshot::Receiver<OpenEnd>) {
    let (socket, client) = pair().await;
    let (tell, end) = oneshot::channel();
    let connection = Client {
        socket: Box::new(LocalSocket::from(socket)),
        local: LocalIs::Own {
            target: target.into(),
            ended: RefCell::default(),
        },
        early: b"early ".to_vec(),
        answer: Answer::None,
        source: None,
    };
    let refused = Box::new(move |end| drop(tell.send(end)));
    let opened = mux.open(target, Priority::Interactive, connection, refused);
    assert!(opened.is_ok());
    (client, end)
}

pub(crate) async fn in_time(test: impl Future<Output = ()>) {
    let tasks = LocalSet::new();
    let in_time = tokio::time::timeout(Duration::from_secs(60), tasks.run_until(test));
    in_time.await.unwrap();
}

#[tokio::test]
async fn each_half_ends_by_itself_behind_all_of_its_bytes() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (entry, _exit) = sessions(leads_to(listener.local_addr().unwrap())).await;
        let (mut client, _end) = open(&entry, "tcp://web:80").await;
        let (mut target, _) = listener.accept().await.unwrap();
        let sent: Vec<u8> = (0..3_000_000_u32)
            .map(|number| (number % 251) as u8)
            .collect();
        let (mut from, mut to) = client.split();
        let request = async {
            to.write_all(&sent).await.unwrap();
            to.shutdown().await.unwrap();
        };
        let served = async {
            let mut came = Vec::new();
            target.read_to_end(&mut came).await.unwrap();
            assert_eq!(&came[..6], b"early ");
            assert!(came[6..] == sent);
            target.write_all(&came).await.unwrap();
            target.shutdown().await.unwrap();
        };
        let mut answer = Vec::new();
        let answered = async {
            from.read_to_end(&mut answer).await.unwrap();
        };
        tokio::join!(request, served, answered);
        assert!(answer[6..] == sent);
        entry.idle().await;
        assert_eq!(entry.stream_count(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_refusal_arrives_with_its_class_and_its_words_and_the_session_goes_on() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (entry, _exit) = sessions(leads_to(listener.local_addr().unwrap())).await;
        let (_client, end) = open(&entry, "tcp://db:5432").await;
        let text = "tcp://db:5432 is denied";
        match end.await.unwrap() {
            OpenEnd::Refused(refusal) => {
                assert_eq!(refusal, Refusal::new(Reason::NotAllowed, text));
            }
            _ => panic!("it was not refused"),
        }
        let (_client, _end) = open(&entry, "tcp://web:80").await;
        listener.accept().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_target_that_resets_resets_the_client_behind_what_it_sent() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (entry, _exit) = sessions(leads_to(listener.local_addr().unwrap())).await;
        let (mut client, _end) = open(&entry, "tcp://web:80").await;
        let (mut target, _) = listener.accept().await.unwrap();
        target.read_exact(&mut [0; 6]).await.unwrap();
        let half = vec![7; 1 << 20];
        target.write_all(&half).await.unwrap();
        target.set_zero_linger().unwrap();
        let mut came = vec![0; half.len()];
        client.read_exact(&mut came).await.unwrap();
        drop(target);
        let cut = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
    })
    .await;
}

/// Nothing but the reset of the exit's half tells it from an end.
#[tokio::test]
async fn a_target_that_resets_behind_the_end_of_its_client_resets_it_all_the_same() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (entry, _exit) = sessions(leads_to(listener.local_addr().unwrap())).await;
        let (mut client, _end) = open(&entry, "tcp://web:80").await;
        let (mut target, _) = listener.accept().await.unwrap();
        client.shutdown().await.unwrap();
        let mut said = Vec::new();
        target.read_to_end(&mut said).await.unwrap();
        target.write_all(b"half").await.unwrap();
        client.read_exact(&mut [0; 4]).await.unwrap();
        target.set_zero_linger().unwrap();
        drop(target);
        let cut = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
    })
    .await;
}

#[tokio::test]
async fn an_exit_that_goes_away_lets_streams_end_and_takes_no_more() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (entry, exit) = sessions(leads_to(listener.local_addr().unwrap())).await;
        let (mut client, _end) = open(&entry, "tcp://web:80").await;
        let (mut target, _) = listener.accept().await.unwrap();
        exit.go_away();
        entry.reached(Progress::GoingAway).await;
        client.write_all(b"late").await.unwrap();
        client.shutdown().await.unwrap();
        let mut late = Vec::new();
        target.read_to_end(&mut late).await.unwrap();
        assert_eq!(late, b"early late");
        drop(target);
        client.read_to_end(&mut late).await.unwrap();
        exit.idle().await;
    })
    .await;
}

#[tokio::test]
async fn an_open_that_an_exit_did_not_answer_before_it_ended_comes_back_as_it_was() {
    in_time(async {
        // It dials for ever.
        let dials = Box::new(|_, _, _| -> Dial { Box::pin(std::future::pending()) });
        let (entry, exit) = sessions(dials).await;
        let (_client, end) = open(&entry, "tcp://web:80").await;
        while exit.stream_count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        exit.shut_down();
        match end.await.unwrap() {
            OpenEnd::Returned(client) => assert_eq!(client.early, b"early "),
            OpenEnd::Refused(refusal) => panic!("{refusal:?}"),
            OpenEnd::Abandoned => panic!("it is lost"),
        }
    })
    .await;
}

/// Says hello as an entry that is no gateway of ours.
pub(super) async fn hello(near: &Connection) -> quinn::SendStream {
    let mut control = near.quic().open_uni().await.unwrap();
    let hello = Message::Hello {
        version: 9,
        streams_max: 0,
    };
    control.write_all(&hello.encode()).await.unwrap();
    control
}

#[tokio::test]
async fn what_is_no_open_is_reset_and_the_session_goes_on() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, exit) = exit(leads_to(listener.local_addr().unwrap())).await;
        let mut control = hello(&near).await;
        // Of a later version, which this one passes over.
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
        // In pieces.
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
            let dials = Box::new(|_, _, _| -> Dial { Box::pin(std::future::pending()) });
            let (near, exit) = exit(dials).await;
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
            let (near, _exit) = exit(nowhere()).await;
            let mut control = hello(&near).await;
            // It fails once the connection has ended.
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

#[tokio::test]
async fn streams_that_nobody_reads_hold_no_buffers_and_hold_up_no_other() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (entry, _exit) = sessions(leads_to(listener.local_addr().unwrap())).await;
        let mut stalled = Vec::new();
        for _ in 0..7 {
            let (client, _end) = open(&entry, "tcp://web:80").await;
            let (target, _) = listener.accept().await.unwrap();
            client.set_nodelay(true).unwrap();
            stalled.push((client, target));
        }
        let flood = vec![1; 1 << 20];
        for (client, _) in &stalled {
            // Until nothing has gone for a while.
            while tokio::time::timeout(Duration::from_millis(150), client.writable())
                .await
                .is_ok()
            {
                let _ = client.try_write(&flood);
            }
        }
        let (mut client, _end) = open(&entry, "tcp://web:80").await;
        let (mut target, _) = listener.accept().await.unwrap();
        client.write_all(b"small").await.unwrap();
        let mut came = [0; 11];
        target.read_exact(&mut came).await.unwrap();
        assert_eq!(&came, b"early small");
    })
    .await;
}

//! Two sessions over one connection. Each protocol with its own streams runs the same cases.

use std::cell::RefCell;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use muxtunnel_gateway_config::{Config, Memory};
use muxtunnel_proto::{Priority, Reason, Refusal, Source};
use muxtunnel_testkit::socket::pair;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::LocalSet;

use crate::base::closing::Reason as Closing;
use crate::base::forward::Admission;
use crate::base::memory_budget::MemoryBudget;
use crate::base::path::PathInfo;
use crate::base::telemetry::Telemetry;
use crate::ingress::listener::answer::Answer;
use crate::io::carrier::Carrier;
use crate::io::duplex::Duplex;
use crate::io::local_end::LocalEnd;
use crate::io::local_socket::LocalSocket;
use crate::io::quic::{Connection, tests as ends};
use crate::io::socket::Keepalive;
use crate::io::transport::Tcp;
use crate::net::dial::Dialled;
use crate::session::context::Context;
use crate::session::end::SessionEnd;
use crate::session::mux::{Dial, Dialler, Mux, OpenEnd, Progress};
use crate::session::new_session;
use crate::stream::account::Local as LocalIs;
use crate::stream::early_data::Connection as Client;

fn context(protocol: &str, role: &str) -> Context {
    let config = match protocol {
        "HTTP2" => {
            let text = format!("{role}\nprotocol: HTTP2\nsecurity: {{mode: None}}\n");
            Config::from_yaml(&text).unwrap()
        }
        _ => ends::config(protocol, role),
    };
    Context {
        memory: (MemoryBudget::of(None), 1),
        telemetry: Telemetry::new(&config, "", 1, None),
        reloadable: watch::channel(Arc::new(config.reloadable())).1,
        config: config.session(),
        buffers: Rc::default(),
    }
}

fn run(mux: &Rc<dyn Mux>, carrier: Carrier) {
    let carriers = mux.carriers().unwrap();
    drop(carriers.add(carrier, Vec::new(), None).unwrap());
    let mux = Rc::clone(mux);
    tokio::task::spawn_local(async move { mux.run().await });
}

fn exit(protocol: &str, carrier: Carrier, dials: Dialler) -> Rc<dyn Mux> {
    let context = context(protocol, ends::EXIT);
    let exit = new_session::accept(context, new_session::identity(0), dials);
    run(&exit, carrier);
    exit
}

fn entry(protocol: &str, carrier: Carrier, dials: Dialler) -> Rc<dyn Mux> {
    let entry = new_session::dial(context(protocol, ends::ENTRY), dials);
    run(&entry, carrier);
    entry
}

/// An exit that uses `dials` and a protocol on QUIC, and a connection to that exit.
pub(crate) async fn exit_of(protocol: &str, dials: Dialler) -> (Connection, Rc<dyn Mux>) {
    let (near, far) = ends::pair(protocol).await;
    (near, exit(protocol, Carrier::Quic(far), dials))
}

/// An entry that uses a protocol on QUIC.
pub(crate) fn entry_of(protocol: &str, near: Connection, dials: Dialler) -> Rc<dyn Mux> {
    entry(protocol, Carrier::Quic(near), dials)
}

/// Both ends of a carrier.
async fn carriers(protocol: &str) -> (Carrier, Carrier) {
    match protocol {
        "HTTP2" => {
            let (near, far) = pair().await;
            (Tcp::boxed(near).into(), Tcp::boxed(far).into())
        }
        _ => {
            let (near, far) = ends::pair(protocol).await;
            (Carrier::Quic(near), Carrier::Quic(far))
        }
    }
}

/// Both ends of a session, the entry first.
pub(crate) async fn sessions_of(
    protocol: &str,
    entry_dials: Dialler,
    exit_dials: Dialler,
) -> (Rc<dyn Mux>, Rc<dyn Mux>) {
    let (near, far) = carriers(protocol).await;
    let exit = exit(protocol, far, exit_dials);
    let entry = entry(protocol, near, entry_dials);
    entry.reached(Progress::Ready).await;
    (entry, exit)
}

/// A dialler that never completes.
pub(crate) fn nowhere() -> Dialler {
    Box::new(|_, _, _| -> Dial { Box::pin(std::future::pending()) })
}

/// A dialler that reaches the targets of host `web` at `address`, and refuses all other targets.
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
                admission: Admission::default(),
                url: None,
            })
        })
    })
}

/// Opens a stream; returns its client, and a channel with the reason if the open fails.
pub(crate) async fn open(
    mux: &Rc<dyn Mux>,
    target: &str,
) -> (TcpStream, oneshot::Receiver<OpenEnd>) {
    let (socket, client) = pair().await;
    let (tell, end) = oneshot::channel();
    let connection = Client {
        socket: Box::new(LocalSocket::from(socket)),
        local: LocalIs::of_client(target, RefCell::default()),
        early: b"early ".to_vec(),
        answer: Answer::None,
        source: None,
        has_next: false,
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

/// Defines one test for each case and protocol (`PROTOCOL::CASE`), and further cases for the
/// protocols on QUIC.
macro_rules! cases {
    ($($case:ident)+; $($on_quic:ident)+) => {
        cases!(http2 "HTTP2" $($case)+);
        cases!(http3 "HTTP3" $($case)+ $($on_quic)+);
        cases!(quic "QUIC" $($case)+ $($on_quic)+);
    };
    ($module:ident $protocol:literal $($case:ident)+) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $case() {
                    super::in_time(super::$case($protocol)).await;
                }
            )+
        }
    };
}

cases! {
    what_was_read_of_a_client_before_comes_first_and_each_half_ends_by_itself
    each_half_ends_by_itself_behind_all_of_its_bytes
    a_refusal_arrives_with_its_class_and_its_words_and_the_session_goes_on
    a_target_that_resets_resets_the_client_behind_what_it_sent
    a_target_that_resets_behind_the_end_of_its_client_resets_it_all_the_same
    an_exit_that_goes_away_lets_streams_end_and_takes_no_more
    streams_that_nobody_reads_hold_no_buffers_and_hold_up_no_other
    a_panic_of_a_stream_ends_its_session_and_leaves_no_open_stream;
    an_open_that_an_exit_did_not_answer_before_it_ended_comes_back_as_it_was
}

/// Both ends of a session, and the listener that the exit dials for each target.
async fn sessions(protocol: &str) -> (Rc<dyn Mux>, Rc<dyn Mux>, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dials = leads_to(listener.local_addr().unwrap());
    let (entry, exit) = sessions_of(protocol, nowhere(), dials).await;
    (entry, exit, listener)
}

/// Each connection has windows of its own.
#[tokio::test]
async fn each_connection_draws_its_part_of_the_memory_and_returns_it() {
    in_time(async {
        let budget = MemoryBudget::of(Some(64 << 20));
        let context = Context {
            memory: (Arc::clone(&budget), 4),
            ..context("HTTP2", ends::ENTRY)
        };
        let entry = new_session::dial(context, nowhere());
        // A session beyond the expected number gets half of what is left.
        let half = || budget.draw(Memory::default(), 1).0.receive.0 >> 20;
        let ((near, far), (second, its_far)) = (carriers("HTTP2").await, carriers("HTTP2").await);
        let exits = [far, its_far].map(|far| exit("HTTP2", far, nowhere()));
        run(&entry, near);
        assert_eq!(half(), 12, "of 24 MiB");
        drop(
            entry
                .carriers()
                .unwrap()
                .add(second, Vec::new(), None)
                .unwrap(),
        );
        assert_eq!(half(), 8, "of 16 MiB");
        exits[0].shut_down();
        while half() != 12 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn what_was_read_of_a_client_before_comes_first_and_each_half_ends_by_itself(protocol: &str) {
    let (entry, _exit, listener) = sessions(protocol).await;
    let (mut client, _end) = open(&entry, "tcp://web:80").await;
    client.write_all(b"request").await.unwrap();
    client.shutdown().await.unwrap();
    let (mut target, _) = listener.accept().await.unwrap();
    let mut request = Vec::new();
    target.read_to_end(&mut request).await.unwrap();
    assert_eq!(request, b"early request");
    target.write_all(b"answer").await.unwrap();
    drop(target);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"answer");
    entry.idle().await;
    assert_eq!(entry.stream_count(), 0);
}

async fn each_half_ends_by_itself_behind_all_of_its_bytes(protocol: &str) {
    let (entry, _exit, listener) = sessions(protocol).await;
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
}

async fn a_refusal_arrives_with_its_class_and_its_words_and_the_session_goes_on(protocol: &str) {
    let (entry, _exit, listener) = sessions(protocol).await;
    let (_client, end) = open(&entry, "tcp://db:5432").await;
    let expected = Refusal::new(Reason::NotAllowed, "tcp://db:5432 is denied");
    match end.await.unwrap() {
        OpenEnd::Refused(refusal) => assert_eq!(refusal, expected),
        _ => panic!("the open was not refused"),
    }
    let (_client, _end) = open(&entry, "tcp://web:80").await;
    listener.accept().await.unwrap();
}

async fn a_target_that_resets_resets_the_client_behind_what_it_sent(protocol: &str) {
    let (entry, _exit, listener) = sessions(protocol).await;
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
}

/// The client has already ended its half, so a reset and an end of the target both end the stream.
/// Only a reset of the exit's half tells the entry that the target reset its connection.
async fn a_target_that_resets_behind_the_end_of_its_client_resets_it_all_the_same(protocol: &str) {
    let (entry, _exit, listener) = sessions(protocol).await;
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
}

async fn an_exit_that_goes_away_lets_streams_end_and_takes_no_more(protocol: &str) {
    let (entry, exit, listener) = sessions(protocol).await;
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
}

/// This case runs only with the protocols on QUIC, since HTTP/2 would refuse the open. The library
/// of HTTP/2 resets a dropped stream with CANCEL, which does not tell whether the peer processed
/// the request.
async fn an_open_that_an_exit_did_not_answer_before_it_ended_comes_back_as_it_was(protocol: &str) {
    let (entry, exit) = sessions_of(protocol, nowhere(), nowhere()).await;
    let (_client, end) = open(&entry, "tcp://web:80").await;
    while exit.stream_count() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    exit.shut_down();
    match end.await.unwrap() {
        OpenEnd::Returned(client) => assert_eq!(client.early, b"early "),
        OpenEnd::Refused(refusal) | OpenEnd::Failed(refusal, _) => panic!("{refusal:?}"),
        OpenEnd::Abandoned => panic!("the connection is lost"),
    }
}

async fn streams_that_nobody_reads_hold_no_buffers_and_hold_up_no_other(protocol: &str) {
    let (entry, _exit, listener) = sessions(protocol).await;
    let mut stalled = Vec::new();
    for _ in 0..7 {
        let (client, _end) = open(&entry, "tcp://web:80").await;
        let (target, _) = listener.accept().await.unwrap();
        client.set_nodelay(true).unwrap();
        stalled.push((client, target));
    }
    let flood = vec![1; 1 << 20];
    for (client, _) in &stalled {
        // Write until the client's socket has taken nothing for 150 ms.
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
}

/// A target's connection whose first read causes a panic.
#[derive(Debug)]
struct Faulty(LocalSocket);

impl Duplex for Faulty {
    fn poll_readable(&self, _: &mut std::task::Context<'_>) -> Poll<std::io::Result<()>> {
        std::panic::panic_any("a fault of a stream".to_owned());
    }

    fn poll_writable(&self, context: &mut std::task::Context<'_>) -> Poll<std::io::Result<()>> {
        self.0.poll_writable(context)
    }

    fn try_read(&self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0.try_read(bytes)
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> std::io::Result<usize> {
        self.0.try_write(slices)
    }

    fn finish(&self) -> std::io::Result<()> {
        self.0.finish()
    }
}

impl LocalEnd for Faulty {
    fn try_read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> std::io::Result<usize> {
        self.0.try_read_vectored(slices)
    }

    fn unread(&self) -> u64 {
        self.0.unread()
    }

    fn send_at_once(&self, bytes: &[u8]) -> bool {
        self.0.send_at_once(bytes)
    }

    fn failed(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        self.0.failed()
    }

    fn take_failure(&self) -> std::io::Error {
        self.0.take_failure()
    }

    fn end_in_order(&self) {
        LocalEnd::end_in_order(&self.0);
    }

    fn set_keepalive(&self, keepalive: Option<Keepalive>) {
        self.0.set_keepalive(keepalive);
    }

    fn unacknowledged(&self) -> Option<PathInfo> {
        self.0.unacknowledged()
    }

    fn plain(&self) -> Option<&LocalSocket> {
        None
    }

    fn source(&self) -> Source {
        self.0.source()
    }
}

#[tokio::test]
async fn a_panic_of_a_link_ends_its_session_and_leaves_no_link() {
    for protocol in ["HTTP2", "QUIC"] {
        in_time(a_link_panics(protocol)).await;
    }
}

async fn a_link_panics(protocol: &str) {
    let (near, far) = carriers(protocol).await;
    let context = context(protocol, ends::EXIT);
    let telemetry = Arc::clone(&context.telemetry);
    let exit = new_session::accept(context, new_session::identity(0), nowhere());
    let carriers = exit.carriers().unwrap();
    drop(carriers.add(far, Vec::new(), None).unwrap());
    let listeners = exit.listeners().unwrap();
    listeners.hear(Box::new(|event| panic!("{event:?}")));
    let entry = entry(protocol, near, nowhere());
    let asks = async {
        entry.reached(Progress::Ready).await;
        let listeners = entry.listeners().unwrap();
        listeners.listen("127.0.0.1:1", Priority::Auto).unwrap()
    };
    let (ended, _listen) = tokio::join!(exit.run(), asks);
    assert!(matches!(ended, SessionEnd::Panicked), "{ended}");
    assert_eq!(
        (carriers.figures().len(), telemetry.session_panics.get()),
        (0, 1)
    );
}

async fn a_panic_of_a_stream_ends_its_session_and_leaves_no_open_stream(protocol: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let dials: Dialler = Box::new(move |_, _, _| -> Dial {
        Box::pin(async move {
            let tcp = TcpStream::connect(address).await.unwrap();
            Ok(Dialled {
                socket: Box::new(Faulty(LocalSocket::from(tcp))),
                address: address.into(),
                admission: Admission::default(),
                url: None,
            })
        })
    });
    let (near, far) = carriers(protocol).await;
    let context = context(protocol, ends::EXIT);
    let telemetry = Arc::clone(&context.telemetry);
    let exit = new_session::accept(context, new_session::identity(0), dials);
    let carriers = exit.carriers().unwrap();
    drop(carriers.add(far, Vec::new(), None).unwrap());
    let entry = entry(protocol, near, nowhere());
    let asks = async {
        entry.reached(Progress::Ready).await;
        open(&entry, "tcp://web:80").await
    };
    let (ended, _client) = tokio::join!(exit.run(), asks);
    assert!(matches!(ended, SessionEnd::Panicked), "{ended}");
    exit.streams_gone(Duration::from_secs(3)).await;
    assert_eq!(
        (exit.stream_count(), telemetry.session_panics.get()),
        (0, 1)
    );
    let streams = telemetry.streams.status();
    assert_eq!((streams.opened, streams.open), (1, 0));
    assert_eq!(streams.closed[Closing::Fault.label()], 1);
}

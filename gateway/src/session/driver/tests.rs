//! One driver against a simulated peer. The tests cover batches that the session retransmits
//! without a lost carrier. The tests also cover clients that leave, or have a rate limit, while
//! their session stalls.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use muxtunnel_gateway_config::{BitRate, Limits};
use muxtunnel_proto::native::codec::{self, Decoded, Frame, HEADER_BYTES, HelloAck, Parameters};
use muxtunnel_proto::{
    CarrierId, CreditView, FrameHeader, Header, NativeConfig, NativeSession, Payload, Pool,
    Priority, Receive, Refusal, ResetCode, SendCapacity, SessionError, Source, StreamId, Token,
    Transmit,
};
use muxtunnel_testkit::socket::pair;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::{JoinHandle, LocalSet};

use super::*;
use crate::base::forward::{Admission, Forwards};
use crate::base::memory_budget::MemoryBudget;
use crate::ingress::listener::answer::Answer;
use crate::io::duplex::Duplex;
use crate::io::local_socket::LocalSocket;
use crate::io::transport::{Detached, Path, Tcp, Transport, Unix};
use crate::session::mux::{NoCarrier, OpenEnd};
use crate::stream::account::Local;

/// State that a test shares with its session.
#[derive(Debug, Default)]
struct Wishes {
    sent: Vec<(FrameHeader, Payload)>,
    again: VecDeque<(FrameHeader, Payload)>,
    released: VecDeque<Token>,
    /// Whether the next header causes a panic.
    panics: bool,
}

/// A native session that retains all sent payload, and transmits it again when a test requests
/// this.
#[derive(Debug)]
struct Forgetful {
    inner: NativeSession,
    wishes: Rc<RefCell<Wishes>>,
}

impl Session for Forgetful {
    fn poll_transmit(&mut self, carrier: CarrierId) -> Option<Transmit> {
        let mut wishes = self.wishes.borrow_mut();
        if let Some((header, payload)) = wishes.again.pop_front() {
            return Some(Transmit::Again {
                carrier,
                header,
                payload,
            });
        }
        let mut transmit = self.inner.poll_transmit(carrier);
        if let Some(Transmit::Data {
            header, payload, ..
        }) = &mut transmit
        {
            payload.retained = true;
            wishes.sent.push((*header, payload.clone()));
        }
        transmit
    }

    fn wants_transmit(&self, carrier: CarrierId) -> bool {
        !self.wishes.borrow().again.is_empty() || self.inner.wants_transmit(carrier)
    }

    fn poll_released(&mut self) -> Option<Token> {
        self.wishes.borrow_mut().released.pop_front()
    }

    fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }

    fn pool(&mut self) -> Option<&mut dyn Pool> {
        self.inner.pool()
    }

    fn is_retired(&self, carrier: CarrierId) -> bool {
        self.inner.is_retired(carrier)
    }

    fn takes_bulk(&self, carrier: CarrierId) -> bool {
        self.inner.takes_bulk(carrier)
    }

    fn open(
        &mut self,
        now: Instant,
        target: &str,
        priority: Priority,
        source: Option<Source>,
    ) -> Result<StreamId, OpenError> {
        self.inner.open(now, target, priority, source)
    }

    fn accept(&mut self, stream: StreamId, address: &str) {
        self.inner.accept(stream, address);
    }

    fn refuse(&mut self, stream: StreamId, refusal: Refusal) {
        self.inner.refuse(stream, refusal);
    }

    fn send_capacity(&self, stream: StreamId) -> Option<SendCapacity> {
        self.inner.send_capacity(stream)
    }

    fn want_credit(&mut self, stream: StreamId) {
        self.inner.want_credit(stream);
    }

    fn source_ready(&mut self, stream: StreamId, length: usize, held: usize, token: Token) {
        self.inner.source_ready(stream, length, held, token);
    }

    fn sink_took(&mut self, now: Instant, stream: StreamId, length: usize) {
        self.inner.sink_took(now, stream, length);
    }

    fn finish(&mut self, stream: StreamId) {
        self.inner.finish(stream);
    }

    fn reset(&mut self, stream: StreamId, code: ResetCode) {
        self.inner.reset(stream, code);
    }

    fn go_away(&mut self) {
        self.inner.go_away();
    }

    fn shut_down(&mut self) {
        self.inner.shut_down();
    }

    fn close(&mut self, error: &SessionError) {
        self.inner.close(error);
    }

    fn handle_header(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        bytes: &[u8],
    ) -> Result<Header, SessionError> {
        assert!(!self.wishes.borrow().panics, "a fault of the session");
        self.inner.handle_header(now, carrier, bytes)
    }

    fn receiving(&self, carrier: CarrierId) -> Option<Receive> {
        self.inner.receiving(carrier)
    }

    fn payload_moved(&mut self, carrier: CarrierId, length: usize) {
        self.inner.payload_moved(carrier, length);
    }

    fn handle_rtt(&mut self, carrier: CarrierId, rtt: Duration) {
        self.inner.handle_rtt(carrier, rtt);
    }

    fn probe(&mut self, carrier: CarrierId) -> bool {
        self.inner.probe(carrier)
    }

    fn handle_carrier_blocked(&mut self, carrier: CarrierId) {
        self.inner.handle_carrier_blocked(carrier);
    }

    fn handle_carrier_lost(&mut self, now: Instant, carrier: CarrierId) {
        self.inner.handle_carrier_lost(now, carrier);
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionError> {
        self.inner.handle_timeout(now)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn poll_event(&mut self) -> Option<muxtunnel_proto::Event> {
        self.inner.poll_event()
    }

    fn is_settled(&self) -> bool {
        self.inner.is_settled()
    }

    fn stream_count(&self) -> usize {
        self.inner.stream_count()
    }

    fn streams(&self) -> Vec<StreamId> {
        self.inner.streams()
    }

    fn receive_budget_used(&self) -> u64 {
        self.inner.receive_budget_used()
    }

    fn retained_bytes(&self) -> u64 {
        self.inner.retained_bytes()
    }

    fn credit(&self, stream: StreamId) -> Option<CreditView> {
        self.inner.credit(stream)
    }
}

/// The next frame on `tcp`, with its payload.
async fn frame(tcp: &mut (impl AsyncRead + Unpin)) -> (Decoded, Vec<u8>) {
    let mut bytes = Vec::new();
    loop {
        let needed = match codec::decode(&bytes).unwrap() {
            Decoded::Incomplete { needed } => needed,
            Decoded::Stream { length, .. } if bytes.len() < HEADER_BYTES + length as usize => {
                HEADER_BYTES + length as usize
            }
            whole => return (whole, bytes.split_off(bytes.len().min(HEADER_BYTES))),
        };
        let filled = bytes.len();
        bytes.resize(needed, 0);
        tcp.read_exact(&mut bytes[filled..]).await.unwrap();
    }
}

async fn payload(tcp: &mut TcpStream) -> Vec<u8> {
    loop {
        if let (Decoded::Stream { .. }, payload) = frame(tcp).await {
            return payload;
        }
    }
}

async fn established(wishes: &Rc<RefCell<Wishes>>) -> (Rc<Driver>, TcpStream) {
    established_with(wishes, 1 << 20).await
}

/// A session whose peer grants `credit` bytes to the session and to each stream.
async fn established_with(wishes: &Rc<RefCell<Wishes>>, credit: u64) -> (Rc<Driver>, TcpStream) {
    agreed(wishes, Rc::default(), parameters(credit)).await
}

/// Parameters of a peer that grants `credit` bytes to the session and to each stream.
const fn parameters(credit: u64) -> Parameters {
    Parameters {
        initial_max_data: credit,
        initial_max_stream_data: credit,
        initial_max_streams: 1,
        frame_max: codec::FRAME_BYTES_MIN,
    }
}

/// A session whose peer announces `parameters`.
async fn agreed(
    wishes: &Rc<RefCell<Wishes>>,
    buffers: Rc<super::Pool>,
    parameters: Parameters,
) -> (Rc<Driver>, TcpStream) {
    let (near, mut far) = pair().await;
    let carrier = (Tcp::boxed(near), &mut far);
    let (driver, _) = agreed_on(carrier, wishes, buffers, parameters).await;
    (driver, far)
}

/// Works as [`agreed`], on a given carrier.
async fn agreed_on<Far: AsyncRead + AsyncWrite + Unpin>(
    (near, far): (Box<dyn Transport>, &mut Far),
    wishes: &Rc<RefCell<Wishes>>,
    buffers: Rc<super::Pool>,
    parameters: Parameters,
) -> (Rc<Driver>, JoinHandle<SessionEnd>) {
    let inner = NativeSession::dial(NativeConfig::default(), Instant::now());
    let wishes = Rc::clone(wishes);
    let yaml = "role: Entry\nprotocol: Native\nsecurity: {mode: None}\nconnect:\n- name: far\n  address: far:1\n";
    let config = muxtunnel_gateway_config::Config::from_yaml(yaml).unwrap();
    let telemetry = Telemetry::new(&config, "", 1, None);
    let driver = Driver::new(
        Box::new(Forgetful { inner, wishes }),
        buffers,
        (
            config.session(),
            watch::channel(Arc::new(config.reloadable())).1,
            MemoryBudget::of(None).draw(config.memory, 1).1,
        ),
        telemetry,
        Box::new(|_, _, _| Box::pin(std::future::pending())),
    );
    driver.add_carrier(near, Vec::new(), None).unwrap();
    let running = Rc::clone(&driver);
    let runs = tokio::task::spawn_local(async move { running.run().await });
    frame(far).await;
    let answer = Frame::HelloAck(HelloAck {
        version: codec::VERSION,
        features: 0,
        session_id: [1; 16],
        token: [1; 32],
        parameters,
    });
    far.write_all(&codec::encode(&answer)).await.unwrap();
    driver.reached(Progress::Ready).await;
    (driver, runs)
}

/// A client's connection, and the client.
async fn connection(local: Local) -> (Connection, TcpStream) {
    let (socket, client) = pair().await;
    let connection = Connection {
        socket: Box::new(LocalSocket::from(socket)),
        answer: Answer::None,
        source: None,
        has_next: false,
        local,
        early: Vec::new(),
    };
    (connection, client)
}

/// Opens a stream; returns its client.
async fn opened(driver: &Rc<Driver>, local: Local) -> TcpStream {
    let (connection, client) = connection(local).await;
    let opened = driver.open("tcp://x:1", Priority::Auto, connection, Box::new(|_| {}));
    assert!(opened.is_ok());
    client
}

fn target() -> Local {
    Local::Target {
        target: "tcp://x:1".to_owned(),
        address: SocketAddr::from(([127, 0, 0, 1], 1)).into(),
        admission: Admission::default(),
    }
}

/// A client of the forward `web`, whose streams share `rate`.
fn client_with_rate(forwards: &Forwards, rate: BitRate) -> Local {
    let limits = Limits {
        bits_per_second: Some(rate),
        ..Limits::default()
    };
    let forward = forwards.named("web", limits);
    Local::Client {
        address: SocketAddr::from(([127, 0, 0, 1], 1)).into(),
        target: "tcp://x:1".into(),
        admission: forward.admit(Instant::now()).unwrap(),
        ended: RefCell::default(),
    }
}

/// The code of the next RESET_STREAM on `tcp`; other frames are skipped.
async fn reset_code(tcp: &mut TcpStream) -> u16 {
    loop {
        if let (Decoded::Frame { frame, .. }, _) = frame(tcp).await
            && let Frame::ResetStream { code, .. } = frame
        {
            return code;
        }
    }
}

async fn in_time(test: impl Future<Output = ()>) {
    let tasks = LocalSet::new();
    let in_time = tokio::time::timeout(Duration::from_secs(60), tasks.run_until(test));
    in_time.await.unwrap();
}

#[tokio::test]
async fn a_session_that_stalls_keeps_no_other_session_of_the_same_rate_waiting() {
    in_time(async {
        let forwards = Forwards::default();
        let rate = BitRate(80_000_000);
        let (stalled, mut stalled_far) = established(&Rc::default()).await;
        let mut held = Vec::new();
        for _ in 0..crate::stream::buffers::SMALL_MAX {
            held.push(
                stalled
                    .share
                    .acquire(crate::stream::buffers::Size::Small)
                    .await,
            );
        }
        held.extend(std::iter::from_fn(|| {
            stalled
                .share
                .try_acquire_paced(crate::stream::buffers::Size::Small)
                .map(Some)
        }));
        let mut waits = opened(&stalled, client_with_rate(&forwards, rate)).await;
        waits.write_all(b"waits").await.unwrap();
        // The stream has its turn, but no buffer is free.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (flows, mut far) = established(&Rc::default()).await;
        let mut client = opened(&flows, client_with_rate(&forwards, rate)).await;
        client.write_all(b"flows").await.unwrap();
        assert_eq!(payload(&mut far).await, b"flows");
        // The stream continues once a buffer is free.
        held.clear();
        assert_eq!(payload(&mut stalled_far).await, b"waits");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_resets_while_its_stream_has_no_credit_ends_the_stream() {
    in_time(async {
        let (driver, mut far) = established_with(&Rc::default(), 1000).await;
        let mut client = opened(&driver, target()).await;
        client.write_all(&[7; 1000]).await.unwrap();
        assert_eq!(payload(&mut far).await.len(), 1000);
        client.set_zero_linger().unwrap();
        drop(client);
        assert_eq!(reset_code(&mut far).await, ResetCode::Cancelled.code());
        driver.streams_gone().await;
        assert!(driver.streams.is_empty());
    })
    .await;
}

#[tokio::test]
async fn what_a_client_sent_before_its_reset_is_sent_where_there_is_credit_for_it() {
    in_time(async {
        let (driver, mut far) = established_with(&Rc::default(), 1000).await;
        let mut client = opened(&driver, target()).await;
        client.write_all(&[7; 1500]).await.unwrap();
        assert_eq!(payload(&mut far).await.len(), 1000);
        client.set_zero_linger().unwrap();
        drop(client);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let stream = driver.session.view().streams()[0];
        let limit = Frame::MaxStreamData {
            stream,
            limit: 2000,
        };
        for frame in [limit, Frame::MaxData(2000)] {
            far.write_all(&codec::encode(&frame)).await.unwrap();
        }
        assert_eq!(payload(&mut far).await.len(), 500);
        assert_eq!(reset_code(&mut far).await, ResetCode::Cancelled.code());
    })
    .await;
}

#[tokio::test]
async fn a_client_that_resets_after_its_end_of_file_ends_the_stream() {
    in_time(async {
        let (driver, mut far) = established(&Rc::default()).await;
        let mut client = opened(&driver, target()).await;
        client.shutdown().await.unwrap();
        loop {
            if let (Decoded::Stream { fin: true, .. }, _) = frame(&mut far).await {
                break;
            }
        }
        let stream = driver.session.view().streams()[0];
        let opened = Frame::Opened {
            stream,
            address: String::new(),
        };
        far.write_all(&codec::encode(&opened)).await.unwrap();
        client.set_zero_linger().unwrap();
        drop(client);
        loop {
            if let (Decoded::Frame { frame, .. }, _) = frame(&mut far).await
                && let Frame::StopSending { code, .. } = frame
            {
                break assert_eq!(code, ResetCode::Cancelled.code());
            }
        }
    })
    .await;
}

#[tokio::test]
async fn an_open_that_never_left_comes_back_with_all_that_its_client_sent() {
    in_time(async {
        let (driver, _far) = established(&Rc::default()).await;
        let (connection, mut client) = connection(target()).await;
        client.write_all(b"request").await.unwrap();
        let ends = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&ends);
        let seen = Box::new(move |end| seen.borrow_mut().push(end));
        assert!(
            driver
                .open("tcp://x:1", Priority::Auto, connection, seen)
                .is_ok()
        );
        // The OPEN is sent once the carrier's writer runs.
        driver.give_up("gone".to_owned());
        driver.streams_gone().await;
        assert!(driver.has_ended());
        let Some(OpenEnd::Returned(returned)) = ends.take().pop() else {
            panic!("the connection was not returned");
        };
        let mut bytes = returned.early;
        while bytes.len() < 7 {
            crate::io::duplex::readable(&*returned.socket)
                .await
                .unwrap();
            let mut more = [0; 7];
            let length = returned.socket.try_read(&mut more).unwrap_or(0);
            bytes.extend(&more[..length]);
        }
        assert_eq!(bytes, b"request");
        // The client received no answer, and the session has no open stream.
        assert_eq!(driver.stream_count(), 0);
        drop(returned.socket);
        assert!(client.read(&mut [0]).await.is_err());
        let (connection, _client) = self::connection(target()).await;
        let again = driver.open("tcp://x:1", Priority::Auto, connection, Box::new(|_| {}));
        assert_eq!(again.unwrap_err().error, OpenError::GoingAway);
    })
    .await;
}

#[tokio::test]
async fn a_part_of_a_frame_is_transmitted_again_from_what_was_kept() {
    in_time(async {
        let wishes = Rc::default();
        let (driver, mut far) = established(&wishes).await;
        let mut client = opened(&driver, target()).await;
        let bytes: Vec<u8> = (0..100_000_u32).map(|index| (index % 251) as u8).collect();
        client.write_all(&bytes).await.unwrap();
        let mut come = Vec::new();
        while come.len() < bytes.len() {
            come.extend(payload(&mut far).await);
        }
        assert!(come == bytes);
        let sent = wishes.borrow().sent.clone();
        let mut tokens: Vec<u64> = sent.iter().map(|(_, sent)| sent.token.0).collect();
        tokens.dedup();
        assert!(tokens.is_sorted() && tokens.len() > 1);
        assert_eq!(driver.retention.len(), tokens.len());
        // Requests the last seven bytes of each frame again, after the frame's header.
        let mut at = 0;
        for (header, sent) in &sent {
            at += sent.range.len();
            let range = sent.range.end - 7..sent.range.end;
            wishes.borrow_mut().again.push_back((
                *header,
                Payload {
                    range,
                    ..sent.clone()
                },
            ));
            driver.update(|_session| ());
            let mut again = vec![0; HEADER_BYTES + 7];
            far.read_exact(&mut again).await.unwrap();
            assert_eq!(again[..HEADER_BYTES], header[..]);
            assert_eq!(again[HEADER_BYTES..], bytes[at - 7..at]);
        }
        wishes
            .borrow_mut()
            .released
            .extend(tokens.into_iter().map(Token));
        driver.update(|_session| ());
        assert!(driver.retention.len() == 0);
        // No retained batch holds a permit.
        let mut all = Vec::new();
        for _ in 0..crate::stream::buffers::LARGE_MAX {
            all.push(
                driver
                    .share
                    .acquire(crate::stream::buffers::Size::Large)
                    .await,
            );
        }
        driver.shut_down();
        let word = loop {
            if let (Decoded::Frame { frame, .. }, _) = frame(&mut far).await
                && let Frame::SessionClose { code, .. } = frame
            {
                break code;
            }
        };
        assert_eq!(word, 0);
    })
    .await;
}

#[tokio::test]
async fn a_panic_ends_its_session_and_nothing_else() {
    let test = async {
        let (wishes, others) = (Rc::default(), Rc::default());
        let (driver, mut far) = established(&wishes).await;
        let (other, mut other_far) = established(&others).await;
        let connection = |socket: TcpStream| Connection {
            socket: Box::new(LocalSocket::from(socket)),
            answer: Answer::None,
            source: None,
            has_next: false,
            local: Local::Target {
                target: "tcp://x:1".to_owned(),
                address: SocketAddr::from(([127, 0, 0, 1], 1)).into(),
                admission: Admission::default(),
            },
            early: Vec::new(),
        };
        let (local, mut client) = pair().await;
        let opened = driver.open(
            "tcp://x:1",
            Priority::Auto,
            connection(local),
            Box::new(|_| {}),
        );
        assert!(opened.is_ok());
        client.write_all(b"bytes").await.unwrap();
        assert_eq!(payload(&mut far).await, b"bytes");
        wishes.borrow_mut().panics = true;
        let word = codec::encode(&Frame::Ping(1));
        far.write_all(&word).await.unwrap();
        // The session ends its connection to the client, and its carrier.
        let end = client.read(&mut [0]).await;
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        let mut rest = Vec::new();
        let _ = far.read_to_end(&mut rest).await;
        driver.streams_gone().await;
        assert!(driver.carriers.view().is_empty() && driver.streams.is_empty());
        assert_eq!(driver.telemetry.session_panics(), 1);
        let (local, mut late) = pair().await;
        let opened = driver.open(
            "tcp://x:1",
            Priority::Auto,
            connection(local),
            Box::new(|_| {}),
        );
        let opened = opened.map_err(|not_opened| not_opened.error);
        assert_eq!(opened, Err(OpenError::GoingAway));
        assert!(late.read(&mut [0]).await.is_err());
        // The other session continues.
        let (local, mut client) = pair().await;
        let opened = other.open(
            "tcp://x:1",
            Priority::Auto,
            connection(local),
            Box::new(|_| {}),
        );
        assert!(opened.is_ok());
        client.write_all(b"more").await.unwrap();
        assert_eq!(payload(&mut other_far).await, b"more");
        assert_eq!(other.telemetry.session_panics(), 0);
    };
    let tasks = LocalSet::new();
    let in_time = tokio::time::timeout(Duration::from_secs(60), tasks.run_until(test));
    in_time.await.unwrap();
}

#[tokio::test]
async fn a_panic_of_a_dial_ends_its_session() {
    let test = async {
        let (driver, _far) = established(&Rc::default()).await;
        let ended = Rc::clone(&driver);
        let dial = Rc::clone(&driver).guard(async { panic!("a fault of a dial") });
        tokio::task::spawn_local(dial).await.unwrap();
        ended.streams_gone().await;
        assert!(ended.carriers.view().is_empty() && ended.has_ended());
        assert_eq!(ended.telemetry.session_panics(), 1);
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn where_no_tcp_is_below_a_carrier_that_falls_silent_is_lost_and_one_that_answers_is_not() {
    let test = async {
        let (near, mut far) = UnixStream::pair().unwrap();
        let carrier = (Unix::boxed(near, "/x"), &mut far);
        let (driver, runs) = agreed_on(carrier, &Rc::default(), Rc::default(), parameters(1)).await;
        for _ in 0..10 {
            let (
                Decoded::Frame {
                    frame: Frame::Ping(value),
                    ..
                },
                _,
            ) = frame(&mut far).await
            else {
                panic!("nothing is requested");
            };
            far.write_all(&codec::encode(&Frame::Pong(value)))
                .await
                .unwrap();
        }
        assert!(!driver.has_ended());
        let silent = now();
        let end = runs.await.unwrap();
        assert!(matches!(end, SessionEnd::GivenUp(_)), "{end}");
        let seconds = now().duration_since(silent).as_secs();
        assert!((15..=25).contains(&seconds), "{seconds} s");
    };
    let tasks = LocalSet::new();
    let in_time = tokio::time::timeout(Duration::from_secs(600), tasks.run_until(test));
    in_time.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_requested_answer_is_owed_until_it_arrives_and_is_no_reason_to_move_packets() {
    let test = async {
        let (near, mut far) = pair().await;
        let carrier = (Tcp::boxed(near), &mut far);
        let (driver, _runs) =
            agreed_on(carrier, &Rc::default(), Rc::default(), parameters(1)).await;
        assert!(!driver.owes_an_answer());
        driver.ask();
        assert!(driver.owes_an_answer() && driver.answers());
        // A second request does not hide that the first one has no answer.
        driver.ask();
        let (Decoded::Frame { frame, .. }, _) = frame(&mut far).await else {
            panic!("nothing is requested");
        };
        let Frame::Ping(value) = frame else {
            panic!("{frame:?}");
        };
        assert!(driver.owes_an_answer());
        let pong = codec::encode(&Frame::Pong(value));
        far.write_all(&pong).await.unwrap();
        while driver.owes_an_answer() {
            tokio::task::yield_now().await;
        }
        assert!(driver.answers());
    };
    LocalSet::new().run_until(test).await;
}

/// A carrier over TCP whose other end is a proxy: the kernel gets its acknowledgements, and no peer
/// answers.
#[tokio::test(start_paused = true)]
async fn a_carrier_over_tcp_whose_peer_is_silent_is_probed_after_the_configured_time_and_then_lost()
{
    let test = async {
        let (near, mut far) = pair().await;
        let carrier = (Tcp::boxed(near), &mut far);
        let (driver, runs) = agreed_on(carrier, &Rc::default(), Rc::default(), parameters(1)).await;
        let begun = now();
        // A PING with another value measures the round trip.
        let is_probe = |decoded: &Decoded| {
            matches!(
                decoded,
                Decoded::Frame {
                    frame: Frame::Ping(0),
                    ..
                }
            )
        };
        while !is_probe(&frame(&mut far).await.0) {}
        let silence = now().duration_since(begun);
        assert!(silence >= driver.config.liveness, "{silence:?}");
        let end = runs.await.unwrap();
        assert!(matches!(end, SessionEnd::GivenUp(_)), "{end}");
        let answer = now().duration_since(begun + silence).as_secs();
        assert!((15..=17).contains(&answer), "{answer} s");
    };
    let tasks = LocalSet::new();
    let in_time = tokio::time::timeout(Duration::from_secs(120), tasks.run_until(test));
    in_time.await.unwrap();
}

/// A socket whose peer has proved an identity.
#[derive(Debug)]
struct Proved(Box<dyn Transport>);

impl Duplex for Proved {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.0.poll_readable(context)
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
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

impl Transport for Proved {
    fn shut(&self) {
        self.0.shut();
    }

    fn path(&self) -> Option<&dyn Path> {
        self.0.path()
    }

    fn identity(&self) -> Option<&str> {
        Some("somebody")
    }

    fn detach(self: Box<Self>) -> std::io::Result<Box<dyn Detached>> {
        self.0.detach()
    }
}

#[tokio::test]
async fn a_further_carrier_has_to_lead_to_who_is_at_the_end_of_the_first() {
    let test = async {
        let (driver, _far) = established(&Rc::default()).await;
        let (near, _other) = pair().await;
        let stranger = driver.add_carrier(Box::new(Proved(Tcp::boxed(near))), Vec::new(), None);
        assert!(matches!(stranger, Err(NoCarrier::Stranger(_))));
        let (near, _another) = pair().await;
        let known = driver.add_carrier(Tcp::boxed(near), Vec::new(), None);
        assert!(!matches!(known, Err(NoCarrier::Stranger(_))));
    };
    LocalSet::new().run_until(test).await;
}

/// Answers the opens of all streams of the session.
async fn take_up(driver: &Rc<Driver>, far: &mut TcpStream) {
    let streams = driver.session.view().streams();
    for stream in streams {
        let opened = Frame::Opened {
            stream,
            address: String::new(),
        };
        far.write_all(&codec::encode(&opened)).await.unwrap();
    }
    while !driver.streams.all().iter().all(|io| io.is_open()) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_stream_that_waited_splices_no_more_than_others_have_left_of_the_credit() {
    const FIRST: usize = crate::stream::buffers::SMALL_BYTES - HEADER_BYTES;
    const MORE: usize = 64 << 10;
    in_time(async {
        let parameters = Parameters {
            initial_max_data: (2 * FIRST + MORE) as u64,
            initial_max_stream_data: 1 << 20,
            initial_max_streams: 2,
            frame_max: codec::FRAME_BYTES_MAX,
        };
        let (driver, mut far) =
            agreed(&Rc::default(), super::Pool::for_one_of(1), parameters).await;
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.push(opened(&driver, target()).await);
        }
        take_up(&driver, &mut far).await;
        for client in &mut clients {
            // A read that fills its buffer makes the next buffer large.
            client.write_all(&[1; FIRST]).await.unwrap();
            let mut come = 0;
            while come < FIRST {
                come += payload(&mut far).await.len();
            }
        }
        clients[0].write_all(&[2; MORE]).await.unwrap();
        let mut come = 0;
        while come < MORE {
            come += payload(&mut far).await.len();
        }
        let waits = || driver.telemetry.credit.status().waits;
        while waits() == 0 {
            tokio::task::yield_now().await;
        }
        clients[1].write_all(&[3; MORE]).await.unwrap();
        while waits() < 2 && !driver.has_ended() {
            tokio::task::yield_now().await;
        }
        assert!(!driver.has_ended(), "the session's credit was exceeded");
        assert!(driver.telemetry.splices.status().bytes_sent > 0);
    })
    .await;
}

#[tokio::test]
async fn streams_of_a_last_carrier_that_is_trusted_no_more_are_revoked() {
    in_time(async {
        let (driver, mut far) = established(&Rc::default()).await;
        let (ended, end) = tokio::sync::oneshot::channel();
        let local = Local::of_client("tcp://x:1", RefCell::new(Some(ended)));
        let _client = opened(&driver, local).await;
        take_up(&driver, &mut far).await;
        let carriers = driver.carriers.all();
        carriers[0].distrust(SessionEnd::Revoked("its authority is gone".to_owned()));
        assert_eq!(end.await, Ok(Reason::Revoked));
    })
    .await;
}

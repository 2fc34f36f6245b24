//! One driver against a simulated peer. The tests cover batches that the session retransmits
//! without a lost carrier. The tests also cover clients that leave, or have a rate limit, while
//! their session stalls.

mod carriers;
mod forgetful;
mod panics;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::{BitRate, Limits};
use muxtunnel_proto::native::SessionCode;
use muxtunnel_proto::native::codec::{self, Decoded, Frame, HEADER_BYTES, HelloAck, Parameters};
use muxtunnel_proto::{NativeConfig, NativeSession, Payload, Priority, ResetCode, Token};
use muxtunnel_testkit::socket::pair;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet};

use super::carrier_out::Chunk;
use super::retention::Retained;
use super::*;
use crate::base::closing::Reason;
use crate::base::forward::{Admission, Forwards};
use crate::base::memory_budget::MemoryBudget;
use crate::base::telemetry::Telemetry;
use crate::ingress::listener::answer::Answer;
use crate::io::local_socket::LocalSocket;
use crate::io::transport::{Tcp, Transport};
use crate::session::mux::{Mux, OpenEnd, Progress};
use crate::session::shell::LINGER_MAX;
use crate::stream::account::Local;
use crate::stream::pipe::{Held, SPLICE_BYTES_MIN, Way};
use forgetful::{Forgetful, Wishes};

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

/// Sends the header of payload, and waits until the driver has read it.
async fn announce(driver: &Driver, far: &mut TcpStream, header: &[u8]) {
    far.write_all(header).await.unwrap();
    let carrier = driver.carriers.view().values().next().unwrap().id;
    while driver.engine.session.view().receiving(carrier).is_none() {
        tokio::task::yield_now().await;
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
    let context = Context {
        config: config.session(),
        reloadable: watch::channel(Arc::new(config.reloadable())).1,
        telemetry,
        buffers,
        memory: (MemoryBudget::of(None), 1),
    };
    let driver = Driver::new(
        Box::new(Forgetful { inner, wishes }),
        context.granted(),
        Box::new(|_, _, _| Box::pin(std::future::pending())),
    );
    driver.add(near.into(), Vec::new(), None).unwrap();
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

/// A client's connection with a full send buffer, so that payload waits in the session; the client;
/// and the number of bytes that precede the payload.
async fn full_connection() -> (Connection, TcpStream, usize) {
    let (socket, client) = pair().await;
    let mut before = 0;
    socket.writable().await.unwrap();
    while let Ok(length) = socket.try_write(&[0; 64 << 10]) {
        before += length;
    }
    let connection = Connection {
        socket: Box::new(LocalSocket::from(socket)),
        ..connection(target()).await.0
    };
    (connection, client, before)
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
        driver.streams_gone(Duration::from_secs(3)).await;
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
        let stream = driver.engine.session.view().streams()[0];
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
        let stream = driver.engine.session.view().streams()[0];
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
async fn a_stream_whose_halves_have_ended_delivers_its_bytes_after_the_end_of_the_session() {
    in_time(async {
        let (driver, mut far) = established(&Rc::default()).await;
        let (connection, mut client, before) = full_connection().await;
        let opened = driver.open("tcp://x:1", Priority::Auto, connection, Box::new(|_| {}));
        assert!(opened.is_ok());
        client.shutdown().await.unwrap();
        take_up(&driver, &mut far).await;
        let stream = driver.engine.session.view().streams()[0];
        let payload = [7; 16 << 10];
        let header = codec::stream_header(stream, 0, payload.len() as u32, true);
        far.write_all(&[&header, &payload[..]].concat())
            .await
            .unwrap();
        let io = driver.stream(stream).unwrap();
        while !io.has_ended() {
            tokio::task::yield_now().await;
        }
        assert!(!io.is_done(), "the client's socket took the payload");
        drop(io);
        let close = Frame::SessionClose {
            code: SessionCode::NoError as u64,
            reason: String::new(),
        };
        far.write_all(&codec::encode(&close)).await.unwrap();
        far.shutdown().await.unwrap();
        while !driver.has_ended() {
            tokio::task::yield_now().await;
        }
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert!(received[before..] == payload);
    })
    .await;
}

#[tokio::test]
async fn payload_for_a_full_socket_fills_the_pipe_that_waits_for_the_socket() {
    const PIECE: usize = 1 << 10;
    // More than the pipes that the stream may hold.
    const PIECES: usize = 24;
    const REST: usize = SPLICE_BYTES_MIN;
    in_time(async {
        let (driver, mut far) = established(&Rc::default()).await;
        let (connection, mut client, before) = full_connection().await;
        let opened = driver.open("tcp://x:1", Priority::Auto, connection, Box::new(|_| {}));
        assert!(opened.is_ok());
        take_up(&driver, &mut far).await;
        let stream = driver.engine.session.view().streams()[0];
        let payload: Vec<u8> = (0..PIECES * PIECE + REST)
            .map(|at| (at / 251) as u8)
            .collect();
        let header = codec::stream_header(stream, 0, payload.len() as u32, true);
        announce(&driver, &mut far, &header).await;
        let spliced = || driver.telemetry.splices.status();
        let mut sent = 0;
        for piece in payload.chunks(PIECE).take(PIECES) {
            far.write_all(piece).await.unwrap();
            sent += PIECE as u64;
            while spliced().bytes_received < sent {
                assert_eq!(spliced().bytes_fallen_back, 0);
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(spliced().pipes_lacking, 0);
        far.write_all(&payload[PIECES * PIECE..]).await.unwrap();
        let mut received = vec![0; before + payload.len()];
        client.read_exact(&mut received).await.unwrap();
        assert!(received[before..] == payload);
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_stalls_leaves_pipes_to_other_streams() {
    const FREE: usize = 6;
    in_time(async {
        let buffers: Rc<super::Pool> = Rc::default();
        let (wishes, kept) = (Rc::default(), Rc::clone(&buffers));
        let (driver, mut far) = agreed(&wishes, kept, parameters(1 << 20)).await;
        far.set_nodelay(true).unwrap();
        let (connection, _client, _) = full_connection().await;
        let opened = driver.open("tcp://x:1", Priority::Auto, connection, Box::new(|_| {}));
        assert!(opened.is_ok());
        take_up(&driver, &mut far).await;
        let mut others = Vec::new();
        others.extend(std::iter::from_fn(|| {
            buffers.pipes.take(Way::ToLocal, &Held::default(), 1)
        }));
        others.truncate(others.len() - FREE);
        let stream = driver.engine.session.view().streams()[0];
        let header = codec::stream_header(stream, 0, 2 * SPLICE_BYTES_MIN as u32, true);
        announce(&driver, &mut far, &header).await;
        let spliced = || driver.telemetry.splices.status();
        let mut sent = 0;
        // Each byte takes one of the 256 slots of a pipe.
        while spliced().bytes_fallen_back == 0 {
            far.write_all(b"x").await.unwrap();
            sent += 1;
            while spliced().bytes_received + spliced().bytes_fallen_back < sent {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(spliced().bytes_received, 256 * FREE as u64 / 2);
        assert_eq!(buffers.pipes.used(), others.len() + FREE / 2);
    })
    .await;
}

#[tokio::test]
async fn payload_of_a_pipe_is_copied_if_no_pipe_can_retain_it() {
    in_time(async {
        let buffers: Rc<super::Pool> = Rc::default();
        let (driver, _far) = agreed(&Rc::default(), Rc::clone(&buffers), parameters(1)).await;
        let _client = opened(&driver, target()).await;
        let stream = driver.engine.session.view().streams()[0];
        let carrier = driver.carriers.view().values().next().cloned().unwrap();
        let (mut client, from) = pair().await;
        let another = || buffers.pipes.take(Way::ToCarrier, &Held::default(), 1);
        let mut all = Vec::new();
        for is_last in [true, false] {
            client.write_all(b"payload").await.unwrap();
            from.readable().await.unwrap();
            let mut pipe = another().unwrap();
            pipe.fill(&from, 7).unwrap();
            if is_last {
                all.extend(std::iter::from_fn(another));
            }
            let payload = Payload {
                stream,
                token: Token(7),
                range: 0..7,
                last: true,
                retained: true,
            };
            let chunk = driver.chunk_of_pipe(&carrier, pipe, &payload).unwrap();
            let retained = driver.engine.retention.take(payload.token).unwrap();
            match (is_last, chunk, retained) {
                (true, Chunk::Kept { batch, range, .. }, Retained::Batch(retained)) => {
                    assert!(Rc::ptr_eq(&batch, &retained));
                    assert_eq!(batch.bytes(range), b"payload");
                    assert_eq!(batch.bytes(batch.place(&(3..7))), b"load");
                }
                (false, Chunk::Pipe(pipe), Retained::Pipe(retained)) => {
                    assert_eq!(pipe.held(), 7);
                    assert_eq!(retained.read().unwrap(), b"payload");
                }
                _ => panic!("the payload is not where it was expected"),
            }
            all.clear();
        }
        let spliced = driver.telemetry.splices.status();
        assert_eq!((spliced.bytes_sent, spliced.pipes_lacking), (7, 1));
    })
    .await;
}

#[tokio::test]
async fn a_session_without_streams_gives_its_peer_more_time_for_the_last_bytes() {
    in_time(async {
        let (idle, _far) = established(&Rc::default()).await;
        idle.shut_down();
        assert_eq!(idle.ending.last_word_max(), LINGER_MAX);
        let (cut, _far) = established(&Rc::default()).await;
        let _client = opened(&cut, target()).await;
        cut.shut_down();
        assert!(cut.ending.last_word_max() < LINGER_MAX);
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
        driver.streams_gone(Duration::from_secs(3)).await;
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
        assert_eq!(driver.engine.retention.len(), tokens.len());
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
        assert!(driver.engine.retention.len() == 0);
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

/// Answers the opens of all streams of the session.
async fn take_up(driver: &Rc<Driver>, far: &mut TcpStream) {
    let streams = driver.engine.session.view().streams();
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
        let (driver, mut far) = agreed(&Rc::default(), Rc::default(), parameters).await;
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

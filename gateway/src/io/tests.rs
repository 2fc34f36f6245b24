//! What the listeners of UDP answer to strangers. A stranger can forge its source address, and so
//! lead an answer to another listener.

use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::{Config, SessionConfig};
use muxtunnel_proto::kcp::{self, Command, Header};
use tokio::net::UdpSocket;
use tokio::task::LocalSet;

use super::quic::tests as ends;
use super::quic::{Listener, Settings, dial};
use super::transport::{KcpListener, KcpPeers, KcpWindows, To};
use crate::base::patience::Patience;

/// A bound for hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// A little more than the minimum interval of QUIC's stateless resets.
const RESET_PAUSE: Duration = Duration::from_millis(25);
const ANY: &str = "127.0.0.1:0";

/// A stranger's socket.
struct Stranger(UdpSocket);

impl Stranger {
    async fn of(to: std::net::SocketAddr) -> Self {
        let socket = UdpSocket::bind(ANY).await.unwrap();
        socket.connect(to).await.unwrap();
        Self(socket)
    }

    async fn send(&self, datagram: &[u8]) {
        self.0.send(datagram).await.unwrap();
    }

    async fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 2000];
        let received = tokio::time::timeout(PATIENCE, self.0.recv(&mut bytes)).await;
        bytes.truncate(received.expect("an answer").unwrap());
        bytes
    }

    async fn answer_to(&self, datagram: &[u8]) -> Vec<u8> {
        self.send(datagram).await;
        self.receive().await
    }
}

/// A KCP datagram with one segment and without payload.
fn segment(conversation: u32, command: Command, next: u32) -> Vec<u8> {
    let header = Header {
        conversation,
        command,
        window: 128,
        time: 5,
        serial: 6,
        next,
    };
    let mut bytes = Vec::new();
    header.encode(0, &mut bytes);
    bytes
}

/// A first packet of an unknown version of QUIC. `number` is in the client's connection id.
fn of_unknown_version(number: u32) -> Vec<u8> {
    let mut bytes = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 8];
    bytes.extend_from_slice(&[7; 4]);
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.resize(1200, 0);
    bytes
}

/// A packet of a connection of QUIC. `id` is the listener's connection id.
fn of_connection(id: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x40];
    bytes.extend_from_slice(id);
    bytes.resize(100, 0x55);
    bytes
}

/// The first packet of a client of QUIC.
async fn first_packet() -> Vec<u8> {
    let [near, _] = ends::credentials(("entry", "exit"), ("exit", "entry"));
    let exit = UdpSocket::bind(ANY).await.unwrap();
    let to = exit.local_addr().unwrap();
    let settings = Settings::new(&ends::session(ends::PROTOCOL, ends::ENTRY));
    let mut bytes = vec![0; 2000];
    let patience = Patience::fixed(PATIENCE);
    let length = tokio::select! {
        received = exit.recv(&mut bytes) => received.unwrap(),
        dialled = dial(to, To::exit("far"), &near, &settings, &patience) => panic!("{:?}", dialled.err()),
    };
    bytes.truncate(length);
    bytes
}

fn kcp_session() -> (Config, SessionConfig) {
    let text = "role: Exit\nsecurity: {mode: None}\nlisten: 127.0.0.1:1\n";
    let config = Config::from_yaml(text).unwrap();
    let session = config.session();
    (config, session)
}

/// The listeners, which run as tasks.
struct Listeners {
    kcp: std::net::SocketAddr,
    quic: std::net::SocketAddr,
    /// A connection id of the listener of QUIC.
    id: Vec<u8>,
}

impl Listeners {
    /// Starts listeners of KCP and QUIC. The listener of QUIC answers each odd connection with a
    /// retry, and each even connection with a refusal.
    fn start() -> Self {
        let (config, session) = kcp_session();
        let windows = KcpWindows::of(&session.memory);
        let kcp = KcpListener::bind(ANY, KcpPeers::of(&config), windows).unwrap();
        let kcp_address = kcp.address();
        tokio::task::spawn_local(async move { while kcp.accept().await.is_ok() {} });
        let [_, far] = ends::credentials(("entry", "exit"), ("exit", "entry"));
        let socket = std::net::UdpSocket::bind(ANY).unwrap();
        let quic_address = socket.local_addr().unwrap();
        let session = ends::session(ends::PROTOCOL, ends::EXIT);
        let listener = Rc::new(Listener::new(socket, (0, 1), (&session, 8), &far).unwrap());
        tokio::task::spawn_local(async move {
            loop {
                listener.next().await.unwrap().retry();
                listener.next().await.unwrap().refuse();
            }
        });
        Self {
            kcp: kcp_address,
            quic: quic_address,
            id: ends::id_of(&far, quic_address),
        }
    }

    /// Each kind of answer that a stranger gets from these listeners.
    async fn answers(&self) -> Vec<(&'static str, Vec<u8>)> {
        let (kcp, quic) = (Stranger::of(self.kcp).await, Stranger::of(self.quic).await);
        let first = first_packet().await;
        let answers = vec![
            (
                "challenge",
                kcp.answer_to(&segment(9, Command::Push, 0)).await,
            ),
            (
                "reset of KCP",
                kcp.answer_to(&segment(9, Command::Ask, 1)).await,
            ),
            ("negotiation", quic.answer_to(&of_unknown_version(0)).await),
            ("retry", quic.answer_to(&first).await),
            ("refusal", quic.answer_to(&first).await),
            (
                "reset of QUIC",
                quic.answer_to(&of_connection(&self.id)).await,
            ),
        ];
        let kinds = answers.iter().map(|(_, answer)| answer[0] >> 4);
        let kinds: Vec<_> = kinds.skip(2).collect();
        assert!(
            kinds[0] >= 0x8 && kinds[1] == 0xf && kinds[2] == 0xc,
            "{kinds:x?}"
        );
        assert!(kinds[3] < 0x8 && answers[5].1.len() > 16, "{kinds:x?}");
        answers
    }
}

async fn in_time(test: impl Future<Output = ()>) {
    let tasks = LocalSet::new();
    let in_time = tokio::time::timeout(PATIENCE, tasks.run_until(test));
    in_time.await.unwrap();
}

/// If an answer caused an answer, one forged datagram could make two exits answer each other
/// without end.
#[tokio::test]
async fn no_answer_to_a_stranger_causes_an_answer_of_any_listener() {
    in_time(async {
        let (listeners, others) = (Listeners::start(), Listeners::start());
        let mut number = 1;
        for (name, answer) in listeners.answers().await {
            for [kcp, quic] in [&listeners, &others].map(|all| [all.kcp, all.quic]) {
                // The first answer must be the answer to the second datagram.
                let victim = Stranger::of(kcp).await;
                victim.send(&answer).await;
                let next = victim.answer_to(&segment(number, Command::Push, 0)).await;
                assert_eq!(next[..4], number.to_le_bytes(), "KCP answers a {name}");
                tokio::time::sleep(RESET_PAUSE).await;
                let victim = Stranger::of(quic).await;
                victim.send(&answer).await;
                let next = victim.answer_to(&of_unknown_version(number)).await;
                assert_eq!(next[1..5], [0; 4], "QUIC answers a {name}");
                assert_eq!(next[10..14], number.to_be_bytes(), "QUIC answers a {name}");
                number += 1;
            }
        }
    })
    .await;
}

/// Sends 60 times 50 datagrams that cause resets or version negotiation. Each time, a datagram of
/// another kind marks the end. Returns the number of answers, and the greatest permitted number.
async fn flood(
    to: std::net::SocketAddr,
    datagram: &[u8],
    mark: &[u8],
    is_mark: impl Fn(&[u8]) -> bool,
) -> (u64, u64) {
    let (stranger, start) = (Stranger::of(to).await, Instant::now());
    let mut answers = 0;
    for _ in 0..60 {
        for _ in 0..50 {
            stranger.send(datagram).await;
        }
        stranger.send(mark).await;
        while !is_mark(&stranger.receive().await) {
            answers += 1;
        }
    }
    // One share and the common part, and a burst of 4 s.
    (answers, 257 * (start.elapsed().as_secs() + 5))
}

#[tokio::test]
async fn resets_are_few() {
    in_time(async {
        let listeners = Listeners::start();
        let reset = segment(9, Command::Ask, 1);
        let begin = segment(10, Command::Push, 0);
        let is_challenge = |answer: &[u8]| answer[12..16] == kcp::CHALLENGE.to_le_bytes();
        let (resets, most) = flood(listeners.kcp, &reset, &begin, is_challenge).await;
        assert!(0 < resets && resets <= most, "{resets} of at most {most}");
    })
    .await;
}

#[tokio::test]
async fn version_negotiation_is_rare() {
    in_time(async {
        let listeners = Listeners::start();
        let (unknown, first) = (of_unknown_version(1), first_packet().await);
        let is_of_connection = |answer: &[u8]| answer[1..5] != [0; 4];
        let (answers, most) = flood(listeners.quic, &unknown, &first, is_of_connection).await;
        assert!(
            0 < answers && answers <= most,
            "{answers} of at most {most}"
        );
    })
    .await;
}

//! SSH (RFC 4254): each stream is a channel to an SSH server or from an SSH client.
//!
//! [`crate::io::ssh`] handles the connections. This module maps targets to direct-tcpip and
//! direct-streamlocal, and listeners to tcpip-forward ([`listens`]). The module maps an end to EOF,
//! and a cut to CLOSE without EOF. Between two MuxTunnel gateways a cut never looks like an end.
//!
//! Memory: `memory.receive` bounds the bytes that local ends have not taken. At that bound, the
//! connection is not read. See docs/limits.md.

mod ask;
mod halves;
mod listens;

use std::cell::Cell;
use std::io::{Error, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::{Priority, Reason, Refusal, SessionError, listen_of_target, patience};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::base::tasks::{Tasks, joined};
use crate::io::socket::KeepaliveConfig;
use crate::io::ssh::channels::End;
use crate::io::ssh::events::{self, Event, RESOURCE_SHORTAGE, Wanted};
use crate::io::ssh::{Connection, NoChannel, Opened as Channel, reason_of};
use crate::io::transport::Side;
use crate::session::bridge::link::{self, Below, Hears, Link, NoStream, Opened, Unsent};
use crate::session::end::SessionEnd;
use crate::session::mux::Local;
use crate::session::shell::under::Under;
use ask::Asked;
use halves::{Line, Over, Receiving, Sending};
use listens::Listens;

/// Maximum number of an entry's streams on one connection. The entry dials another connection
/// before it reaches this number.
const STREAMS_MAX: usize = 1024;
/// Interval between two checks for channels that delay the other channels.
const STALLS_EVERY: Duration = Duration::from_secs(1);
/// Maximum time until the peer answers a probe, on ordinary paths.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// Maximum number of unsent bytes in the kernel, since other bytes cannot overtake them.
const NOT_SENT_BYTES: u32 = 1 << 20;

pub(crate) struct Ssh {
    traffic: Rc<Traffic>,
    side: Side,
    accepts_max: usize,
    events: Cell<Option<mpsc::Receiver<Event>>>,
    over: Cell<Option<mpsc::UnboundedReceiver<Over>>>,
    listens: Rc<Listens>,
    closing: Notify,
    keepalive: KeepaliveConfig,
    /// Notified when the peer should answer, because it left an open without an answer.
    probe_due: Notify,
}

/// State that all streams of one connection share.
pub(super) struct Traffic {
    connection: Connection,
    unsent: Arc<Unsent>,
    /// Whether this side sends the first CLOSE of a channel that is over. This is so at an entry
    /// whose exit is a MuxTunnel gateway, since that exit waits for the CLOSE.
    closes: bool,
    open: Cell<usize>,
    /// Channels to close, at most as many as were open.
    over: mpsc::UnboundedSender<Over>,
    /// The tasks of single channels and listeners. A panic of such a task ends the session.
    tasks: Tasks,
}

impl Ssh {
    /// Creates a link. `side` tells whether this side dialled or accepted the connection.
    ///
    /// # Errors
    /// `below` is not an SSH connection, or a system call fails.
    pub(crate) fn new(side: Side, below: Below, config: &SessionConfig) -> std::io::Result<Self> {
        let Under::Ssh(connection) = below.under else {
            let text = "SSH requires a connection that has logged in";
            return Err(Error::new(ErrorKind::InvalidInput, text));
        };
        if let Some(path) = connection.path() {
            path.prepare(config.congestion_control, KeepaliveConfig::of(config))?;
            path.bound_queue(NOT_SENT_BYTES)?;
        }
        connection.count_in(below.stats);
        let events = Cell::new(connection.events());
        let closes = side == Side::Dials && connection.is_own();
        let (over, to_close) = mpsc::unbounded_channel();
        let tasks = Tasks::default();
        Ok(Self {
            listens: Listens::new(connection.clone(), tasks.clone()),
            traffic: Rc::new(Traffic {
                connection,
                unsent: below.unsent,
                closes,
                open: Cell::new(0),
                over,
                tasks,
            }),
            side,
            accepts_max: config.streams_max as usize,
            events,
            over: Cell::new(Some(to_close)),
            closing: Notify::new(),
            keepalive: KeepaliveConfig::of(config),
            probe_due: Notify::new(),
        })
    }

    async fn drive(&self, hears: &dyn Hears<Self>) -> SessionEnd {
        let (connection, mut events) = (&self.traffic.connection, self.events.take());
        let (mut over, mut closers) = (self.over.take(), JoinSet::new());
        let mut stalls = tokio::time::interval(STALLS_EVERY);
        stalls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut has_left = false;
        let mut probes = JoinSet::new();
        hears.ready();
        loop {
            tokio::select! {
                biased;
                end = connection.shared().ended() => return end_of(end),
                event = next(&mut events) => self.heard(event, hears),
                one = next_over(&mut over) => {
                    closers.spawn_local(one.close(Rc::clone(&self.traffic)));
                }
                closed = closers.join_next(), if !closers.is_empty() => {
                    closed.and_then(joined);
                }
                never = self.traffic.tasks.fail() => match never {},
                event = self.listens.news() => hears.listened(event),
                () = self.closing.notified() => {
                    connection.disconnect("this gateway ends the connection").await;
                    return SessionEnd::Closed;
                }
                () = self.probe_due.notified(), if probes.is_empty() => {
                    probes.spawn_local(probe(connection.clone()));
                }
                Some(answered) = probes.join_next() => {
                    if let Ok(Err(end)) = answered {
                        return end;
                    }
                }
                now = stalls.tick() => {
                    if let Some(path) = connection.path() {
                        // A failure means that the connection has ended, which the library reports.
                        let _ = path.follow(self.keepalive);
                    }
                    if connection.shared().cut_stalled(now.into_std()) {
                        let peer = connection.peer();
                        tracing::warn!(%peer, "Cut a stream because its local end took no bytes and delayed the other streams of the SSH connection");
                    }
                    if connection.shared().is_spent() {
                        if !has_left {
                            has_left = true;
                            hears.going_away();
                        }
                        if self.traffic.open.get() == 0 {
                            self.closing.notify_one();
                        }
                    }
                }
            }
        }
    }

    fn heard(&self, event: Event, hears: &dyn Hears<Self>) {
        match event {
            Event::Asked(asked) if self.traffic.connection.shared().is_spent() => {
                asked.refuse(
                    RESOURCE_SHORTAGE,
                    "the connection has reached its maximum age: connect again",
                );
            }
            Event::Asked(asked) => {
                let target = match &asked.wanted {
                    Wanted::Target(target) => Some(target.clone()),
                    Wanted::Listener { address, port } => self.listens.target_of(address, *port),
                };
                match target {
                    Some(target) => hears.asked(Asked::new(*asked, target, &self.traffic)),
                    None => asked.refuse(events::PROHIBITED, "this listener was not requested"),
                }
            }
            Event::Listen {
                address,
                port,
                answer,
            } => {
                if let Some(event) = self.listens.asked(address, port, answer) {
                    hears.listened(event);
                }
            }
            Event::Unlisten { address, port } => {
                if let Some(event) = self.listens.given_up(&address, port) {
                    hears.listened(event);
                }
            }
        }
    }
}

/// Asks the peer for an answer.
///
/// # Errors
/// The peer does not answer.
async fn probe(connection: Connection) -> Result<(), SessionEnd> {
    let limit = patience(ANSWER_MAX, connection.round_trip());
    match tokio::time::timeout(limit, connection.ping()).await {
        Ok(()) => Ok(()),
        Err(_) => {
            let text = format!("the peer did not answer within {} s", limit.as_secs());
            Err(SessionEnd::Io(Error::new(ErrorKind::TimedOut, text)))
        }
    }
}

/// Returns the next request of the peer.
async fn next(events: &mut Option<mpsc::Receiver<Event>>) -> Event {
    let next = match events {
        Some(events) => events.recv().await,
        None => None,
    };
    match next {
        Some(event) => event,
        None => std::future::pending().await,
    }
}

/// Returns the next channel to close.
async fn next_over(over: &mut Option<mpsc::UnboundedReceiver<Over>>) -> Over {
    let next = match over {
        Some(over) => over.recv().await,
        None => None,
    };
    match next {
        Some(one) => one,
        None => std::future::pending().await,
    }
}

impl Link for Ssh {
    type Sender = Sending;
    type Receiver = Receiving;
    type Ask = Asked;

    /// Ignores the priority, since SSH has no priorities.
    fn open(&self, target: &str, _: Priority) -> Option<link::Opening<Self>> {
        let traffic = Rc::clone(&self.traffic);
        let open = open(&traffic.connection, self.side, target, &self.listens);
        let (answer, answered) = oneshot::channel();
        drop(self.traffic.tasks.spawn(async move {
            // The task runs to its end even if nothing awaits it. Otherwise nothing would close a
            // channel that the peer opens.
            let opened = match open.await {
                Ok(channel) => Ok(Line::new(channel, &traffic)),
                Err(no_stream) => Err(no_stream),
            };
            drop(answer.send(opened));
        }));
        Some(Box::pin(async move {
            let line = answered.await.map_err(|_| NoStream::Lost)??;
            let (sender, receiver) = Line::halves(line);
            Ok(Opened {
                sender,
                receiver,
                address: String::new(),
            })
        }))
    }

    fn run<'a>(&'a self, hears: &'a dyn Hears<Self>) -> Local<'a, SessionEnd> {
        Box::pin(self.drive(hears))
    }

    fn streams_max(&self) -> usize {
        match self.side {
            Side::Dials if self.traffic.connection.shared().is_spent() => 0,
            Side::Dials => STREAMS_MAX,
            Side::Accepts => self.accepts_max,
        }
    }

    fn held(&self) -> u64 {
        self.traffic.connection.shared().held() as u64
    }

    fn round_trip(&self) -> Duration {
        self.traffic.connection.round_trip()
    }

    fn probe(&self) -> bool {
        self.probe_due.notify_one();
        // The library does not report the answer.
        false
    }

    /// Does nothing, since SSH has no message that announces a shutdown.
    fn go_away(&self) {}

    fn shut_down(&self) {
        self.closing.notify_one();
    }

    fn listens(&self) -> Option<&dyn link::Listens> {
        Some(&self.listens)
    }
}

type Opening = Local<'static, Result<Channel, NoStream>>;

/// Opens the channel to `target`.
fn open(connection: &Connection, side: Side, target: &str, listens: &Rc<Listens>) -> Opening {
    let connection = connection.clone();
    if side == Side::Accepts {
        let listen = listen_of_target(target).and_then(|listen| listens.address_of(listen));
        return Box::pin(async move {
            let Some((address, port)) = listen else {
                return Err(NoStream::Lost);
            };
            let opened = connection.open_forwarded(&address, port).await;
            opened.map_err(not_opened)
        });
    }
    if let Some(path) = target.strip_prefix("unix:").map(str::to_owned) {
        return Box::pin(async move { connection.open_unix(&path).await.map_err(not_opened) });
    }
    let split = target.strip_prefix("tcp://").and_then(host_and_port);
    let target = target.to_owned();
    Box::pin(async move {
        let Some((host, port)) = split else {
            let text = format!("{target:?} is neither HOST:PORT nor a Unix socket");
            return Err(NoStream::Refused(Refusal::new(Reason::AddressType, text)));
        };
        connection.open_tcp(&host, port).await.map_err(not_opened)
    })
}

fn host_and_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), port.parse().ok()?))
}

fn not_opened(error: NoChannel) -> NoStream {
    match error {
        NoChannel::Lost => NoStream::Lost,
        NoChannel::Refused(code) => {
            let reason = match code {
                events::PROHIBITED => Reason::NotAllowed,
                events::CONNECT_FAILED => Reason::ConnectionRefused,
                _ => Reason::General,
            };
            let text = format!("the peer refused the channel: {}", reason_of(code));
            NoStream::Refused(Refusal::new(reason, text))
        }
    }
}

fn end_of(end: End) -> SessionEnd {
    match end {
        End::Closed => SessionEnd::Closed,
        End::Failed(text) => SessionEnd::Io(Error::other(text)),
        End::Violation(problem) => SessionEnd::Protocol(SessionError::Violation {
            code: None,
            problem,
        }),
    }
}

//! HTTP/2 (RFC 9113): each stream is a CONNECT (section 8.5).
//!
//! The h2 crate does the framing and checks what the peer sends. This module adds the parts that a
//! tunnel needs: the target as `:authority`, and refusals as a status with Proxy-Status (RFC 9209).
//! The module also adds windows that follow the path ([`windows`]), and PING to detect a dead peer
//! ([`pinger`]). A cut is always RST_STREAM, never END_STREAM.
//!
//! Memory: the connection's window limits a peer's unread bytes to three quarters of
//! `memory.receive` in total. The last quarter is for bytes that are read ahead ([`ahead`]); see
//! docs/limits.md.

mod ahead;
mod ask;
mod carried;
mod connection;
mod halves;
mod heads;
mod inflow;
mod listeners;
mod meter;
#[cfg(any(test, feature = "oracles"))]
pub(crate) mod oracle;
mod pinger;
mod windows;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use h2::client::SendRequest;
use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::{ListenError, ListenId, Priority, Reason, Refusal, listen_of_target};
use tokio::sync::{Notify, mpsc};

use crate::io::socket::KeepaliveConfig;
use crate::io::transport::{Side, Transport};
use crate::session::backlog::{Backlog, Start};
use crate::session::bridge::link::{
    Below, Hears, Link, Listens, NoStream, Opened, Opening, Payload,
};
use crate::session::connect::{answer, connect_to};
use crate::session::end::SessionEnd;
use crate::session::mux::Local;
use crate::session::shell::under::Under;
use ask::{Asked, Requested};
use connection::{Connection, Event};
use halves::{Receiving, Sending};
use inflow::Inflow;
use listeners::{Listeners, News};
use pinger::{Pinger, Pong};
use windows::{Trip, Windows};

/// The connection preface (section 3.4), which a client sends first.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Tells the peer that this side accepts no streams: an empty SETTINGS frame, then a GOAWAY frame
/// with NO_ERROR and last stream 0 (sections 6.5 and 6.8).
pub(crate) const GOES_AWAY: [u8; 26] = [
    0, 0, 0, 4, 0, 0, 0, 0, 0, //
    0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];
/// Maximum length of a frame that this side accepts. The value is large, so that a peer may send in
/// one frame all bytes that it has read at once.
const FRAME_BYTES_MAX: u32 = 1 << 20;
/// Maximum payload of one stream that waits in the library, in bytes: two batches, so that the
/// stream can read one batch while the library sends the other.
const SEND_BUFFER_BYTES: usize = 512 << 10;
/// Maximum size of the header fields of one request or answer.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Maximum overhead of small DATA frames that wait in the library, in bytes. Tasks join such frames
/// ([`Traffic::join_small`]), so only a fault reaches this limit.
const OVERHEAD_MAX: usize = 16 << 20;
/// Maximum number of streams that this side has reset and for which frames may still arrive. The
/// library resets older streams again.
const RESETS_REMEMBERED_MAX: usize = 4096;
/// How long the library remembers the streams that this side has reset: longer than a path can stall
/// without the loss of the connection ([`pinger`]).
const RESETS_REMEMBERED_FOR: Duration = Duration::from_secs(30);
/// Number of PINGs after a smaller window of streams until the peer has certainly applied it: the
/// library may send PINGs before the SETTINGS frame.
const ANNOUNCES_AFTER_SHRINK: u8 = 3;
/// The part of the receive memory for bytes that are read ahead ([`ahead`]).
const AHEAD_PART: u64 = 4;
/// Maximum number of concurrent streams before the peer has announced its limit.
const STREAMS_AT_FIRST: usize = 100;

pub(crate) struct Http2 {
    /// The connection, which the link takes when it runs.
    connection: RefCell<Option<Connection>>,
    /// The handle that opens streams; `None`: the peer opens the streams, or this side has ended
    /// the connection.
    requests: RefCell<Option<SendRequest<Payload>>>,
    traffic: Rc<Traffic>,
    listeners: Rc<Listeners>,
    /// Maximum number of concurrent streams that this side opens for its listeners; 0 on the side
    /// that dialled.
    accepts_max: usize,
    windows: RefCell<Windows>,
    /// Number of PINGs after whose answer this side announces the windows of all streams again.
    announces: Cell<u8>,
    /// The time after which a silent peer gets a PING.
    liveness: Duration,
    going_away: Notify,
    closing: Notify,
}

/// State that all streams of one connection share.
pub(super) struct Traffic {
    transport: Rc<dyn Transport>,
    backlog: Backlog,
    received: Cell<u64>,
    received_wake: Notify,
    /// Number of answered PINGs.
    pongs: Cell<u64>,
    /// The shortest round trip time of a PING; [`Duration::MAX`]: unknown.
    nearest: Cell<Duration>,
    /// Notified when a PING is requested.
    probe_due: Notify,
    keepalive: KeepaliveConfig,
    /// The streams on which the peer may send, by number.
    incoming: RefCell<BTreeMap<u32, Rc<RefCell<Inflow>>>>,
}

impl Http2 {
    /// Creates a link. `side` tells whether this side dialled or accepted the connection.
    ///
    /// # Errors
    /// `below` is not a byte stream, or a system call fails.
    pub(crate) fn new(side: Side, below: Below, config: &SessionConfig) -> std::io::Result<Self> {
        let Under::Bytes(transport) = below.under else {
            let text = "HTTP/2 requires a byte stream as its transport";
            return Err(std::io::Error::new(ErrorKind::InvalidInput, text));
        };
        if let Some(path) = transport.path() {
            path.prepare(config.congestion_control, KeepaliveConfig::of(config))?;
        }
        let traffic = Rc::new(Traffic {
            backlog: Backlog::new(transport.path(), Start::Alone)?,
            transport: Rc::clone(&transport),
            received: Cell::new(0),
            received_wake: Notify::new(),
            pongs: Cell::new(0),
            nearest: Cell::new(Duration::MAX),
            probe_due: Notify::new(),
            keepalive: KeepaliveConfig::of(config),
            incoming: RefCell::default(),
        });
        let receive = config.memory.receive.0;
        let windows = Windows::new(receive - receive / AHEAD_PART);
        let read = (below.unread, below.stats);
        let connection = Connection::new((side, &traffic), read, &windows, config);
        Ok(Self {
            connection: RefCell::new(Some(connection)),
            requests: RefCell::default(),
            traffic,
            listeners: Listeners::new(config.protocol.can().listen),
            accepts_max: match side {
                Side::Accepts => config.streams_max as usize,
                Side::Dials => 0,
            },
            windows: RefCell::new(windows),
            announces: Cell::new(0),
            liveness: config.liveness,
            going_away: Notify::new(),
            closing: Notify::new(),
        })
    }

    async fn drive(&self, mut connection: Connection, hears: &dyn Hears<Self>) -> SessionEnd {
        let mut pinger = Pinger::new(connection.pings(), self.liveness);
        let mut news = self.listeners.news();
        loop {
            tokio::select! {
                biased;
                event = connection.next() => match event {
                    Event::Asked(asked) => {
                        let (request, answer) = *asked;
                        let on = (&self.traffic, &*self.listeners);
                        match Requested::read(request, answer, on) {
                            Some(Requested::Stream(asked)) => hears.asked(asked),
                            Some(Requested::Listener(event)) => hears.listened(event),
                            None => {}
                        }
                    }
                    Event::Greeted(requests) => {
                        pinger = Pinger::new(connection.pings(), self.liveness);
                        self.requests.replace(requests);
                    }
                    Event::GoingAway => hears.going_away(),
                    Event::Ended(end) => return end,
                },
                pong = pinger.next(&self.traffic) => match pong {
                    Ok(pong) => {
                        hears.ready();
                        self.fit_windows(&mut connection, pong);
                    }
                    Err(end) => return end,
                },
                news = next(&mut news) => match news {
                    News::Listener(event) => hears.listened(event),
                    News::Arrived(listen, arrived) => {
                        hears.asked(Asked::arrived(listen, arrived, &self.traffic));
                    }
                },
                never = self.listeners.fail() => match never {},
                () = self.going_away.notified() => connection.go_away(),
                () = self.closing.notified() => {
                    connection.go_away();
                    self.requests.take();
                    self.listeners.close();
                }
            }
        }
    }

    fn fit_windows(&self, connection: &mut Connection, pong: Pong) {
        let Pong { received, took } = pong;
        let nearest = &self.traffic.nearest;
        nearest.set(nearest.get().min(took));
        let path = self.traffic.transport.path();
        if let Some(path) = path {
            // A failure means that the connection has ended, which the library reports.
            let _ = path.follow(self.traffic.keepalive);
        }
        let known = path.and_then(|path| path.info().ok());
        let trip = Trip {
            received,
            took,
            // The round trip time of the path does not include the queue in front of PINGs.
            nearest: known.map_or(nearest.get(), |info| info.rtt_min),
            busy: self.traffic.busy(received),
        };
        let mut windows = self.windows.borrow_mut();
        let before = windows.stream();
        if let Some(bytes) = windows.fit(trip, self.traffic.held()) {
            connection.set_window(bytes);
            if bytes < before {
                self.announces.set(ANNOUNCES_AFTER_SHRINK);
            }
        }
        if let Some(left) = self.announces.get().checked_sub(1) {
            self.announces.set(left);
            self.traffic.announce_windows();
            self.traffic.probe_due.notify_one();
        }
    }
}

impl Traffic {
    /// The round trip time to the peer; zero: unknown.
    fn round_trip(&self) -> Duration {
        let measured = Some(self.nearest.get()).filter(|rtt| *rtt < Duration::MAX);
        let known = [measured, self.transport.round_trip()];
        known.into_iter().flatten().max().unwrap_or_default()
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        self.listeners.close();
    }
}

/// The next event of a listener.
async fn next(news: &mut Option<mpsc::Receiver<News>>) -> News {
    let next = match news {
        Some(news) => news.recv().await,
        None => None,
    };
    match next {
        Some(news) => news,
        None => std::future::pending().await,
    }
}

impl Link for Http2 {
    type Sender = Sending;
    type Receiver = Receiving;
    type Ask = Asked;

    /// Ignores the priority, since HTTP/2's priorities (RFC 9113, section 5.3) are deprecated.
    fn open(&self, target: &str, _: Priority) -> Option<Opening<Self>> {
        if let Some(listen) = listen_of_target(target) {
            return Some(self.listeners.open(listen, &self.traffic));
        }
        let requests = self.requests.borrow().clone();
        let request = connect_to(target);
        let traffic = Rc::clone(&self.traffic);
        Some(Box::pin(async move {
            let mut requests = requests.ok_or(NoStream::NotTaken)?;
            let request = request.map_err(NoStream::Refused)?;
            let room = std::future::poll_fn(|context| requests.poll_ready(context)).await;
            room.map_err(not_opened)?;
            let (answer, sender) = requests.send_request(request, false).map_err(not_opened)?;
            let answer = answer.await.map_err(not_opened)?;
            let (head, body) = answer.into_parts();
            answer::read(&head).map_err(NoStream::Refused)?;
            Ok(Opened {
                address: answer::address(&head),
                sender: Sending::new(sender, Rc::clone(&traffic)),
                receiver: Receiving::new(body, traffic),
            })
        }))
    }

    fn run<'a>(&'a self, hears: &'a dyn Hears<Self>) -> Local<'a, SessionEnd> {
        Box::pin(async move {
            let connection = self.connection.take();
            match connection {
                Some(connection) => {
                    let end = self.drive(connection, hears).await;
                    self.listeners.close();
                    end
                }
                None => SessionEnd::Closed,
            }
        })
    }

    fn streams_max(&self) -> usize {
        let requests = self.requests.borrow();
        requests
            .as_ref()
            .map_or(self.accepts_max, SendRequest::current_max_send_streams)
    }

    fn held(&self) -> u64 {
        self.traffic.held()
    }

    fn probe(&self) -> bool {
        self.traffic.probe_due.notify_one();
        true
    }

    fn messages(&self) -> u64 {
        self.traffic.received.get() + self.traffic.pongs.get()
    }

    fn round_trip(&self) -> Duration {
        self.traffic.round_trip()
    }

    fn go_away(&self) {
        self.going_away.notify_one();
    }

    fn shut_down(&self) {
        self.closing.notify_one();
    }

    fn listens(&self) -> Option<&dyn Listens> {
        let enabled = self.listeners.are_enabled();
        enabled.then_some(self as &dyn Listens)
    }
}

impl Listens for Http2 {
    /// Ignores the priority, as [`Link::open`] does.
    fn listen(&self, listen: ListenId, address: &str, _: Priority) -> Result<(), ListenError> {
        let requests = self.requests.borrow().clone();
        self.listeners.ask(listen, address, requests, &self.traffic)
    }

    fn unlisten(&self, listen: ListenId) {
        self.listeners.give_up(listen);
    }

    fn listening(&self, listen: ListenId, address: &str) {
        self.listeners.listening(listen, address);
    }

    fn end_listen(&self, listen: ListenId, refusal: &Refusal) {
        self.listeners.end_listen(listen, refusal);
    }
}

/// Why the peer did not open the stream, if it sent no answer.
fn not_opened(error: h2::Error) -> NoStream {
    let (remote, reason) = (error.is_remote(), error.reason());
    if error.is_io() {
        return NoStream::Lost;
    }
    match reason {
        // Section 8.7: the peer did not process the request.
        Some(h2::Reason::REFUSED_STREAM) => NoStream::NotTaken,
        Some(h2::Reason::NO_ERROR) if error.is_go_away() && remote => NoStream::NotTaken,
        _ if error.is_go_away() => NoStream::Lost,
        _ => {
            let text = format!("the peer reset the request: {error}");
            NoStream::Refused(Refusal::new(Reason::General, text))
        }
    }
}

fn end_of(error: h2::Error) -> SessionEnd {
    if let Some(io) = error.get_io()
        && matches!(io.kind(), ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe)
    {
        return SessionEnd::Closed;
    }
    let text = error.to_string();
    match error.into_io() {
        Some(io) => io.into(),
        None => SessionEnd::Protocol(muxtunnel_proto::SessionError::Violation {
            code: None,
            problem: text,
        }),
    }
}

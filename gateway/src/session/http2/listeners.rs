//! Listeners: an entry requests that its exit listens, and accepts the connections that arrive at
//! the exit (docs/protocol.md).
//!
//! The side that dialled the connection sends all requests, so intermediaries need not support
//! listeners. The requests are extended CONNECTs (RFC 8441) with MuxTunnel's own protocols. One
//! kind of request opens a listener ([`wanted`]) and keeps its stream open. On that stream the exit
//! ([`served`]) announces each connection that arrived. A further request accepts each of these
//! connections.
//!
//! Bounds: at most [`LISTENS_MAX`](muxtunnel_proto::LISTENS_MAX) listeners, and at most
//! [`WAITING_MAX`] connections that wait to be accepted, each for as long as an open may take. The
//! stream of each listener has at most [`WAITING_MAX`] unsent messages.

pub(super) mod message;
mod served;
mod wanted;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use h2::ext::Protocol;
use h2::{Reason as H2Reason, RecvStream, SendStream};
use http::{Method, Request, Uri};
use muxtunnel_proto::{ListenEvent, ListenId, Reason, Refusal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::session::bridge::link::Payload;
use message::{Message, Messages, Token};
pub(super) use wanted::Arrived;

/// The `:protocol` of a request for a listener.
pub(super) const LISTEN: &str = "muxtunnel-listen";
/// The `:protocol` of a request that accepts a connection of a listener.
pub(super) const ACCEPT: &str = "muxtunnel-accept";
/// Maximum number of connections that have arrived and wait for the entry to accept them. Also the
/// maximum number of unsent messages on one listener's stream.
const WAITING_MAX: usize = 1024;
/// Maximum number of unhandled events of the listeners.
const NEWS_MAX: usize = 16;
/// How long the peer may take to end a listener's stream after this side has ended it.
const END_MAX: Duration = Duration::from_secs(5);

pub(super) enum News {
    Listener(ListenEvent),
    /// A connection has arrived at a listener that this side requested.
    Arrived(ListenId, Arrived),
}

/// The listeners of both sides on one connection.
pub(super) struct Listeners {
    enabled: bool,
    /// Listeners that this side requested.
    wanted: RefCell<BTreeMap<ListenId, mpsc::Sender<Message>>>,
    /// Listeners that the peer requested.
    served: RefCell<BTreeMap<ListenId, served::Served>>,
    /// The number of the listener that the peer requested last.
    last: Cell<u32>,
    /// Connections that arrived at the peer's listeners and wait to be accepted.
    waiting: RefCell<BTreeMap<Token, served::Waiting>>,
    tell: mpsc::Sender<News>,
    news: RefCell<Option<mpsc::Receiver<News>>>,
    /// One task for each listener's stream.
    tasks: RefCell<JoinSet<()>>,
    /// Waker of the task in [`Self::fail`], set while `tasks` is empty.
    waker: Cell<Option<Waker>>,
}

impl Listeners {
    pub(super) fn new(enabled: bool) -> Rc<Self> {
        let (tell, news) = mpsc::channel(NEWS_MAX);
        Rc::new(Self {
            enabled,
            wanted: RefCell::default(),
            served: RefCell::default(),
            last: Cell::new(0),
            waiting: RefCell::default(),
            tell,
            news: RefCell::new(Some(news)),
            tasks: RefCell::default(),
            waker: Cell::default(),
        })
    }

    pub(super) const fn are_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the receiver of the events. Call this function once.
    pub(super) fn news(&self) -> Option<mpsc::Receiver<News>> {
        self.news.take()
    }

    /// Panics once a task of a listener has panicked; otherwise never returns.
    pub(super) async fn fail(&self) -> Infallible {
        poll_fn(|context| self.poll_fail(context)).await
    }

    fn poll_fail(&self, context: &mut Context<'_>) -> Poll<Infallible> {
        loop {
            let joined = self.tasks.borrow_mut().poll_join_next(context);
            match joined {
                Poll::Ready(Some(Err(error))) if error.is_panic() => {
                    resume_unwind(error.into_panic())
                }
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => {
                    self.waker.set(Some(context.waker().clone()));
                    return Poll::Pending;
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.borrow_mut().spawn_local(task);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Ends all listeners, and refuses the waiting connections.
    pub(super) fn close(&self) {
        self.wanted.take();
        self.served.take();
        self.waiting.take();
        self.tasks.borrow_mut().abort_all();
    }

    async fn tell(&self, news: News) {
        // This fails once the connection has ended, because the receiver is gone.
        let _ = self.tell.send(news).await;
    }
}

/// Builds an extended CONNECT.
///
/// # Errors
/// `address` is not an authority.
fn request(
    (scheme, protocol): (&str, &'static str),
    address: &str,
    path: &str,
) -> Result<Request<()>, Refusal> {
    let uri = Uri::builder()
        .scheme(scheme)
        .authority(address)
        .path_and_query(path);
    let uri = uri
        .build()
        .map_err(|error| Refusal::new(Reason::AddressType, format!("{address:?}: {error}")))?;
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = uri;
    request
        .extensions_mut()
        .insert(Protocol::from_static(protocol));
    Ok(request)
}

/// Sends messages until the channel closes, then ends this half of the stream.
async fn send_all(stream: &mut SendStream<Payload>, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        let last = matches!(message, Message::Ended(_));
        if send(stream, message::encode(&message)).await.is_none() {
            return;
        }
        if last {
            break;
        }
    }
    // This fails if the stream has ended.
    let _ = stream.send_data(Payload::empty(), true);
}

/// Sends one message; `None`: the stream has ended.
async fn send(stream: &mut SendStream<Payload>, bytes: Vec<u8>) -> Option<()> {
    let length = bytes.len();
    stream.reserve_capacity(length);
    while stream.capacity() < length {
        poll_fn(|context| stream.poll_capacity(context))
            .await?
            .ok()?;
    }
    stream.send_data(Payload::of(bytes), false).ok()
}

/// Returns the next message; `None`: the stream has ended, or the next message is invalid.
async fn receive(stream: &mut RecvStream, messages: &mut Messages) -> Option<Message> {
    loop {
        match messages.next() {
            Ok(Some(message)) => return Some(message),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "Invalid message on a listener's stream");
                return None;
            }
        }
        let bytes = stream.data().await?.ok()?;
        // This fails if the stream has ended; then the credit has no effect.
        let _ = stream.flow_control().release_capacity(bytes.len());
        messages.push(&bytes);
    }
}

/// Waits until the peer has ended its half. If the peer has not done so after [`END_MAX`], resets
/// the stream.
async fn end(sender: &mut SendStream<Payload>, receiver: &mut RecvStream) {
    let ended = async {
        while let Some(Ok(bytes)) = receiver.data().await {
            let _ = receiver.flow_control().release_capacity(bytes.len());
        }
    };
    if tokio::time::timeout(END_MAX, ended).await.is_err() {
        sender.send_reset(H2Reason::CANCEL);
    }
}

//! Listeners: an entry has its exit listen, and accepts the connections that arrive there (docs/protocol.md).
//!
//! The side that dialled the connection sends all requests, so nothing between both ends has to know of this: extended
//! CONNECTs (RFC 8441) with protocols of our own. One asks for a listener ([`wanted`]); its stream stays open, and on it the exit
//! ([`served`]) names each connection that arrived. One for each of those accepts it.
//!
//! Bounds: [`LISTENS_MAX`](muxtunnel_proto::LISTENS_MAX) listeners; [`WAITING_MAX`] connections that wait to be accepted, each for as long as an open may
//! take; as many messages that wait to be sent on each listener's stream.

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

use super::ask::Asked;
use crate::session::bridge::link::Payload;
use message::{Message, Messages, Token};
pub(super) use wanted::Arrived;

/// The `:protocol` of a request for a listener.
pub(super) const LISTEN: &str = "muxtunnel-listen";
/// The `:protocol` of a request that accepts a connection of a listener.
pub(super) const ACCEPT: &str = "muxtunnel-accept";
/// Connections that arrived and that the entry has not accepted; also messages that wait on one listener's stream.
const WAITING_MAX: usize = 1024;
/// News of the listeners that nobody has looked at.
const NEWS_MAX: usize = 16;
/// How long the peer may take to end a listener's stream that this side has ended.
const END_MAX: Duration = Duration::from_secs(5);

/// What is heard of a listener.
pub(super) enum News {
    Listener(ListenEvent),
    /// A connection has arrived at a listener of the peer's.
    Arrived(Asked),
}

/// The listeners on one connection, of either side.
pub(super) struct Listeners {
    /// The protocol has them.
    enabled: bool,
    /// Those that this side asked for.
    wanted: RefCell<BTreeMap<ListenId, mpsc::Sender<Message>>>,
    /// Those that the peer asked for.
    served: RefCell<BTreeMap<ListenId, served::Served>>,
    /// The last number of those.
    last: Cell<u32>,
    /// Connections that arrived at those.
    waiting: RefCell<BTreeMap<Token, served::Waiting>>,
    tell: mpsc::Sender<News>,
    news: RefCell<Option<mpsc::Receiver<News>>>,
    /// One for each listener's stream.
    tasks: RefCell<JoinSet<()>>,
    /// Of who waits for a panic, while there is no task.
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

    /// Whether the protocol has listeners.
    pub(super) const fn are_enabled(&self) -> bool {
        self.enabled
    }

    /// To be taken once.
    pub(super) fn news(&self) -> Option<mpsc::Receiver<News>> {
        self.news.take()
    }

    /// Never returns, and panics once a task has.
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

    /// Ends all of them, and what waits.
    pub(super) fn close(&self) {
        self.wanted.take();
        self.served.take();
        self.waiting.take();
        self.tasks.borrow_mut().abort_all();
    }

    async fn tell(&self, news: News) {
        // It fails once the connection has ended, and nobody is left to be told.
        let _ = self.tell.send(news).await;
    }
}

/// An extended CONNECT.
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

/// Sends the messages that come until no more can come, and ends this half of the stream.
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
    // It fails where the stream has ended.
    let _ = stream.send_data(Payload::empty(), true);
}

/// `None`: the stream has ended.
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

/// The next message; `None`: there is none any more. A peer that sends anything else has its stream reset.
async fn receive(stream: &mut RecvStream, messages: &mut Messages) -> Option<Message> {
    loop {
        match messages.next() {
            Ok(Some(message)) => return Some(message),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "A listener's stream brings what is not a message");
                return None;
            }
        }
        let bytes = stream.data().await?.ok()?;
        // It fails where the stream has ended, and credit is of no use any more.
        let _ = stream.flow_control().release_capacity(bytes.len());
        messages.push(&bytes);
    }
}

/// Waits until the peer has ended its half, for a while, and resets the stream otherwise.
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

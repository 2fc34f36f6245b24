//! The channels of one connection: the state that the library's task shares with the session.
//!
//! The library grants a peer new window as soon as payload arrives, even if no local end has taken
//! the payload. The library also waits for each handler before it continues. So a handler only
//! appends payload to the queue of its channel. Once all queues together hold [`Shared::held_max`]
//! bytes, this side stops reading the connection until a local end takes payload. This blocks all
//! channels of the connection. If the local end of a channel takes nothing for [`STALL_MAX`] during
//! such a block, the channel is cut.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use russh::{ChannelId, ChannelReadHalf};
use tokio::sync::Notify;

/// How long the local end of a channel may take no payload while the connection is blocked.
const STALL_MAX: Duration = Duration::from_secs(10);
/// Pieces of payload are joined up to this length, so that many small pieces cost little more than
/// a few large pieces.
const PIECE_BYTES: usize = 64 << 10;
/// Maximum number of payload bytes that wait for the library, plus encrypted bytes that wait for
/// the transport. One batch may exceed this limit. The library reads nothing while it waits to
/// write, so [`super::wire`] has room for more bytes than this number.
const QUEUED_MAX: usize = 512 << 10;
/// Maximum number of refusals that the library has not sent. The library sends no refusals during a
/// key exchange. A gateway waits for at most 1,024 answers on one connection.
const REFUSED_MAX: usize = 2048;
/// Maximum number of channels that this side closed before the peer did. The library keeps about 3
/// KiB for each of these channels.
const CLOSED_FIRST_MAX: usize = 16_384;

/// State that a connection's tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    channels: Mutex<BTreeMap<u32, Arc<Chan>>>,
    /// Number of received payload bytes that wait for their local ends.
    held: AtomicUsize,
    held_max: usize,
    /// Notified when a local end has taken payload.
    taken: Notify,
    /// Number of payload bytes that wait for the library, plus encrypted bytes that wait for the
    /// transport.
    queued: AtomicUsize,
    unqueued: Notify,
    /// Orders the tasks that wait to queue payload: each gets its turn in the order of arrival.
    turn: tokio::sync::Mutex<()>,
    /// Refusals that wait in the library. A sent refusal stays in this queue until the next call of
    /// `refuse`.
    refused: Mutex<VecDeque<ChannelReadHalf>>,
    closed_first: AtomicUsize,
    /// Why the connection has ended.
    end: Mutex<Option<End>>,
    ended: Notify,
}

/// Why a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer closed the connection, or disconnected.
    Closed,
    /// The peer broke the protocol.
    Violation(String),
    /// The connection failed.
    Failed(String),
}

impl From<&russh::Error> for End {
    fn from(error: &russh::Error) -> Self {
        match error {
            russh::Error::Disconnect | russh::Error::HUP => Self::Closed,
            russh::Error::IO(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => Self::Closed,
            russh::Error::IO(_)
            | russh::Error::KeepaliveTimeout
            | russh::Error::InactivityTimeout
            | russh::Error::Join(_) => Self::Failed(error.to_string()),
            error => Self::Violation(error.to_string()),
        }
    }
}

impl Shared {
    pub(super) fn new(held_max: usize) -> Arc<Self> {
        Arc::new(Self {
            channels: Mutex::default(),
            held: AtomicUsize::new(0),
            held_max,
            taken: Notify::new(),
            queued: AtomicUsize::new(0),
            unqueued: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            refused: Mutex::default(),
            closed_first: AtomicUsize::new(0),
            end: Mutex::default(),
            ended: Notify::new(),
        })
    }

    /// Adds an open channel with the number `id`.
    pub(super) fn add(self: &Arc<Self>, id: u32) -> Arc<Chan> {
        let chan = Arc::new(Chan {
            id,
            shared: Arc::clone(self),
            state: Mutex::new(State::default()),
            receive_wake: Notify::new(),
            send_wake: Notify::new(),
        });
        self.channels.lock().insert(id, Arc::clone(&chan));
        chan
    }

    pub(super) fn get(&self, id: u32) -> Option<Arc<Chan>> {
        self.channels.lock().get(&id).cloned()
    }

    fn remove(&self, id: u32) -> Option<Arc<Chan>> {
        self.channels.lock().remove(&id)
    }

    /// Handles payload that arrived for a channel. This function and the other `peer_` functions
    /// ignore channels that are over.
    pub(super) fn peer_sent(&self, id: ChannelId, data: &[u8]) {
        if let Some(chan) = self.get(id.into()) {
            chan.push(data);
        }
    }

    /// Handles the end of the peer's half of a channel.
    pub(super) fn peer_ended(&self, id: ChannelId) {
        if let Some(chan) = self.get(id.into()) {
            chan.end();
        }
    }

    /// Handles the peer's close of a channel.
    pub(super) fn peer_closed(&self, id: ChannelId) {
        if let Some(chan) = self.remove(id.into()) {
            chan.close();
        }
    }

    /// Handles new window from the peer on a channel.
    pub(super) fn peer_takes_more(&self, id: ChannelId) {
        if let Some(chan) = self.get(id.into()) {
            chan.wake();
        }
    }

    /// Number of received payload bytes that wait for their local ends.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Waits until the connection may be read.
    pub(super) async fn has_room(&self) {
        loop {
            let mut woken = std::pin::pin!(self.taken.notified());
            woken.as_mut().enable();
            if self.held() < self.held_max {
                return;
            }
            woken.await;
        }
    }

    fn let_go(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
        self.taken.notify_waiters();
    }

    /// If the connection is blocked, cuts the stalled channel that holds the most bytes. Returns
    /// whether it cut a channel.
    pub(crate) fn cut_stalled(&self, now: Instant) -> bool {
        if self.held() < self.held_max {
            return false;
        }
        let channels: Vec<_> = self.channels.lock().values().cloned().collect();
        let stalled = channels
            .iter()
            .filter_map(|chan| Some((chan.stalls(now)?, chan)));
        match stalled.max_by_key(|(held, _)| *held) {
            Some((_, chan)) => {
                chan.stop(Some(Cut::Stalled));
                true
            }
            None => false,
        }
    }

    /// Counts `bytes` of payload as queued in the library until the returned value is dropped.
    pub(crate) fn queue(self: &Arc<Self>, bytes: usize) -> Queued {
        self.encrypted(bytes);
        Queued {
            shared: Arc::clone(self),
            bytes,
        }
    }

    /// Counts `bytes` that wait for the transport.
    pub(super) fn encrypted(&self, bytes: usize) {
        self.queued.fetch_add(bytes, Relaxed);
    }

    /// Counts `bytes` as sent.
    pub(super) fn left(&self, bytes: usize) {
        self.queued.fetch_sub(bytes, Relaxed);
        self.unqueued.notify_waiters();
    }

    /// Waits until more payload may be queued for the library.
    pub(crate) async fn may_queue(&self) {
        // A caller that has just queued payload waits until earlier callers have had their turn.
        let _turn = self.turn.lock().await;
        loop {
            let mut woken = std::pin::pin!(self.unqueued.notified());
            woken.as_mut().enable();
            if self.queued.load(Relaxed) < QUEUED_MAX {
                return;
            }
            woken.await;
        }
    }

    /// Counts a refusal that waits in the library. Too many waiting refusals end the connection.
    pub(super) fn refuse(&self, half: ChannelReadHalf) {
        let mut refused = self.refused.lock();
        // Removes refusals that were sent: the library then drops the other half of the channel.
        while let Some(first) = refused.front_mut() {
            match super::at_once(first.wait()) {
                Some(None) => drop(refused.pop_front()),
                Some(Some(_)) | None => break,
            }
        }
        refused.push_back(half);
        let count = refused.len();
        drop(refused);
        if count > REFUSED_MAX {
            let text = "the peer opens channels, and does not read the answers";
            self.end(End::Violation(text.to_owned()));
        }
    }

    /// Whether the connection must accept no further channels because the library keeps the state
    /// of too many closed channels.
    pub(crate) fn is_spent(&self) -> bool {
        self.closed_first.load(Relaxed) >= CLOSED_FIRST_MAX
    }

    /// Ends the connection. Later calls do not change the reason.
    pub(super) fn end(&self, end: End) {
        self.end.lock().get_or_insert(end);
        let channels = std::mem::take(&mut *self.channels.lock());
        for chan in channels.into_values() {
            chan.cut(Cut::Lost);
        }
        self.refused.lock().clear();
        self.ended.notify_waiters();
        self.taken.notify_waiters();
    }

    /// Waits until the connection has ended. Returns the reason.
    pub(crate) async fn ended(&self) -> End {
        loop {
            let mut woken = std::pin::pin!(self.ended.notified());
            woken.as_mut().enable();
            if let Some(end) = self.end.lock().clone() {
                return end;
            }
            woken.await;
        }
    }
}

/// Payload that is queued for the library.
#[derive(Debug)]
pub(crate) struct Queued {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.shared.left(self.bytes);
    }
}

/// Why a channel was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The peer closed the channel.
    Closed,
    /// The channel blocked the other channels.
    Stalled,
    /// The connection has ended.
    Lost,
}

/// The state of one channel.
#[derive(Debug)]
pub(crate) struct Chan {
    id: u32,
    shared: Arc<Shared>,
    state: Mutex<State>,
    receive_wake: Notify,
    send_wake: Notify,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Vec<u8>>,
    /// Number of received bytes that wait for the local end.
    held: usize,
    took: Instant,
    /// Whether the peer has ended its half.
    has_ended: bool,
    /// Whether the peer has closed the channel.
    is_closed: bool,
    cut: Option<Cut>,
    /// Whether arriving payload is discarded.
    discards: bool,
    /// Whether this side has sent the end of its half.
    has_finished: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            held: 0,
            took: Instant::now(),
            has_ended: false,
            is_closed: false,
            cut: None,
            discards: false,
            has_finished: false,
        }
    }
}

impl State {
    /// Discards present and future payload. Returns the number of held bytes that it discarded.
    fn discard(&mut self) -> usize {
        self.discards = true;
        self.queue.clear();
        std::mem::take(&mut self.held)
    }
}

impl Chan {
    /// Handles payload that arrived.
    fn push(&self, data: &[u8]) {
        let mut state = self.state.lock();
        if state.discards || state.has_ended || data.is_empty() {
            return;
        }
        if state.held == 0 {
            state.took = Instant::now();
        }
        match state.queue.back_mut() {
            Some(last) if last.len() + data.len() <= PIECE_BYTES => last.extend_from_slice(data),
            _ => state.queue.push_back(data.to_vec()),
        }
        state.held += data.len();
        self.shared.held.fetch_add(data.len(), Relaxed);
        drop(state);
        self.receive_wake.notify_one();
    }

    /// Handles the end of the peer's half.
    fn end(&self) {
        self.state.lock().has_ended = true;
        self.receive_wake.notify_one();
    }

    /// Handles the peer's close of the channel.
    fn close(&self) {
        self.state.lock().is_closed = true;
        self.cut(Cut::Closed);
    }

    fn cut(&self, cut: Cut) {
        self.state.lock().cut.get_or_insert(cut);
        self.wake();
    }

    /// Handles new window from the peer.
    fn wake(&self) {
        self.receive_wake.notify_one();
        self.send_wake.notify_one();
    }

    /// Returns the next payload; `None`: the peer's half has ended.
    ///
    /// # Errors
    /// The channel was cut.
    pub(crate) async fn receive(&self) -> Result<Option<Bytes>, Cut> {
        loop {
            {
                let mut state = self.state.lock();
                if let Some(piece) = state.queue.pop_front() {
                    return Ok(Some(piece.into()));
                }
                if state.has_ended && state.cut != Some(Cut::Stalled) {
                    return Ok(None);
                }
                if let Some(cut) = state.cut {
                    return Err(cut);
                }
            }
            self.receive_wake.notified().await;
        }
    }

    /// Records that the local end took `bytes` bytes.
    pub(crate) fn took(&self, bytes: usize) {
        let mut state = self.state.lock();
        let taken = bytes.min(state.held);
        state.held -= taken;
        state.took = Instant::now();
        drop(state);
        self.shared.let_go(taken);
    }

    /// Stops receiving. If the channel was not cut before, `cut` becomes the reason.
    pub(crate) fn stop(&self, cut: Option<Cut>) {
        let mut state = self.state.lock();
        let dropped = state.discard();
        if let Some(cut) = cut {
            state.cut.get_or_insert(cut);
        }
        drop(state);
        self.shared.let_go(dropped);
        self.wake();
    }

    /// Number of bytes that the channel holds; `None`: the channel holds nothing, or its local end
    /// took payload recently.
    fn stalls(&self, now: Instant) -> Option<usize> {
        let state = self.state.lock();
        let long = now.saturating_duration_since(state.took) >= STALL_MAX;
        (state.held > 0 && long).then_some(state.held)
    }

    /// Why this side can send nothing more; `None`: this side can still send.
    pub(crate) fn why_cut(&self) -> Option<Cut> {
        self.state.lock().cut
    }

    /// Waits until the peer may accept more payload, or the channel was cut. Spurious wake-ups are
    /// possible.
    pub(crate) async fn sendable(&self) {
        self.send_wake.notified().await;
    }

    /// Records that this side has sent the end of its half.
    pub(crate) fn finished(&self) {
        self.state.lock().has_finished = true;
        self.send_wake.notify_one();
    }

    /// Whether both sides have sent an end.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.has_finished && state.has_ended
    }

    /// Whether the peer has closed the channel, or the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        let state = self.state.lock();
        state.is_closed || state.cut == Some(Cut::Lost)
    }

    /// Closes the channel before the peer does. Later messages about the channel are ignored.
    pub(crate) fn close_first(&self) {
        self.shared.remove(self.id);
        self.shared.closed_first.fetch_add(1, Relaxed);
    }

    /// The connection of the channel.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

#[cfg(test)]
mod tests;

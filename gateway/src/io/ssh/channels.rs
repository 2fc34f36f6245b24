//! The channels of one connection: what the library's task and the session's share.
//!
//! The library gives a peer new window as soon as payload has come, taken or not, and waits for its handlers before it does
//! anything else. So a handler only puts payload into its channel's queue, and once all queues hold [`Shared::held_max`], the
//! connection is not read until some was taken: that holds up its other channels. A channel that takes nothing for
//! [`STALL_MAX`] meanwhile is cut.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use russh::{ChannelId, ChannelReadHalf};
use tokio::sync::{Notify, mpsc};

use super::events::Event;

/// How long a channel may take nothing while it holds up the others.
const STALL_MAX: Duration = Duration::from_secs(10);
/// Pieces of payload are joined up to this length, so that many small ones cost no more than few.
const PIECE_BYTES: usize = 64 << 10;
/// Payload that waits for the library, and what it has encrypted and has not left; a batch more at most. The library
/// reads nothing while it waits to write, so [`super::wire`] has room for more than this.
const QUEUED_MAX: usize = 512 << 10;
/// Refusals that the library has not sent. While keys are exchanged it sends none.
const REFUSED_MAX: usize = 256;
/// Channels that this side has closed before the peer, of each of which the library keeps about 3 KiB.
const CLOSED_FIRST_MAX: usize = 16_384;

/// What a connection's tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    channels: Mutex<BTreeMap<u32, Arc<Chan>>>,
    /// Payload that came and no local end has taken.
    held: AtomicUsize,
    held_max: usize,
    /// Some was taken.
    taken: Notify,
    /// Payload that the library has not taken, and what it has encrypted and the transport has not taken.
    queued: AtomicUsize,
    unqueued: Notify,
    /// Who waits for that, first come first served.
    turn: tokio::sync::Mutex<()>,
    /// Refusals that were not sent, as far as is known.
    refused: Mutex<VecDeque<ChannelReadHalf>>,
    closed_first: AtomicUsize,
    /// Why the connection has ended, once it has.
    end: Mutex<Option<End>>,
    ended: Notify,
    pub(super) events: mpsc::Sender<Event>,
}

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer closed it, or said that it is done.
    Closed,
    /// The peer broke the protocol.
    Violation(String),
    /// It failed.
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
    pub(super) fn new(held_max: usize, events: mpsc::Sender<Event>) -> Arc<Self> {
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
            events,
        })
    }

    /// A channel of this number is open from now on.
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

    /// Payload has come for a channel. For one that is over, as in what follows, there is nothing to do.
    pub(super) fn peer_sent(&self, id: ChannelId, data: &[u8]) {
        if let Some(chan) = self.get(id.into()) {
            chan.push(data);
        }
    }

    /// The peer sends no more on a channel.
    pub(super) fn peer_ended(&self, id: ChannelId) {
        if let Some(chan) = self.get(id.into()) {
            chan.end();
        }
    }

    /// The peer has closed a channel.
    pub(super) fn peer_closed(&self, id: ChannelId) {
        if let Some(chan) = self.remove(id.into()) {
            chan.close();
        }
    }

    /// The peer takes more on a channel.
    pub(super) fn peer_takes_more(&self, id: ChannelId) {
        if let Some(chan) = self.get(id.into()) {
            chan.wake();
        }
    }

    /// Payload that came and no local end has taken.
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

    /// Cuts the channel that holds most of those that have taken nothing for long, where the connection is held up.
    /// Returns whether there was one.
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

    /// So much payload waits for the library, until what is returned is dropped.
    pub(crate) fn queue(self: &Arc<Self>, bytes: usize) -> Queued {
        self.encrypted(bytes);
        Queued {
            shared: Arc::clone(self),
            bytes,
        }
    }

    /// So many bytes wait for the transport.
    pub(super) fn encrypted(&self, bytes: usize) {
        self.queued.fetch_add(bytes, Relaxed);
    }

    /// They have left.
    pub(super) fn left(&self, bytes: usize) {
        self.queued.fetch_sub(bytes, Relaxed);
        self.unqueued.notify_waiters();
    }

    /// Waits until more may wait for the library.
    pub(crate) async fn may_queue(&self) {
        // In turn: a caller that has just queued comes behind those that wait.
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

    /// One more was refused, and its refusal waits with the library. Too many of them end the connection.
    pub(super) fn refuse(&self, half: ChannelReadHalf) {
        let mut refused = self.refused.lock();
        // Once the library has sent it, it drops the other end.
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
            let text = "it opens channels while it lets no answer through";
            self.end(End::Violation(text.to_owned()));
        }
    }

    /// Whether the library keeps so much of the connection that it is to take no more channels.
    pub(crate) fn is_spent(&self) -> bool {
        self.closed_first.load(Relaxed) >= CLOSED_FIRST_MAX
    }

    /// The connection has ended; the first reason counts.
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

    /// Waits until the connection has ended, and says why.
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

/// Payload that waits for the library.
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
    /// The peer closed it.
    Closed,
    /// It held up the others.
    Stalled,
    /// The connection has ended.
    Lost,
}

/// One channel.
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
    /// Bytes that came and the local end has not taken.
    held: usize,
    took: Instant,
    /// The peer sends no more.
    has_ended: bool,
    /// The peer has closed it.
    is_closed: bool,
    cut: Option<Cut>,
    /// What comes is thrown away.
    discards: bool,
    /// This side's end has been passed on.
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
    /// Throws away what came and what will; returns how much no longer counts.
    fn discard(&mut self) -> usize {
        self.discards = true;
        self.queue.clear();
        std::mem::take(&mut self.held)
    }
}

impl Chan {
    /// Payload has come.
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

    /// The peer sends no more.
    fn end(&self) {
        self.state.lock().has_ended = true;
        self.receive_wake.notify_one();
    }

    /// The peer has closed it.
    fn close(&self) {
        self.state.lock().is_closed = true;
        self.cut(Cut::Closed);
    }

    fn cut(&self, cut: Cut) {
        self.state.lock().cut.get_or_insert(cut);
        self.wake();
    }

    /// The peer takes more.
    fn wake(&self) {
        self.receive_wake.notify_one();
        self.send_wake.notify_one();
    }

    /// What came next; `None`: there is no more.
    ///
    /// # Errors
    /// It was cut.
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

    /// The local end took so many bytes.
    pub(crate) fn took(&self, bytes: usize) {
        let mut state = self.state.lock();
        let taken = bytes.min(state.held);
        state.held -= taken;
        state.took = Instant::now();
        drop(state);
        self.shared.let_go(taken);
    }

    /// Nothing more is taken. `cut`: for this reason, where the stream does not know.
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

    /// What it holds, where it took nothing for too long.
    fn stalls(&self, now: Instant) -> Option<usize> {
        let state = self.state.lock();
        let long = now.saturating_duration_since(state.took) >= STALL_MAX;
        (state.held > 0 && long).then_some(state.held)
    }

    /// Why nothing more can be sent.
    pub(crate) fn why_cut(&self) -> Option<Cut> {
        self.state.lock().cut
    }

    /// Waits until the peer may take more, or the channel was cut. Wakes for no reason, too.
    pub(crate) async fn sendable(&self) {
        self.send_wake.notified().await;
    }

    /// This side's end has been passed on.
    pub(crate) fn finished(&self) {
        self.state.lock().has_finished = true;
        self.send_wake.notify_one();
    }

    /// Whether both sides have sent an end.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.has_finished && state.has_ended
    }

    /// Whether the peer has closed it, or the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        let state = self.state.lock();
        state.is_closed || state.cut == Some(Cut::Lost)
    }

    /// This side closes it before the peer has: nothing more is heard of it.
    pub(crate) fn close_first(&self) {
        self.shared.remove(self.id);
        self.shared.closed_first.fetch_add(1, Relaxed);
    }

    /// The connection that it is on.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

#[cfg(test)]
mod tests;

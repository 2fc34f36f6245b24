//! Which stream sends next on a carrier: deficit round robin, with new and small streams first.
//!
//! A stream is small while it has sent at most [`SMALL_BYTES`] of the last one to two epochs, an epoch
//! being [`EPOCH_BYTES`] sent by the whole session; so a stream that just began or was quiet goes
//! ahead of bulk, and one that sends on becomes bulk after its first kilobytes. Bulk streams take turns
//! by bytes (Shreedhar, Varghese: "Efficient Fair Queuing Using Deficit Round Robin", 1996). Small
//! streams together cannot starve bulk: after [`SMALL_RUN_BYTES`] in a row a waiting bulk stream has
//! its turn. No clock is needed.
//!
//! Each carrier has queues of its own; what a stream has sent counts for all of them together.
//!
//! Bound: one record of a few words a stream that has sent; [`Schedule::forget`] drops it.

use std::collections::{BTreeMap, VecDeque};

use super::{CarrierId, StreamId};

/// Bytes of the session after which what a stream has sent begins to be forgotten.
const EPOCH_BYTES: u64 = 512 << 10;
/// What a stream may send in that time and still be small.
const SMALL_BYTES: u64 = 32 << 10;
/// Small streams send at most this in a row while bulk waits.
const SMALL_RUN_BYTES: u64 = 64 << 10;
/// Bytes of the session for which a small stream is remembered by those who choose carriers.
const SMALL_MEMORY: u64 = 32 << 20;
/// What a bulk stream may send more, each time its turn comes.
const QUANTUM: u64 = 32 << 10;

#[derive(Debug, Default)]
struct Flow {
    /// Bytes of the batch that waits, and where; zero: none does.
    waiting: u64,
    on: Option<CarrierId>,
    deficit: u64,
    epoch: u64,
    sent: u64,
    sent_before: u64,
}

impl Flow {
    /// Moves to `epoch`, forgetting what is older than one.
    fn age(&mut self, epoch: u64) {
        if epoch > self.epoch {
            self.sent_before = if epoch == self.epoch + 1 {
                self.sent
            } else {
                0
            };
            self.sent = 0;
            self.epoch = epoch;
        }
    }

    fn is_small(&self) -> bool {
        self.sent + self.sent_before + self.waiting <= SMALL_BYTES
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Small,
    Bulk,
}

/// What waits for one carrier.
#[derive(Debug, Default)]
struct Queues {
    small: VecDeque<StreamId>,
    bulk: VecDeque<StreamId>,
    /// Whose turn it is, until its batch is sent.
    current: Option<(StreamId, Class)>,
    small_run: u64,
}

impl Queues {
    fn is_empty(&self) -> bool {
        self.current.is_none() && self.small.is_empty() && self.bulk.is_empty()
    }

    fn remove(&mut self, stream: StreamId) {
        self.small.retain(|other| *other != stream);
        self.bulk.retain(|other| *other != stream);
        self.current.take_if(|(current, _)| *current == stream);
    }
}

/// The streams that have a batch to send.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    flows: BTreeMap<StreamId, Flow>,
    queues: BTreeMap<CarrierId, Queues>,
    sent: u64,
    /// What all streams had sent when a small one sent last.
    small_at: Option<u64>,
}

impl Schedule {
    /// Whether `stream` is small with a batch of `length` bytes.
    pub(crate) fn is_small(&mut self, stream: StreamId, length: usize) -> bool {
        let flow = self.flows.entry(stream).or_default();
        flow.age(self.sent / EPOCH_BYTES);
        flow.sent + flow.sent_before + length as u64 <= SMALL_BYTES
    }

    /// `stream` has a batch of `length` bytes for `carrier`; it has at most one.
    pub(crate) fn push(&mut self, carrier: CarrierId, stream: StreamId, length: usize) {
        let flow = self.flows.entry(stream).or_default();
        let queued = flow.waiting > 0;
        flow.age(self.sent / EPOCH_BYTES);
        flow.waiting = length as u64;
        if !queued && length > 0 {
            flow.on = Some(carrier);
            let queues = self.queues.entry(carrier).or_default();
            if flow.is_small() {
                queues.small.push_back(stream);
            } else {
                queues.bulk.push_back(stream);
            }
        }
    }

    /// Whose whole batch goes next on `carrier`; it stays in front until [`Self::pop`].
    pub(crate) fn front(&mut self, carrier: CarrierId) -> Option<StreamId> {
        let queues = self.queues.get_mut(&carrier)?;
        if queues.current.is_none() {
            queues.current = choose(queues, &mut self.flows);
        }
        queues.current.map(|(stream, _)| stream)
    }

    /// The batch of the stream in front has been sent.
    pub(crate) fn pop(&mut self, carrier: CarrierId) {
        let Some(queues) = self.queues.get_mut(&carrier) else {
            return;
        };
        let Some((stream, class)) = queues.current.take() else {
            return;
        };
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.age(self.sent / EPOCH_BYTES);
            let length = std::mem::take(&mut flow.waiting);
            // What is left of a turn must not grow to a claim while there is nothing to send.
            flow.deficit = flow.deficit.saturating_sub(length).min(QUANTUM);
            flow.sent += length;
            self.sent += length;
            queues.small_run = match class {
                Class::Small => queues.small_run + length,
                Class::Bulk => 0,
            };
            if class == Class::Small {
                self.small_at = Some(self.sent);
            }
        }
    }

    /// The stream is gone, with the batch that waited.
    pub(crate) fn forget(&mut self, stream: StreamId) {
        if let Some(flow) = self.flows.remove(&stream)
            && flow.waiting > 0
            && let Some(queues) = flow.on.and_then(|on| self.queues.get_mut(&on))
        {
            queues.remove(stream);
        }
    }

    /// Nothing is sent on `carrier` any more. Returns what waited for it, and its bytes, in no
    /// particular order.
    pub(crate) fn drain(&mut self, carrier: CarrierId) -> Vec<(StreamId, usize)> {
        let Some(queues) = self.queues.remove(&carrier) else {
            return Vec::new();
        };
        let current = queues.current.map(|(stream, _)| stream);
        let waiting = current.into_iter().chain(queues.small).chain(queues.bulk);
        let flows = &mut self.flows;
        waiting
            .filter_map(|stream| {
                let flow = flows.get_mut(&stream)?;
                flow.on = None;
                Some((stream, std::mem::take(&mut flow.waiting) as usize))
            })
            .collect()
    }

    /// A bulk stream that waits for `carrier` and `may` leave elsewhere.
    pub(crate) fn movable(
        &self,
        carrier: CarrierId,
        may: impl Fn(StreamId) -> bool,
    ) -> Option<StreamId> {
        let queues = self.queues.get(&carrier)?;
        queues.bulk.iter().copied().find(|stream| may(*stream))
    }

    /// The batch of `stream` waits for `carrier` instead.
    pub(crate) fn transfer(&mut self, stream: StreamId, carrier: CarrierId) {
        let Some(flow) = self.flows.get_mut(&stream) else {
            return;
        };
        if let Some(queues) = flow.on.and_then(|on| self.queues.get_mut(&on)) {
            queues.remove(stream);
        }
        let length = std::mem::take(&mut flow.waiting) as usize;
        self.push(carrier, stream, length);
    }

    /// Whether a small stream has sent lately, measured in what all streams sent since.
    pub(crate) fn small_lately(&self) -> bool {
        self.small_at
            .is_some_and(|at| self.sent - at < SMALL_MEMORY)
    }

    pub(crate) fn is_empty(&self, carrier: CarrierId) -> bool {
        self.queues.get(&carrier).is_none_or(Queues::is_empty)
    }
}

fn choose(queues: &mut Queues, flows: &mut BTreeMap<StreamId, Flow>) -> Option<(StreamId, Class)> {
    let small_may = queues.bulk.is_empty() || queues.small_run < SMALL_RUN_BYTES;
    if small_may && let Some(stream) = queues.small.pop_front() {
        return Some((stream, Class::Small));
    }
    loop {
        let stream = queues.bulk.pop_front()?;
        let flow = flows.get_mut(&stream)?;
        flow.deficit += QUANTUM;
        if flow.deficit >= flow.waiting {
            return Some((stream, Class::Bulk));
        }
        queues.bulk.push_back(stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: usize = 128 << 10;
    const HERE: CarrierId = CarrierId::FIRST;
    const THERE: CarrierId = CarrierId(1);

    fn send(schedule: &mut Schedule) -> StreamId {
        let stream = schedule.front(HERE).unwrap();
        schedule.pop(HERE);
        stream
    }

    #[test]
    fn a_stream_that_just_began_goes_ahead_of_bulk() {
        let mut schedule = Schedule::default();
        for stream in [1, 2, 3] {
            schedule.push(HERE, StreamId(stream), BATCH);
        }
        schedule.push(HERE, StreamId(4), 64);
        assert_eq!(send(&mut schedule), StreamId(4));
    }

    #[test]
    fn a_stream_that_was_quiet_is_small_again() {
        let mut schedule = Schedule::default();
        schedule.push(HERE, StreamId(1), BATCH);
        send(&mut schedule);
        for _ in 0..16 {
            schedule.push(HERE, StreamId(2), BATCH);
            send(&mut schedule);
        }
        schedule.push(HERE, StreamId(2), BATCH);
        schedule.push(HERE, StreamId(1), 64);
        assert_eq!(send(&mut schedule), StreamId(1));
    }

    #[test]
    fn bulk_streams_share_by_bytes_whatever_the_size_of_their_batches() {
        let mut schedule = Schedule::default();
        let sizes = [(StreamId(1), BATCH), (StreamId(2), BATCH / 4)];
        let mut sent = BTreeMap::new();
        for (stream, size) in sizes {
            schedule.push(HERE, stream, size);
        }
        for _ in 0..500 {
            let stream = send(&mut schedule);
            let size = sizes.iter().find(|(other, _)| *other == stream).unwrap().1;
            *sent.entry(stream).or_insert(0) += size;
            schedule.push(HERE, stream, size);
        }
        let (one, other) = (sent[&StreamId(1)] as f64, sent[&StreamId(2)] as f64);
        assert!((one / other - 1.0).abs() < 0.05, "{one} {other}");
    }

    #[test]
    fn many_small_streams_do_not_starve_bulk() {
        let mut schedule = Schedule::default();
        for stream in 0..200 {
            schedule.push(HERE, StreamId(stream), 16 << 10);
        }
        schedule.push(HERE, StreamId(1000), BATCH);
        let turn = (0..200).find(|_| send(&mut schedule) == StreamId(1000));
        assert!(turn.is_some_and(|turn| turn <= 4), "{turn:?}");
    }

    #[test]
    fn what_is_forgotten_has_no_turn_and_leaves_nothing() {
        let mut schedule = Schedule::default();
        schedule.push(HERE, StreamId(1), BATCH);
        schedule.push(HERE, StreamId(2), 1);
        schedule.forget(StreamId(1));
        schedule.forget(StreamId(2));
        assert!(schedule.is_empty(HERE) && schedule.front(HERE).is_none());
        assert!(schedule.flows.is_empty());
    }

    #[test]
    fn what_waits_for_one_carrier_can_leave_on_another() {
        let mut schedule = Schedule::default();
        schedule.push(HERE, StreamId(1), BATCH);
        schedule.push(HERE, StreamId(2), BATCH);
        assert_eq!(schedule.front(THERE), None);
        assert_eq!(
            schedule.movable(HERE, |id| id != StreamId(1)),
            Some(StreamId(2))
        );
        schedule.transfer(StreamId(2), THERE);
        assert_eq!(schedule.front(THERE), Some(StreamId(2)));
        schedule.pop(THERE);
        assert_eq!(send(&mut schedule), StreamId(1));
        assert!(schedule.is_empty(HERE) && schedule.is_empty(THERE));
        schedule.push(HERE, StreamId(2), BATCH);
        assert_eq!(schedule.drain(HERE), [(StreamId(2), BATCH)]);
        assert!(schedule.is_empty(HERE));
    }

    #[test]
    fn a_small_stream_is_remembered_for_a_while() {
        let mut schedule = Schedule::default();
        assert!(!schedule.small_lately());
        schedule.push(HERE, StreamId(1), 64);
        send(&mut schedule);
        assert!(schedule.small_lately());
        for sent in 1..=SMALL_MEMORY / BATCH as u64 {
            schedule.push(HERE, StreamId(2), BATCH);
            send(&mut schedule);
            let forgotten = sent == SMALL_MEMORY / BATCH as u64;
            assert_eq!(schedule.small_lately(), !forgotten);
        }
    }
}

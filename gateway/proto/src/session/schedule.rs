//! Selects the next stream of a carrier: deficit round robin, with new and small streams first.
//!
//! An epoch is the time in which the whole session sends [`EPOCH_BYTES`]. A stream is small while
//! it has sent at most [`SMALL_BYTES`] in the last one to two epochs. So a stream that is new or
//! was quiet goes ahead of bulk, and a stream that continues to send becomes bulk after its first
//! kilobytes. Bulk streams take turns by bytes (Shreedhar, Varghese: "Efficient Fair Queuing Using
//! Deficit Round Robin", 1996). Small streams together cannot starve bulk: after
//! [`SMALL_RUN_BYTES`] in a row, a waiting bulk stream may send. The schedule needs no clock.
//!
//! These rules apply to [`Priority::Auto`]. [`Priority::Bulk`] never counts as small. For the
//! choice of a carrier, an interactive stream always counts as small. In this schedule, an
//! interactive stream that has sent more than [`SMALL_BYTES`] goes after small streams and ahead of
//! bulk, so it does not delay a stream that sends little. Interactive streams take turns by bytes.
//! While they never pause, a bulk batch follows each run of interactive batches with at least
//! [`SMALL_RUN_BYTES`]. If all batches have one size, of at least that number, bulk gets half.
//!
//! Each carrier has its own queues. The bytes that a stream has sent are counted over all carriers.
//!
//! Bound: one record of a few words for each stream that has sent or has a priority.
//! [`Schedule::forget`] drops the record.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{CarrierId, Priority, StreamId};

/// Length of an epoch, in bytes that the session sends.
const EPOCH_BYTES: u64 = 512 << 10;
/// Maximum number of bytes that a small stream sends in one to two epochs.
const SMALL_BYTES: u64 = 32 << 10;
/// Maximum number of bytes that small streams send in a row while other streams wait. The same
/// limit applies to interactive streams while bulk waits.
const SMALL_RUN_BYTES: u64 = 64 << 10;
/// For how long at least a small stream has an effect on bulk after it has sent. A person who types
/// sends every 0.1 to 0.3 s.
pub(crate) const SMALL_MEMORY: Duration = Duration::from_secs(1);
/// Maximum number of streams that [`Schedule::movable`] examines. Each change of a session searches,
/// and a peer that answers no open could make the queue long.
const SEARCHED_MAX: usize = 16;
/// Number of bytes that each turn adds to the deficit of a stream.
const QUANTUM: u64 = 32 << 10;

#[derive(Debug, Default)]
struct Flow {
    priority: Priority,
    /// Bytes of the waiting batch, or 0 if no batch waits. `on`: the carrier of this batch.
    waiting: u64,
    on: Option<CarrierId>,
    deficit: u64,
    epoch: u64,
    sent: u64,
    sent_before: u64,
}

impl Flow {
    /// Moves to `epoch` and discards counts older than one epoch.
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

    /// The class of the stream with a batch of `length` bytes.
    fn class(&self, length: u64) -> Class {
        let small = self.sent + self.sent_before + length <= SMALL_BYTES;
        match self.priority {
            Priority::Auto | Priority::Interactive if small => Class::Small,
            Priority::Interactive => Class::Interactive,
            Priority::Auto | Priority::Bulk => Class::Bulk,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Small,
    /// An interactive stream that has sent more than [`SMALL_BYTES`]; goes ahead of bulk.
    Interactive,
    Bulk,
}

/// The streams that wait for one carrier.
#[derive(Debug, Default)]
struct Queues {
    small: VecDeque<StreamId>,
    interactive: VecDeque<StreamId>,
    bulk: VecDeque<StreamId>,
    /// The stream whose turn it is, until its batch is sent.
    current: Option<(StreamId, Class)>,
    small_run: u64,
    interactive_run: u64,
}

impl Queues {
    fn is_empty(&self) -> bool {
        self.current.is_none() && self.small.is_empty() && !self.others_wait()
    }

    fn others_wait(&self) -> bool {
        !self.interactive.is_empty() || !self.bulk.is_empty()
    }

    fn remove(&mut self, stream: StreamId) {
        self.small.retain(|other| *other != stream);
        self.interactive.retain(|other| *other != stream);
        self.bulk.retain(|other| *other != stream);
        self.current.take_if(|(current, _)| *current == stream);
    }
}

/// The streams with a batch to send.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    flows: BTreeMap<StreamId, Flow>,
    queues: BTreeMap<CarrierId, Queues>,
    sent: u64,
}

impl Schedule {
    /// Sets the priority of `stream`. [`Priority::Auto`] needs no record.
    pub(crate) fn set_priority(&mut self, stream: StreamId, priority: Priority) {
        if priority != Priority::Auto {
            self.flows.entry(stream).or_default().priority = priority;
        }
    }

    /// Whether `stream`, with a batch of `length` bytes, counts as small.
    pub(crate) fn is_small(&mut self, stream: StreamId, length: usize) -> bool {
        let flow = self.flows.entry(stream).or_default();
        flow.age(self.sent / EPOCH_BYTES);
        flow.class(length as u64) != Class::Bulk
    }

    /// Queues a batch of `length` bytes of `stream` for `carrier`. A stream has at most one batch.
    pub(crate) fn push(&mut self, carrier: CarrierId, stream: StreamId, length: usize) {
        let flow = self.flows.entry(stream).or_default();
        let queued = flow.waiting > 0;
        flow.age(self.sent / EPOCH_BYTES);
        flow.waiting = length as u64;
        if !queued && length > 0 {
            flow.on = Some(carrier);
            let queues = self.queues.entry(carrier).or_default();
            match flow.class(flow.waiting) {
                Class::Small => queues.small.push_back(stream),
                Class::Interactive => queues.interactive.push_back(stream),
                Class::Bulk => queues.bulk.push_back(stream),
            }
        }
    }

    /// The stream whose whole batch is sent next on `carrier`. The stream remains in front until
    /// [`Self::pop`].
    pub(crate) fn front(&mut self, carrier: CarrierId) -> Option<StreamId> {
        let queues = self.queues.get_mut(&carrier)?;
        if queues.current.is_none() {
            queues.current = choose(queues, &mut self.flows);
        }
        queues.current.map(|(stream, _)| stream)
    }

    /// Removes the batch of the stream in front, after the batch has been sent. Returns whether the
    /// stream went ahead of bulk.
    pub(crate) fn pop(&mut self, carrier: CarrierId) -> bool {
        let Some(queues) = self.queues.get_mut(&carrier) else {
            return false;
        };
        let Some((stream, class)) = queues.current.take() else {
            return false;
        };
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.age(self.sent / EPOCH_BYTES);
            let length = std::mem::take(&mut flow.waiting);
            // The rest of a turn must not accumulate while the stream has nothing to send.
            flow.deficit = flow.deficit.saturating_sub(length).min(QUANTUM);
            flow.sent += length;
            self.sent += length;
            match class {
                Class::Small => queues.small_run += length,
                Class::Interactive => {
                    queues.small_run = 0;
                    // Bytes that were sent while no bulk waited do not count in the run.
                    queues.interactive_run = if queues.bulk.is_empty() {
                        0
                    } else {
                        queues.interactive_run + length
                    };
                }
                Class::Bulk => (queues.small_run, queues.interactive_run) = (0, 0),
            }
        }
        class != Class::Bulk
    }

    /// Removes a stream that has ended, along with its waiting batch.
    pub(crate) fn forget(&mut self, stream: StreamId) {
        if let Some(flow) = self.flows.remove(&stream)
            && flow.waiting > 0
            && let Some(queues) = flow.on.and_then(|on| self.queues.get_mut(&on))
        {
            queues.remove(stream);
        }
    }

    /// Removes `carrier`. Returns the streams that waited for it and the sizes of their batches,
    /// unordered.
    pub(crate) fn drain(&mut self, carrier: CarrierId) -> Vec<(StreamId, usize)> {
        let Some(queues) = self.queues.remove(&carrier) else {
            return Vec::new();
        };
        let current = queues.current.map(|(stream, _)| stream);
        let others = queues.interactive.into_iter().chain(queues.bulk);
        let waiting = current.into_iter().chain(queues.small).chain(others);
        let flows = &mut self.flows;
        waiting
            .filter_map(|stream| {
                let flow = flows.get_mut(&stream)?;
                flow.on = None;
                Some((stream, std::mem::take(&mut flow.waiting) as usize))
            })
            .collect()
    }

    /// A bulk stream that waits for `carrier`, and for which `may` permits another carrier. Only the
    /// first [`SEARCHED_MAX`] streams are examined.
    pub(crate) fn movable(
        &self,
        carrier: CarrierId,
        may: impl Fn(StreamId) -> bool,
    ) -> Option<StreamId> {
        let queues = self.queues.get(&carrier)?;
        let mut first = queues.bulk.iter().copied().take(SEARCHED_MAX);
        first.find(|stream| may(*stream))
    }

    /// Moves the waiting batch of `stream` to `carrier`.
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

    pub(crate) fn is_empty(&self, carrier: CarrierId) -> bool {
        self.queues.get(&carrier).is_none_or(Queues::is_empty)
    }
}

fn choose(queues: &mut Queues, flows: &mut BTreeMap<StreamId, Flow>) -> Option<(StreamId, Class)> {
    if (!queues.others_wait() || queues.small_run < SMALL_RUN_BYTES)
        && let Some(stream) = queues.small.pop_front()
    {
        return Some((stream, Class::Small));
    }
    if (queues.bulk.is_empty() || queues.interactive_run < SMALL_RUN_BYTES)
        && let Some(stream) = turn(&mut queues.interactive, flows)
    {
        return Some((stream, Class::Interactive));
    }
    let stream = turn(&mut queues.bulk, flows)?;
    Some((stream, Class::Bulk))
}

/// The next stream whose deficit is at least as large as its batch.
fn turn(queue: &mut VecDeque<StreamId>, flows: &mut BTreeMap<StreamId, Flow>) -> Option<StreamId> {
    loop {
        let stream = queue.pop_front()?;
        let flow = flows.get_mut(&stream)?;
        flow.deficit += QUANTUM;
        if flow.deficit >= flow.waiting {
            return Some(stream);
        }
        queue.push_back(stream);
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
    fn an_interactive_stream_goes_first_however_much_it_has_sent() {
        let mut schedule = Schedule::default();
        schedule.set_priority(StreamId(9), Priority::Interactive);
        for _ in 0..16 {
            schedule.push(HERE, StreamId(9), BATCH);
            send(&mut schedule);
        }
        for stream in [1, 2, 9] {
            schedule.push(HERE, StreamId(stream), BATCH);
        }
        assert!(schedule.is_small(StreamId(9), BATCH));
        assert_eq!(send(&mut schedule), StreamId(9));
        assert_eq!(schedule.movable(HERE, |id| id == StreamId(9)), None);
    }

    #[test]
    fn a_bulk_stream_is_bulk_from_its_first_byte() {
        let mut schedule = Schedule::default();
        schedule.set_priority(StreamId(1), Priority::Bulk);
        schedule.push(HERE, StreamId(1), 64);
        schedule.push(HERE, StreamId(2), 64);
        assert!(!schedule.is_small(StreamId(1), 64));
        assert_eq!(send(&mut schedule), StreamId(2));
        assert_eq!(send(&mut schedule), StreamId(1));
    }

    /// Bytes that each stream sends while all `streams` always have a batch of this size.
    fn shares(
        schedule: &mut Schedule,
        streams: &[(u64, usize)],
        turns: usize,
    ) -> BTreeMap<u64, usize> {
        let size = |id| streams.iter().find(|(other, _)| *other == id).unwrap().1;
        let mut sent = BTreeMap::new();
        for (id, size) in streams {
            schedule.push(HERE, StreamId(*id), *size);
        }
        for _ in 0..turns {
            let id = send(schedule).0;
            *sent.entry(id).or_insert(0) += size(id);
            schedule.push(HERE, StreamId(id), size(id));
        }
        sent
    }

    #[test]
    fn interactive_streams_that_send_without_end_leave_bulk_a_part_of_the_carrier() {
        let mut schedule = Schedule::default();
        for stream in [8, 9] {
            schedule.set_priority(StreamId(stream), Priority::Interactive);
        }
        let streams = [
            (1, BATCH),
            (2, BATCH),
            (3, BATCH),
            (8, BATCH),
            (9, BATCH / 4),
        ];
        let sent = shares(&mut schedule, &streams, 2000);
        let all: usize = sent.values().sum();
        let interactive = sent[&8] + sent[&9];
        let share = interactive as f64 / all as f64;
        assert!((0.33..0.67).contains(&share), "{share} {sent:?}");
        for (one, other) in [(1, 2), (2, 3), (8, 9)] {
            let ratio = sent[&one] as f64 / sent[&other] as f64;
            assert!((ratio - 1.0).abs() < 0.1, "{one} and {other}: {sent:?}");
        }
    }

    #[test]
    fn a_stream_that_sends_little_does_not_wait_for_interactive_ones_that_send_much() {
        let mut schedule = Schedule::default();
        for stream in 8..40 {
            schedule.set_priority(StreamId(stream), Priority::Interactive);
            schedule.push(HERE, StreamId(stream), BATCH);
        }
        for _ in 0..100 {
            let before = send(&mut schedule);
            schedule.push(HERE, before, BATCH);
            schedule.push(HERE, StreamId(1), 64);
            assert_eq!(send(&mut schedule), StreamId(1));
        }
    }

    #[test]
    fn many_small_streams_do_not_starve_interactive_ones_that_send_much() {
        let mut schedule = Schedule::default();
        schedule.set_priority(StreamId(1000), Priority::Interactive);
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
        schedule.set_priority(StreamId(3), Priority::Bulk);
        for stream in [1, 2, 3] {
            schedule.forget(StreamId(stream));
        }
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
    fn the_search_for_a_movable_stream_has_a_bound() {
        for (before, is_found) in [(SEARCHED_MAX - 1, true), (SEARCHED_MAX, false)] {
            let mut schedule = Schedule::default();
            let last = StreamId(before as u64);
            for stream in 0..=last.0 {
                schedule.push(HERE, StreamId(stream), BATCH);
            }
            let found = schedule.movable(HERE, |stream| stream == last);
            assert_eq!(found, Some(last).filter(|_| is_found));
        }
    }
}

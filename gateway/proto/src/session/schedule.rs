//! Which stream sends next: deficit round robin, with new and small streams first.
//!
//! A stream is small while it has sent at most [`SMALL_BYTES`] of the last one to two epochs, an epoch
//! being [`EPOCH_BYTES`] sent by the whole session; so a stream that just began or was quiet goes
//! ahead of bulk, and one that sends on becomes bulk after its first kilobytes. Bulk streams take turns
//! by bytes (Shreedhar, Varghese: "Efficient Fair Queuing Using Deficit Round Robin", 1996). Small
//! streams together cannot starve bulk: after [`SMALL_RUN_BYTES`] in a row a waiting bulk stream has
//! its turn. No clock is needed.
//!
//! Bound: one record of a few words a stream that has sent; [`Schedule::forget`] drops it.

use std::collections::{BTreeMap, VecDeque};

use super::StreamId;

/// Bytes of the session after which what a stream has sent begins to be forgotten.
const EPOCH_BYTES: u64 = 512 << 10;
/// What a stream may send in that time and still be small.
const SMALL_BYTES: u64 = 32 << 10;
/// Small streams send at most this in a row while bulk waits.
const SMALL_RUN_BYTES: u64 = 64 << 10;
/// What a bulk stream may send more, each time its turn comes.
const QUANTUM: u64 = 32 << 10;

#[derive(Debug, Default)]
struct Flow {
    /// Bytes of the batch that waits; zero: none does.
    waiting: u64,
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

/// The streams that have a batch to send.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    flows: BTreeMap<StreamId, Flow>,
    small: VecDeque<StreamId>,
    bulk: VecDeque<StreamId>,
    /// Whose turn it is, until its batch is sent.
    current: Option<(StreamId, Class)>,
    sent: u64,
    small_run: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Small,
    Bulk,
}

impl Schedule {
    /// `stream` has a batch of `length` bytes; it has at most one.
    pub(crate) fn push(&mut self, stream: StreamId, length: usize) {
        let flow = self.flows.entry(stream).or_default();
        let queued = flow.waiting > 0;
        flow.age(self.sent / EPOCH_BYTES);
        flow.waiting = length as u64;
        if !queued && length > 0 {
            if flow.is_small() {
                self.small.push_back(stream);
            } else {
                self.bulk.push_back(stream);
            }
        }
    }

    /// Whose whole batch goes next; it stays in front until [`Self::pop`].
    pub(crate) fn front(&mut self) -> Option<StreamId> {
        if self.current.is_none() {
            self.current = self.choose();
        }
        self.current.map(|(stream, _)| stream)
    }

    fn choose(&mut self) -> Option<(StreamId, Class)> {
        let small_may = self.bulk.is_empty() || self.small_run < SMALL_RUN_BYTES;
        if small_may && let Some(stream) = self.small.pop_front() {
            return Some((stream, Class::Small));
        }
        loop {
            let stream = self.bulk.pop_front()?;
            let flow = self.flows.get_mut(&stream)?;
            flow.deficit += QUANTUM;
            if flow.deficit >= flow.waiting {
                return Some((stream, Class::Bulk));
            }
            self.bulk.push_back(stream);
        }
    }

    /// The batch of the stream in front has been sent.
    pub(crate) fn pop(&mut self) {
        let Some((stream, class)) = self.current.take() else {
            return;
        };
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.age(self.sent / EPOCH_BYTES);
            let length = std::mem::take(&mut flow.waiting);
            // What is left of a turn must not grow to a claim while there is nothing to send.
            flow.deficit = flow.deficit.saturating_sub(length).min(QUANTUM);
            flow.sent += length;
            self.sent += length;
            self.small_run = match class {
                Class::Small => self.small_run + length,
                Class::Bulk => 0,
            };
        }
    }

    /// The stream is gone, with the batch that waited.
    pub(crate) fn forget(&mut self, stream: StreamId) {
        if let Some(flow) = self.flows.remove(&stream)
            && flow.waiting > 0
        {
            self.small.retain(|other| *other != stream);
            self.bulk.retain(|other| *other != stream);
            self.current.take_if(|(current, _)| *current == stream);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_none() && self.small.is_empty() && self.bulk.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: usize = 128 << 10;

    fn send(schedule: &mut Schedule) -> StreamId {
        let stream = schedule.front().unwrap();
        schedule.pop();
        stream
    }

    #[test]
    fn a_stream_that_just_began_goes_ahead_of_bulk() {
        let mut schedule = Schedule::default();
        for stream in [1, 2, 3] {
            schedule.push(StreamId(stream), BATCH);
        }
        schedule.push(StreamId(4), 64);
        assert_eq!(send(&mut schedule), StreamId(4));
    }

    #[test]
    fn a_stream_that_was_quiet_is_small_again() {
        let mut schedule = Schedule::default();
        schedule.push(StreamId(1), BATCH);
        send(&mut schedule);
        for _ in 0..16 {
            schedule.push(StreamId(2), BATCH);
            send(&mut schedule);
        }
        schedule.push(StreamId(2), BATCH);
        schedule.push(StreamId(1), 64);
        assert_eq!(send(&mut schedule), StreamId(1));
    }

    #[test]
    fn bulk_streams_share_by_bytes_whatever_the_size_of_their_batches() {
        let mut schedule = Schedule::default();
        let sizes = [(StreamId(1), BATCH), (StreamId(2), BATCH / 4)];
        let mut sent = BTreeMap::new();
        for (stream, size) in sizes {
            schedule.push(stream, size);
        }
        for _ in 0..500 {
            let stream = send(&mut schedule);
            let size = sizes.iter().find(|(other, _)| *other == stream).unwrap().1;
            *sent.entry(stream).or_insert(0) += size;
            schedule.push(stream, size);
        }
        let (one, other) = (sent[&StreamId(1)] as f64, sent[&StreamId(2)] as f64);
        assert!((one / other - 1.0).abs() < 0.05, "{one} {other}");
    }

    #[test]
    fn many_small_streams_do_not_starve_bulk() {
        let mut schedule = Schedule::default();
        for stream in 0..200 {
            schedule.push(StreamId(stream), 16 << 10);
        }
        schedule.push(StreamId(1000), BATCH);
        let turn = (0..200).find(|_| send(&mut schedule) == StreamId(1000));
        assert!(turn.is_some_and(|turn| turn <= 4), "{turn:?}");
    }

    #[test]
    fn what_is_forgotten_has_no_turn_and_leaves_nothing() {
        let mut schedule = Schedule::default();
        schedule.push(StreamId(1), BATCH);
        schedule.push(StreamId(2), 1);
        schedule.forget(StreamId(1));
        schedule.forget(StreamId(2));
        assert!(schedule.is_empty() && schedule.front().is_none());
        assert!(schedule.flows.is_empty());
    }
}

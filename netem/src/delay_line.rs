//! The delay line: packet ids in, the same ids out one delay later. The pure core of the NFQUEUE
//! backend.
//!
//! Owns the queue of packets that are held and when each is due. In: an id and the time it arrived
//! ([`DelayLine::hold`]). Out: up to which id everything is due ([`DelayLine::release`]) and when
//! to ask again ([`DelayLine::next_due`]). Must not read a clock or touch a socket: `now` comes in,
//! so tests run on a virtual clock. The driver is [`crate::nfqueue::line`].

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Packets held at most, here and in the kernel's queue alike (it is the queue's MAXLEN).
///
/// At 10 Gbit/s in frames of 1,500 bytes it holds 157 ms; with GSO a packet here is up to 64 KiB and
/// it holds seconds. A packet more is dropped by the kernel, as a router with a full buffer does.
/// Memory at most: here 131,072 x 16 bytes = 2 MiB; in the kernel what the senders' windows allow,
/// and with frames of 1,500 bytes 131,072 x 2.3 KiB = 295 MiB.
pub const PACKETS_MAX: usize = 131_072;

/// Packets that are due: all those held with an id up to and including `up_to_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The kernel's id of the last packet that is due.
    pub up_to_id: u32,
    /// How many packets that are.
    pub packets: usize,
}

/// The line holds [`PACKETS_MAX`] packets, or what [`DelayLine::new`] was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the delay line is full")]
pub struct Full;

/// A first-in first-out line of constant length in time.
///
/// INVARIANT: due times never decrease along the line, because the delay is constant and `now` is
/// monotonic; so one verdict "everything up to this id" releases a whole batch in order.
#[derive(Debug)]
pub struct DelayLine {
    one_way_delay: Duration,
    packets_max: usize,
    held: VecDeque<Held>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    id: u32,
    due: Instant,
}

impl DelayLine {
    /// An empty line that holds each packet for `one_way_delay` and never more than `packets_max`.
    #[must_use]
    pub fn new(one_way_delay: Duration, packets_max: usize) -> Self {
        Self {
            one_way_delay,
            packets_max,
            held: VecDeque::new(),
        }
    }

    /// Takes in the packet `id`, which arrived at `now`.
    ///
    /// # Errors
    /// [`Full`]: nothing was stored, the packet is the caller's to drop.
    pub fn hold(&mut self, id: u32, now: Instant) -> Result<(), Full> {
        if self.held.len() >= self.packets_max {
            return Err(Full);
        }
        let due = now + self.one_way_delay;
        debug_assert!(self.held.back().is_none_or(|last| last.due <= due));
        self.held.push_back(Held { id, due });
        Ok(())
    }

    /// Takes out everything that is due at `now`; `None` when nothing is.
    pub fn release(&mut self, now: Instant) -> Option<Release> {
        let packets = self.held.partition_point(|held| held.due <= now);
        self.take(packets)
    }

    /// Takes out everything, due or not: the end of the emulation.
    pub fn release_all(&mut self) -> Option<Release> {
        self.take(self.held.len())
    }

    /// When the first packet is due; `None` while the line is empty.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.held.front().map(|held| held.due)
    }

    fn take(&mut self, packets: usize) -> Option<Release> {
        let up_to_id = self.held.drain(..packets).next_back()?.id;
        Some(Release { up_to_id, packets })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(50);

    fn line(packets_max: usize) -> (DelayLine, Instant) {
        (DelayLine::new(DELAY, packets_max), Instant::now())
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_packet_is_due_one_delay_after_it_arrived_and_not_before() {
        let (mut line, start) = line(4);
        line.hold(7, start).unwrap();
        assert_eq!(line.next_due(), Some(start + DELAY));
        assert_eq!(line.release(start + DELAY - Duration::from_nanos(1)), None);
        let due = Release {
            up_to_id: 7,
            packets: 1,
        };
        assert_eq!(line.release(start + DELAY), Some(due));
        assert_eq!(line.next_due(), None);
        assert_eq!(line.release(start + ms(1000)), None);
    }

    #[test]
    fn all_that_is_due_leaves_in_one_release_and_in_order() {
        let (mut line, start) = line(8);
        for (id, at) in [(1, 0), (2, 3), (3, 3), (4, 20)] {
            line.hold(id, start + ms(at)).unwrap();
        }
        let first = Release {
            up_to_id: 3,
            packets: 3,
        };
        assert_eq!(line.release(start + ms(53)), Some(first));
        assert_eq!(line.next_due(), Some(start + ms(70)));
        let second = Release {
            up_to_id: 4,
            packets: 1,
        };
        assert_eq!(line.release(start + ms(70)), Some(second));
    }

    #[test]
    fn ids_may_wrap_around() {
        let (mut line, start) = line(4);
        line.hold(u32::MAX, start).unwrap();
        line.hold(0, start).unwrap();
        let all = Release {
            up_to_id: 0,
            packets: 2,
        };
        assert_eq!(line.release(start + DELAY), Some(all));
    }

    #[test]
    fn a_full_line_refuses_a_packet_and_has_room_again_after_a_release() {
        let (mut line, start) = line(2);
        line.hold(1, start).unwrap();
        line.hold(2, start).unwrap();
        assert_eq!(line.hold(3, start), Err(Full));
        line.release(start + DELAY);
        assert_eq!(line.hold(4, start + DELAY), Ok(()));
    }

    #[test]
    fn the_end_releases_what_is_not_due_yet() {
        let (mut line, start) = line(4);
        assert_eq!(line.release_all(), None);
        line.hold(1, start).unwrap();
        line.hold(2, start).unwrap();
        let all = Release {
            up_to_id: 2,
            packets: 2,
        };
        assert_eq!(line.release_all(), Some(all));
        assert_eq!(line.next_due(), None);
    }

    #[test]
    fn a_packet_leaves_a_line_without_delay_at_once() {
        let now = Instant::now();
        let mut line = DelayLine::new(Duration::ZERO, 4);
        line.hold(1, now).unwrap();
        assert_eq!(
            line.release(now),
            Some(Release {
                up_to_id: 1,
                packets: 1
            })
        );
    }
}

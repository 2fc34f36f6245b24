//! The delay line takes packet ids and returns them later, or drops them. It is the pure core of
//! the NFQUEUE backend.
//!
//! The module owns the queue of held packets with their due times. Input: an id, a length and the
//! time of arrival ([`DelayLine::hold`]). Output: the last id that is due ([`DelayLine::release`]),
//! and the time of the next call ([`DelayLine::next_due`]). The module must not read a clock, draw
//! random numbers or use a socket. `now` and the random numbers are arguments, so that tests can
//! use a virtual clock. The driver is [`crate::nfqueue::line`].

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::impairments::Impairments;

/// Greatest number of held packets, in this line and in the kernel's queue (its MAXLEN).
///
/// At 10 Gbit/s the line holds frames of 1,500 bytes for up to 157 ms. With GSO a packet has up to
/// 64 KiB, so the line can hold packets for seconds. The kernel drops further packets, like a
/// router with a full buffer. The memory of this process is at most 131,072 x 16 bytes = 2 MiB. The
/// kernel's memory depends on the senders' windows: with frames of 1,500 bytes it is at most
/// 131,072 x 2.3 KiB = 295 MiB.
pub const PACKETS_MAX: usize = 131_072;

/// Packets that are due: all held packets with an id up to and including `up_to_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The kernel's id of the last packet that is due.
    pub up_to_id: u32,
    /// The number of packets that are due.
    pub packets: usize,
}

/// Why the line did not hold a packet. The caller must drop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// A random number selected the packet.
    #[error("the packet is lost")]
    Lost,
    /// The narrowest link's buffer is full.
    #[error("the buffer in front of the narrowest link is full")]
    Buffer,
    /// The line holds `packets_max` packets, the argument of [`DelayLine::new`].
    #[error("the delay line is full")]
    Full,
}

/// A first-in first-out line. A packet passes three stages: loss, the narrowest link with its
/// buffer, and the delay.
///
/// INVARIANT: due times never decrease along the line. So one verdict "everything up to this id"
/// releases a whole batch in order.
#[derive(Debug)]
pub struct DelayLine<D> {
    path: Impairments,
    packets_max: usize,
    /// Returns uniformly distributed numbers from 0 to 1.
    dice: D,
    /// The time at which the narrowest link has sent all packets that arrived so far.
    free_at: Option<Instant>,
    held: VecDeque<Held>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    id: u32,
    due: Instant,
}

impl<D: FnMut() -> f64> DelayLine<D> {
    /// Creates an empty line with the impairments of `path`, which holds at most `packets_max`
    /// packets. `dice` returns uniformly distributed numbers from 0 to 1.
    #[must_use]
    pub fn new(path: Impairments, packets_max: usize, dice: D) -> Self {
        Self {
            path,
            packets_max,
            dice,
            free_at: None,
            held: VecDeque::new(),
        }
    }

    /// Sets the one-way delay of later packets. Held packets keep their delay and their order.
    pub fn set_one_way_delay(&mut self, one_way_delay: Duration) {
        self.path.one_way_delay = one_way_delay;
    }

    /// Holds the packet `id` of `bytes` bytes, which arrived at `now`.
    ///
    /// # Errors
    /// [`Dropped`]: the line did not store the packet, and the caller must drop it.
    pub fn hold(&mut self, id: u32, bytes: u32, now: Instant) -> Result<(), Dropped> {
        if !self.path.loss.is_zero() && (self.dice)() < self.path.loss.probability() {
            return Err(Dropped::Lost);
        }
        if self.held.len() >= self.packets_max {
            return Err(Dropped::Full);
        }
        let sent = self.pass_narrowest(bytes, now)?;
        let due = sent + self.path.one_way_delay - self.path.jitter + self.draw_jitter();
        let due = self.held.back().map_or(due, |last| last.due.max(due));
        self.held.push_back(Held { id, due });
        Ok(())
    }

    /// Sends the packet over the narrowest link. Returns the time at which the link has sent it.
    fn pass_narrowest(&mut self, bytes: u32, now: Instant) -> Result<Instant, Dropped> {
        let Some(rate) = self.path.rate else {
            return Ok(now);
        };
        let begins = self.free_at.map_or(now, |free_at| free_at.max(now));
        if begins - now > self.path.buffer() {
            return Err(Dropped::Buffer);
        }
        let sent = begins + rate.time(bytes.into());
        self.free_at = Some(sent);
        Ok(sent)
    }

    /// Draws a time from 0 to twice the jitter.
    fn draw_jitter(&mut self) -> Duration {
        if self.path.jitter.is_zero() {
            return Duration::ZERO;
        }
        (2 * self.path.jitter).mul_f64((self.dice)().clamp(0.0, 1.0))
    }

    /// Removes and returns the packets that are due at `now`, or `None`.
    pub fn release(&mut self, now: Instant) -> Option<Release> {
        let packets = self.held.partition_point(|held| held.due <= now);
        self.take(packets)
    }

    /// Removes and returns all packets, at the end of the emulation.
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

    const FRAME: u32 = 1500;

    fn line(packets_max: usize) -> (DelayLine<impl FnMut() -> f64>, Instant) {
        let path = Impairments::delay(DELAY);
        let no_dice = || panic!("a path without loss and jitter draws no random number");
        (DelayLine::new(path, packets_max, no_dice), Instant::now())
    }

    /// A line whose `dice` repeat `numbers`.
    fn chance(path: Impairments, numbers: &'static [f64]) -> DelayLine<impl FnMut() -> f64> {
        let mut shown = numbers.iter().cycle().copied();
        DelayLine::new(path, 1000, move || shown.next().unwrap_or_default())
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_packet_is_due_one_delay_after_it_arrived_and_not_before() {
        let (mut line, start) = line(4);
        line.hold(7, FRAME, start).unwrap();
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
    fn a_changed_delay_is_that_of_the_packets_that_come_after_and_keeps_their_order() {
        let (mut line, start) = line(4);
        line.hold(1, FRAME, start).unwrap();
        line.set_one_way_delay(ms(90));
        line.hold(2, FRAME, start + ms(1)).unwrap();
        line.set_one_way_delay(ms(10));
        line.hold(3, FRAME, start + ms(2)).unwrap();
        let up_to = |up_to_id, packets| Some(Release { up_to_id, packets });
        assert_eq!(line.release(start + DELAY), up_to(1, 1));
        assert_eq!(line.release(start + ms(90)), None);
        assert_eq!(line.release(start + ms(91)), up_to(3, 2));
    }

    #[test]
    fn all_that_is_due_leaves_in_one_release_and_in_order() {
        let (mut line, start) = line(8);
        for (id, at) in [(1, 0), (2, 3), (3, 3), (4, 20)] {
            line.hold(id, FRAME, start + ms(at)).unwrap();
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
        line.hold(u32::MAX, FRAME, start).unwrap();
        line.hold(0, FRAME, start).unwrap();
        let all = Release {
            up_to_id: 0,
            packets: 2,
        };
        assert_eq!(line.release(start + DELAY), Some(all));
    }

    #[test]
    fn a_full_line_refuses_a_packet_and_has_room_again_after_a_release() {
        let (mut line, start) = line(2);
        line.hold(1, FRAME, start).unwrap();
        line.hold(2, FRAME, start).unwrap();
        assert_eq!(line.hold(3, FRAME, start), Err(Dropped::Full));
        line.release(start + DELAY);
        assert_eq!(line.hold(4, FRAME, start + DELAY), Ok(()));
    }

    #[test]
    fn the_end_releases_what_is_not_due_yet() {
        let (mut line, start) = line(4);
        assert_eq!(line.release_all(), None);
        line.hold(1, FRAME, start).unwrap();
        line.hold(2, FRAME, start).unwrap();
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
        let mut line = chance(Impairments::default(), &[]);
        line.hold(1, FRAME, now).unwrap();
        assert_eq!(
            line.release(now),
            Some(Release {
                up_to_id: 1,
                packets: 1
            })
        );
    }

    #[test]
    fn a_packet_is_lost_where_the_dice_are_below_the_loss() {
        let path = Impairments {
            loss: "25%".parse().unwrap(),
            ..Impairments::delay(DELAY)
        };
        let mut line = chance(path, &[0.24, 0.25, 0.9]);
        let now = Instant::now();
        let taken = [1, 2, 3].map(|id| line.hold(id, FRAME, now));
        assert_eq!(taken, [Err(Dropped::Lost), Ok(()), Ok(())]);
    }

    #[test]
    fn jitter_is_around_the_delay_and_keeps_the_order() {
        let path = Impairments {
            jitter: ms(10),
            ..Impairments::delay(DELAY)
        };
        let mut line = chance(path, &[1.0, 0.0, 0.5]);
        let start = Instant::now();
        line.hold(1, FRAME, start).unwrap();
        assert_eq!(line.next_due(), Some(start + ms(60)));
        // The delay of the second packet is 40 ms, but the line keeps it until the first packet is
        // due.
        line.hold(2, FRAME, start + ms(1)).unwrap();
        line.hold(3, FRAME, start + ms(50)).unwrap();
        let both = Release {
            up_to_id: 2,
            packets: 2,
        };
        assert_eq!(line.release(start + ms(60)), Some(both));
        assert_eq!(line.next_due(), Some(start + ms(100)));
    }

    #[test]
    fn the_narrowest_link_sends_one_packet_after_the_other() {
        let path = Impairments {
            rate: Some("12M".parse().unwrap()),
            ..Impairments::delay(DELAY)
        };
        let mut line = chance(path, &[]);
        let start = Instant::now();
        // 1,500 bytes take a millisecond.
        for id in [1, 2] {
            line.hold(id, FRAME, start).unwrap();
        }
        assert_eq!(line.next_due(), Some(start + ms(51)));
        assert_eq!(line.release(start + ms(51)).unwrap().up_to_id, 1);
        assert_eq!(line.next_due(), Some(start + ms(52)));
        // After a pause the link is free at once.
        line.hold(3, FRAME, start + ms(500)).unwrap();
        line.release(start + ms(52));
        assert_eq!(line.next_due(), Some(start + ms(551)));
    }

    #[test]
    fn what_the_buffer_has_no_room_for_is_dropped() {
        let path = Impairments {
            rate: Some("12M".parse().unwrap()),
            ..Impairments::delay(DELAY)
        };
        let mut line = chance(path, &[]);
        let now = Instant::now();
        let taken = (0..200)
            .filter(|id| line.hold(*id, FRAME, now).is_ok())
            .count();
        // The buffer has 100 packets of one millisecond each, and the link sends one more packet.
        assert_eq!(taken, 101);
        assert_eq!(line.hold(200, FRAME, now), Err(Dropped::Buffer));
        assert_eq!(line.hold(201, FRAME, now + ms(2)), Ok(()));
    }
}

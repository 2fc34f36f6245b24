//! The delay line: packet ids in, the same ids out later, or not at all. The pure core of the NFQUEUE
//! backend.
//!
//! Owns the queue of packets that are held and when each is due. In: an id, its length and the time it
//! arrived ([`DelayLine::hold`]). Out: up to which id everything is due ([`DelayLine::release`]) and
//! when to ask again ([`DelayLine::next_due`]). Must not read a clock, draw a random number of its own
//! or touch a socket: `now` and the dice come in, so tests run on a virtual clock. The driver is
//! [`crate::nfqueue::line`].

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::impairments::Impairments;

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

/// Why a packet was not taken: it is the caller's to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// The dice said so.
    #[error("the packet is lost")]
    Lost,
    /// The narrowest link's buffer is full.
    #[error("the buffer in front of the narrowest link is full")]
    Buffer,
    /// The line holds [`PACKETS_MAX`] packets, or what [`DelayLine::new`] was told.
    #[error("the delay line is full")]
    Full,
}

/// A first-in first-out line: first the dice, then the narrowest link with its buffer, then the way.
///
/// INVARIANT: due times never decrease along the line, since a packet is never due before the one
/// before it, so one verdict "everything up to this id" releases a whole batch in order.
#[derive(Debug)]
pub struct DelayLine<D> {
    path: Impairments,
    packets_max: usize,
    /// Numbers from 0 to 1, each as likely.
    dice: D,
    /// When the narrowest link has sent all that it was given.
    free_at: Option<Instant>,
    held: VecDeque<Held>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    id: u32,
    due: Instant,
}

impl<D: FnMut() -> f64> DelayLine<D> {
    /// An empty line that does to packets what `path` says and never holds more than `packets_max`.
    /// `dice`: numbers from 0 to 1, each as likely.
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

    /// From here on packets take this one-way delay; those that are held keep theirs, and their order.
    pub fn set_one_way_delay(&mut self, one_way_delay: Duration) {
        self.path.one_way_delay = one_way_delay;
    }

    /// Takes in the packet `id` of `bytes` bytes, which arrived at `now`.
    ///
    /// # Errors
    /// [`Dropped`]: nothing was stored, the packet is the caller's to drop.
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

    /// When the narrowest link has sent the packet.
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

    /// Nothing to twice the jitter.
    fn draw_jitter(&mut self) -> Duration {
        if self.path.jitter.is_zero() {
            return Duration::ZERO;
        }
        (2 * self.path.jitter).mul_f64((self.dice)().clamp(0.0, 1.0))
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

    const FRAME: u32 = 1500;

    fn line(packets_max: usize) -> (DelayLine<impl FnMut() -> f64>, Instant) {
        let path = Impairments::delay(DELAY);
        let no_dice = || panic!("nothing is left to chance");
        (DelayLine::new(path, packets_max, no_dice), Instant::now())
    }

    /// A line whose dice show `numbers` again and again.
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
        // Its own 40 ms would be over before the first one's 60.
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
            rate: Some("12Mbit".parse().unwrap()),
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
        // After a pause it is free at once.
        line.hold(3, FRAME, start + ms(500)).unwrap();
        line.release(start + ms(52));
        assert_eq!(line.next_due(), Some(start + ms(551)));
    }

    #[test]
    fn what_the_buffer_has_no_room_for_is_dropped() {
        let path = Impairments {
            rate: Some("12Mbit".parse().unwrap()),
            ..Impairments::delay(DELAY)
        };
        let mut line = chance(path, &[]);
        let now = Instant::now();
        let taken = (0..200)
            .filter(|id| line.hold(*id, FRAME, now).is_ok())
            .count();
        // 100 ms of a millisecond each, and the one that is being sent.
        assert_eq!(taken, 101);
        assert_eq!(line.hold(200, FRAME, now), Err(Dropped::Buffer));
        assert_eq!(line.hold(201, FRAME, now + ms(2)), Ok(()));
    }
}

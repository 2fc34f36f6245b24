//! Limits what a peer may cost by the rate of its frames. The library has totals over a
//! connection's life instead, which honest traffic reaches.
//!
//! The meter reads the heads of the frames between the library and the transport. If a peer exceeds
//! a rate, the connection ends. No honest peer comes near these rates:
//! - streams that the peer resets at once, before their answer (CVE-2023-44487);
//! - resets by this side because of the peer's errors (CVE-2025-8671);
//! - resets by this side because of streams that ended long ago, or of opens above the limit. A
//!   peer causes a few of these before it knows about the end or the limit;
//! - DATA frames without payload. The meter removes these frames, since the library ends a
//!   connection after 100 of them;
//! - very small DATA frames.
//!
//! The library processes all frames that it can read before it writes. So the meter passes at most
//! [`TURN_FRAMES`] frames, and then lets the other tasks run. While the peer reads nothing, the
//! meter passes at most [`UNREAD_FRAMES_MAX`] frames. These bounds limit what waits in the library.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::heads::{DATA, HEADERS, Head, RST_STREAM};
use crate::base::token_bucket::Bucket;

/// Maximum number of frames that the library processes at once.
pub(super) const TURN_FRAMES: usize = 256;
/// Maximum number of frames that the library processes while the transport takes no bytes.
const UNREAD_FRAMES_MAX: usize = 16_384;
/// A stream that the peer resets later than this is no rapid reset: the limit of concurrent streams
/// bounds such streams.
const YOUNG: Duration = Duration::from_millis(100);
/// Maximum number of young streams that the meter remembers.
const YOUNG_MAX: usize = 8192;
/// A DATA frame with less payload is very small.
const SMALL_BYTES: usize = 16;
/// A DATA frame with less payload costs the library more than its payload.
pub(super) const JOINED_BYTES: usize = 2 << 10;

/// Resets by the peer of young streams: 256 per second, 4,096 in a burst.
const RAPID: (u64, Duration) = (256, Duration::from_secs(16));
/// Resets because of errors: 32 per second, 256 in a burst.
const ERRORS: (u64, Duration) = (32, Duration::from_secs(8));
/// Resets because of ended streams or opens above the limit: 1,024 per second, 16,384 in a burst.
const LATE: (u64, Duration) = (1024, Duration::from_secs(16));
/// Frames without payload: 1,000 per second, 10,000 in a burst.
const EMPTY: (u64, Duration) = (1000, Duration::from_secs(10));
/// Very small frames of full turns, whose peer sends faster than this side reads: 4,096 per second,
/// 524,288 in a burst.
const SMALL: (u64, Duration) = (4096, Duration::from_secs(128));

const NO_ERROR: u32 = 0;
const STREAM_CLOSED: u32 = 5;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const CONNECT_ERROR: u32 = 10;

/// What the library may do with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Passes,
    /// The library never sees the frame.
    Removed,
    /// The frame waits for the next turn.
    Waits,
}

#[derive(Debug)]
pub(super) struct Meter {
    /// Number of frames that may pass in this turn.
    left: usize,
    /// Whether a frame waits for the next turn.
    waits: bool,
    /// Number of frames since the transport last took bytes; `None`: the transport takes bytes.
    unread: Option<usize>,
    /// The streams that the peer has opened within [`YOUNG`] and that this side has not answered.
    young: BTreeMap<u32, Instant>,
    /// The highest number of a stream that the peer has opened.
    newest: u32,
    /// Streams with a small DATA frame in this turn.
    small: Vec<u32>,
    rapid: Bucket,
    errors: Bucket,
    late: Bucket,
    empty: Bucket,
    tiny: Bucket,
    /// Number of DATA frames of this turn that are shorter than [`SMALL_BYTES`].
    tiny_of_turn: u64,
    excess: Option<&'static str>,
}

impl Default for Meter {
    fn default() -> Self {
        let bucket = |(per_second, burst)| Bucket::new(per_second, burst);
        Self {
            left: TURN_FRAMES,
            waits: false,
            unread: None,
            young: BTreeMap::new(),
            newest: 0,
            small: Vec::new(),
            rapid: bucket(RAPID),
            errors: bucket(ERRORS),
            late: bucket(LATE),
            empty: bucket(EMPTY),
            tiny: bucket(SMALL),
            tiny_of_turn: 0,
            excess: None,
        }
    }
}

impl Meter {
    /// Handles a frame of the peer. `is_last`: nothing that was read follows the frame.
    pub(super) fn receives(&mut self, head: Head, is_last: bool, now: Instant) -> Verdict {
        if head.is_empty_data() {
            if !self.empty.try_take(now, 1) {
                self.excess = Some("the peer sends too many DATA frames without payload");
            }
            return Verdict::Removed;
        }
        if self.left == 0 || self.excess.is_some() {
            self.waits = true;
            return Verdict::Waits;
        }
        self.left -= 1;
        match head.kind {
            HEADERS if head.stream > self.newest => {
                self.newest = head.stream;
                self.opens(head.stream, now);
            }
            RST_STREAM => {
                let opened = self.young.remove(&head.stream);
                let is_rapid = opened.is_some_and(|opened| now < opened + YOUNG);
                if is_rapid && !self.rapid.try_take(now, 1) {
                    self.excess = Some("the peer opens streams and resets them at once");
                }
            }
            DATA if head.length < JOINED_BYTES => {
                self.small.push(head.stream);
                let is_tiny = head.length < SMALL_BYTES && !head.ends_stream() && !is_last;
                self.tiny_of_turn += u64::from(is_tiny);
            }
            _ => {}
        }
        // A turn that is not full has all that had arrived, so this side keeps up with the peer.
        if self.left == 0 && !self.tiny.try_take(now, self.tiny_of_turn) {
            self.excess = Some("the peer sends too many small DATA frames");
        }
        Verdict::Passes
    }

    fn opens(&mut self, stream: u32, now: Instant) {
        while let Some(first) = self.young.first_entry() {
            if now < *first.get() + YOUNG && self.young.len() < YOUNG_MAX {
                break;
            }
            self.young.pop_first();
        }
        self.young.insert(stream, now);
    }

    /// Handles a frame of this side. `code` is the code of a reset.
    pub(super) fn sends(&mut self, head: Head, code: u32, now: Instant) {
        match head.kind {
            HEADERS => _ = self.young.remove(&head.stream),
            RST_STREAM => {
                self.young.remove(&head.stream);
                match code {
                    NO_ERROR | CANCEL | CONNECT_ERROR => {}
                    STREAM_CLOSED | REFUSED_STREAM => {
                        if !self.late.try_take(now, 1) {
                            let problem =
                                "the peer uses too many streams that ended or were refused";
                            self.excess = Some(problem);
                        }
                    }
                    _ => {
                        if !self.errors.try_take(now, 1) {
                            self.excess = Some("the peer causes too many resets by its errors");
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// Records whether the transport takes bytes.
    pub(super) fn takes(&mut self, takes: bool) {
        match takes {
            true => self.unread = None,
            false => _ = self.unread.get_or_insert(0),
        }
    }

    /// Begins a turn after the library has processed all frames that it got. Returns whether a
    /// frame waits that may now pass.
    pub(super) fn begin_turn(&mut self) -> bool {
        if let Some(unread) = &mut self.unread {
            *unread += TURN_FRAMES - self.left;
            if *unread >= UNREAD_FRAMES_MAX {
                self.left = 0;
                return false;
            }
        }
        self.left = TURN_FRAMES;
        self.tiny_of_turn = 0;
        // Nothing passes any more after an excess.
        self.excess.is_none() && std::mem::take(&mut self.waits)
    }

    /// Whether frames wait for the next turn.
    pub(super) fn is_shut(&self) -> bool {
        self.waits
    }

    /// Returns the streams with small DATA frames since the last call, once for each frame.
    pub(super) fn take_small(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.small)
    }

    /// How the peer has exceeded a rate; `None`: the peer has not.
    pub(super) fn excess(&self) -> Option<&'static str> {
        self.excess
    }
}

#[cfg(test)]
mod tests;

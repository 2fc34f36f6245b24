//! The sending half: holds payload until it is acknowledged. [`arrivals`] detects lost segments.

mod arrivals;

use std::collections::{BTreeSet, VecDeque};
use std::io::IoSlice;

use super::SEGMENT_PAYLOAD_BYTES;
use super::congestion::{Congestion, Sent};
use super::rtt::Rtt;

/// On a path that does not reorder segments, a segment is considered lost once this many later
/// segments have arrived (KCP's `resend = 2`).
const OVERTAKEN_FIRST: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    /// The segment must be sent again. `overtaken`: the reason is that later segments have arrived.
    Lost {
        overtaken: bool,
    },
    Arrived,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    /// Offset of the segment's payload.
    start: u64,
    length: u16,
    state: State,
    /// Position in the order of all transmissions.
    order: u64,
    /// The time of transmission, as in the segment's header.
    time: u32,
    again: bool,
    overtaken: bool,
    sent: Sent,
}

/// The result of one datagram of acknowledgements.
#[derive(Debug, Default)]
struct Arrivals {
    bytes: u64,
    segments: u64,
    newest: Option<(u64, Sent)>,
    rtt: Option<(u64, u64)>,
}

/// A segment to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Next {
    pub(super) serial: u64,
    pub(super) length: usize,
    is_new: bool,
    is_probe: bool,
}

/// The sending half of a connection; times in microseconds.
#[derive(Debug)]
pub(super) struct Sender {
    /// The serial of the first segment in `segments`. All earlier segments have arrived.
    first: u64,
    segments: VecDeque<Segment>,
    /// Payload from offset `base` on: first the payload of `segments`, then payload that was never
    /// sent.
    bytes: VecDeque<u8>,
    base: u64,
    /// Offset of the first byte that was never sent.
    unsent: u64,
    finished: bool,
    end_sent: bool,
    /// Order and serial of each transmission that is neither acknowledged nor lost yet, oldest
    /// first.
    log: VecDeque<(u64, u64)>,
    order: u64,
    /// The last transmission that has arrived.
    arrived: Option<u64>,
    overtaken: u64,
    lost: BTreeSet<u64>,
    probes: usize,
    attempts: u32,
    in_flight: u64,
    in_flight_segments: u64,
    last_sent: u64,
    /// The time at which transmission last began after a pause.
    pub(super) busy_since: u64,
    /// The time at which the last new acknowledgement arrived.
    progress: u64,
    /// The first serial beyond the peer's window. This serial never decreases, so a late datagram
    /// has no effect.
    peer_edge: u64,
    window_segments: u64,
    limit: usize,
    unsent_limit: usize,
    arrivals: Arrivals,
    pub(super) rtt: Rtt,
    pub(super) congestion: Congestion,
    pub(super) resent: u64,
    pub(super) acknowledged: u64,
    /// The time at which pacing permits the next segment.
    paced: Option<u64>,
}

impl Sender {
    /// `limit` is the size of the send buffer in bytes. `window` is the maximum number of segments
    /// in flight.
    pub(super) fn new(now: u64, first: u64, limit: usize, window: u16) -> Self {
        Self {
            first,
            segments: VecDeque::new(),
            bytes: VecDeque::new(),
            base: 0,
            unsent: 0,
            finished: false,
            end_sent: false,
            log: VecDeque::new(),
            order: 0,
            arrived: None,
            overtaken: OVERTAKEN_FIRST,
            lost: BTreeSet::new(),
            probes: 0,
            attempts: 0,
            in_flight: 0,
            in_flight_segments: 0,
            last_sent: now,
            busy_since: now,
            progress: now,
            // The initial window of every KCP (`IKCP_WND_RCV`), before the peer announces its own.
            peer_edge: first + 128,
            window_segments: window.into(),
            limit,
            unsent_limit: limit,
            arrivals: Arrivals::default(),
            rtt: Rtt::default(),
            congestion: Congestion::new(now),
            resent: 0,
            acknowledged: 0,
            paced: None,
        }
    }

    fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Bytes that have never been sent.
    pub(super) fn queued(&self) -> usize {
        // The difference is below `limit`.
        (self.end() - self.unsent) as usize
    }

    pub(super) fn in_flight_segments(&self) -> u64 {
        self.in_flight_segments
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight_segments > 0
    }

    /// Limits the accepted bytes that wait for their first transmission to about `bytes`.
    pub(super) fn bound_queue(&mut self, bytes: usize) {
        self.unsent_limit = bytes.max(SEGMENT_PAYLOAD_BYTES);
    }

    /// Number of bytes that are accepted now.
    pub(super) fn room(&self) -> usize {
        if self.finished {
            return 0;
        }
        let held = self.limit.saturating_sub(self.bytes.len());
        let queued = self.unsent_limit.saturating_sub(self.queued());
        // The sender accepts nothing while little room is free, to avoid small writes.
        if held < SEGMENT_PAYLOAD_BYTES || queued * 2 < self.unsent_limit {
            return 0;
        }
        held.min(queued)
    }

    pub(super) fn write(&mut self, slices: &[IoSlice<'_>]) -> usize {
        let room = self.room();
        let mut left = room;
        for slice in slices {
            let length = slice.len().min(left);
            self.bytes.extend(&slice[..length]);
            left -= length;
        }
        room - left
    }

    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Whether the peer has received all written bytes and the end.
    pub(super) fn is_settled(&self) -> bool {
        self.segments.is_empty() && self.queued() == 0 && (self.end_sent || !self.finished)
    }

    /// Whether bytes or the end wait to be sent for the first time.
    fn has_new(&self) -> bool {
        self.queued() > 0 || (self.finished && !self.end_sent)
    }

    /// Whether only the peer's window prevents the transmission of bytes or of the end.
    pub(super) fn is_shut_out(&self) -> bool {
        self.peer_edge <= self.first && self.segments.is_empty() && self.has_new()
    }

    /// The next segment to send now.
    pub(super) fn next(&mut self, now: u64) -> Option<Next> {
        self.paced = None;
        let probe = self.probes > 0;
        if let Some(&serial) = self.lost.first() {
            if !probe && !self.may_send(now) {
                return None;
            }
            let length = self.get(serial).map_or(0, |segment| segment.length.into());
            return Some(Next {
                serial,
                length,
                is_new: false,
                is_probe: probe,
            });
        }
        self.probes = 0;
        let on_their_way = self.segments.len() as u64;
        if !self.has_new() {
            if self.in_flight < self.congestion.window() {
                self.congestion.ran_dry(self.in_flight);
            }
            return None;
        }
        let serial = self.first + on_their_way;
        if on_their_way >= self.window_segments || serial >= self.peer_edge || !self.may_send(now) {
            return None;
        }
        Some(Next {
            serial,
            length: self.queued().min(SEGMENT_PAYLOAD_BYTES),
            is_new: true,
            is_probe: false,
        })
    }

    fn may_send(&mut self, now: u64) -> bool {
        match self.congestion.may_send(now, self.in_flight) {
            Ok(()) => true,
            Err(paced) => {
                self.paced = paced;
                false
            }
        }
    }

    fn get(&self, serial: u64) -> Option<&Segment> {
        let at = serial.checked_sub(self.first)?;
        self.segments.get(usize::try_from(at).ok()?)
    }

    fn get_mut(&mut self, serial: u64) -> Option<&mut Segment> {
        let at = serial.checked_sub(self.first)?;
        self.segments.get_mut(usize::try_from(at).ok()?)
    }

    /// Sends `next`: appends its payload to `out`.
    pub(super) fn send(&mut self, now: u64, next: Next, out: &mut Vec<u8>) {
        if !self.is_in_flight() {
            self.busy_since = now;
        }
        let length = next.length as u64;
        let sent = self.congestion.sent(now, length.max(1), self.in_flight);
        let (order, time) = (self.order, millis(now));
        let start = if next.is_new {
            let start = self.unsent;
            self.unsent += length;
            if length == 0 {
                self.end_sent = true;
            }
            self.segments.push_back(Segment {
                start,
                length: next.length as u16,
                state: State::InFlight,
                order,
                time,
                again: false,
                overtaken: false,
                sent,
            });
            start
        } else {
            self.lost.remove(&next.serial);
            if next.is_probe {
                self.probes -= 1;
            }
            self.resent += 1;
            let Some(segment) = self.get_mut(next.serial) else {
                return;
            };
            if let State::Lost { overtaken } = segment.state {
                segment.overtaken = overtaken;
            }
            segment.state = State::InFlight;
            (segment.order, segment.time) = (order, time);
            (segment.again, segment.sent) = (true, sent);
            segment.start
        };
        self.order += 1;
        self.log.push_back((order, next.serial));
        self.in_flight += length;
        self.in_flight_segments += 1;
        self.last_sent = now;
        let from = (start - self.base) as usize;
        let (first, second) = self.bytes.as_slices();
        let until = from + next.length;
        out.extend_from_slice(first.get(from..until.min(first.len())).unwrap_or_default());
        let (from, until) = (
            from.saturating_sub(first.len()),
            until.saturating_sub(first.len()),
        );
        out.extend_from_slice(second.get(from..until).unwrap_or_default());
    }
}

/// The time of transmission for a segment's header.
pub(super) fn millis(now: u64) -> u32 {
    (now / 1000) as u32
}

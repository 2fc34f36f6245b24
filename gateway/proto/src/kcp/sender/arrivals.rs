//! Determines which sent segments have arrived and which are lost.
//!
//! A segment is lost once segments have arrived that were sent well after this segment. All
//! transmissions have one order, so the same rule applies to a repeated segment. When nothing
//! arrives, the oldest segments are sent again as probes. The acknowledgements of the probes then
//! show which other segments are lost.

use super::super::segment::expand;
use super::{Sender, State};

/// On a path that reorders segments, at most this many later segments may arrive before a segment
/// is considered lost.
const OVERTAKEN_MAX: u64 = 1024;
/// Number of segments that a probe sends again.
const PROBES: usize = 2;
/// At this number of consecutive timeouts without an acknowledgement, all segments in flight are
/// considered lost.
const ATTEMPTS_LOST: u32 = 3;

impl Sender {
    /// Records that the peer has all segments before `next` and can receive `window` more segments.
    pub(in crate::kcp) fn peer_has(&mut self, now: u64, next: u32, window: u16) {
        let Some(next) = expand(self.first, next) else {
            return;
        };
        // A segment that was never sent cannot have arrived.
        if next > self.first + self.segments.len() as u64 {
            return;
        }
        self.peer_edge = self.peer_edge.max(next + u64::from(window));
        while self.first < next {
            self.arrive(now, self.first, None);
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some(segment) = self.segments.pop_front() {
            self.lost.remove(&self.first);
            self.first += 1;
            self.bytes.drain(..usize::from(segment.length));
            self.base += u64::from(segment.length);
        }
    }

    /// Records that the peer has the segment `serial`, which was sent at `time`.
    pub(in crate::kcp) fn peer_has_one(&mut self, now: u64, serial: u32, time: u32) {
        if let Some(serial) = expand(self.first, serial) {
            self.arrive(now, serial, Some(time));
            while self
                .segments
                .front()
                .is_some_and(|segment| segment.state == State::Arrived)
            {
                self.forget_first();
            }
        }
    }

    fn arrive(&mut self, now: u64, serial: u64, time: Option<u32>) {
        let Some(segment) = self.get_mut(serial) else {
            return;
        };
        let before = std::mem::replace(&mut segment.state, State::Arrived);
        if before == State::Arrived {
            return;
        }
        let segment = *segment;
        let length = u64::from(segment.length);
        match before {
            State::InFlight => {
                self.in_flight -= length;
                self.in_flight_segments -= 1;
            }
            State::Lost { .. } => {
                self.lost.remove(&serial);
            }
            State::Arrived => {}
        }
        self.congestion.delivered(now, length.max(1));
        self.acknowledged += length;
        self.progress = now;
        self.attempts = 0;
        let arrivals = &mut self.arrivals;
        arrivals.bytes += length;
        arrivals.segments += 1;
        // An acknowledgement of an earlier transmission does not measure the round trip of the last
        // transmission.
        let is_last = match time {
            Some(time) => time == segment.time,
            None => !segment.again,
        };
        if !is_last {
            let early = segment.overtaken || before == State::Lost { overtaken: true };
            if early && time.is_some() {
                self.overtaken = (self.overtaken * 2).min(OVERTAKEN_MAX);
            }
            return;
        }
        let order = segment.order;
        if arrivals.newest.is_none_or(|(newest, _)| newest < order) {
            arrivals.newest = Some((order, segment.sent));
        }
        if time.is_some() && arrivals.rtt.is_none_or(|(newest, _)| newest < order) {
            arrivals.rtt = Some((order, now.saturating_sub(segment.sent.at)));
        }
        self.arrived = Some(self.arrived.map_or(order, |arrived| arrived.max(order)));
    }

    /// Ends the input of one datagram, after all of its segments have been handled.
    pub(in crate::kcp) fn end_of_input(&mut self, now: u64) {
        let arrivals = std::mem::take(&mut self.arrivals);
        if arrivals.segments == 0 {
            return;
        }
        let rtt = arrivals.rtt.map(|(_, rtt)| rtt);
        if let Some(rtt) = rtt {
            self.rtt.sample(rtt);
        }
        self.judge(now);
        if let Some((_, newest)) = arrivals.newest {
            self.congestion
                .acknowledged(now, &newest, rtt, arrivals.bytes, self.in_flight);
        }
    }

    /// Finds lost segments among the segments that were sent before the last arrived segment.
    fn judge(&mut self, now: u64) {
        let Some(arrived) = self.arrived else { return };
        let (overtaken, patience) = (self.overtaken, self.rtt.overtaken());
        while let Some(&(order, serial)) = self.log.front() {
            let segment = self.get(serial).copied();
            let pending = segment
                .filter(|segment| segment.order == order && segment.state == State::InFlight);
            if let Some(segment) = pending {
                let by_count = arrived >= order + overtaken;
                let by_time = arrived > order && now >= segment.sent.at + patience;
                if !by_count && !by_time {
                    break;
                }
                self.lose(serial, by_count);
            }
            self.log.pop_front();
        }
    }

    fn lose(&mut self, serial: u64, overtaken: bool) {
        let Some(segment) = self.get_mut(serial) else {
            return;
        };
        if segment.state != State::InFlight {
            return;
        }
        segment.state = State::Lost { overtaken };
        let length = u64::from(segment.length);
        self.in_flight -= length;
        self.in_flight_segments -= 1;
        self.lost.insert(serial);
        if overtaken {
            self.congestion.lost(length);
        }
    }

    /// Sends all segments again at once, because the peer has received no segment.
    pub(in crate::kcp) fn begin_again(&mut self) {
        self.lose_all();
        self.probes = self.lost.len();
    }

    fn lose_all(&mut self) {
        for serial in self.first..self.first + self.segments.len() as u64 {
            self.lose(serial, false);
        }
        self.log.clear();
    }

    /// The time at which [`Self::handle_timeout`] must be called.
    pub(in crate::kcp) fn timeout(&self) -> Option<u64> {
        let overtaken = self.log.front().and_then(|&(order, serial)| {
            let segment = self.get(serial)?;
            let is_overtaken =
                self.arrived? > order && segment.order == order && segment.state == State::InFlight;
            is_overtaken.then(|| segment.sent.at + self.rtt.overtaken())
        });
        let probe = self.is_in_flight().then(|| self.probe_at());
        [self.paced, overtaken, probe].into_iter().flatten().min()
    }

    fn probe_at(&self) -> u64 {
        self.last_sent.max(self.progress) + self.rtt.wait(self.attempts)
    }

    pub(in crate::kcp) fn handle_timeout(&mut self, now: u64) -> bool {
        self.judge(now);
        if !self.is_in_flight() || now < self.probe_at() {
            return false;
        }
        self.attempts = self.attempts.saturating_add(1);
        let all_lost = self.attempts >= ATTEMPTS_LOST;
        if all_lost {
            self.lose_all();
            self.congestion.lost_all();
        } else {
            let oldest: Vec<u64> = (self.first..)
                .zip(&self.segments)
                .filter(|(_, segment)| segment.state == State::InFlight)
                .map(|(serial, _)| serial)
                .take(PROBES)
                .collect();
            for serial in oldest {
                self.lose(serial, false);
            }
        }
        self.probes = PROBES.min(self.lost.len());
        all_lost
    }
}

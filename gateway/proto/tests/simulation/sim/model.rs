//! The reference model: the actions of each application on each stream, and so the events that the
//! other application may observe.
//!
//! The model checks every event of a session when it occurs. An arriving byte must be the next byte
//! that was sent. An end of file must follow the last byte. A cut must have been requested by a
//! side and must have the code of that side. At the end, [`Model::judge`] checks that every stream
//! ended for a known cause and that both sides were informed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muxtunnel_proto::{Outcome, Reason, Refusal, ResetCode};

use super::pipe::Portion;
use super::profile::Protocol;

/// The data that one side sends on a stream.
#[derive(Debug, Default, Clone)]
pub struct Flow {
    /// Number of bytes passed to the session.
    pub sent: u64,
    /// Whether the session has been informed of the end of the bytes.
    pub finished: bool,
    /// All bytes before this offset have arrived.
    pub arrived: u64,
    /// Ranges after a gap, from start to end.
    pub early: BTreeMap<u64, u64>,
    /// Number of bytes that the receiving socket has taken.
    pub delivered: u64,
}

impl Flow {
    pub fn in_flight(&self) -> u64 {
        self.sent - self.arrived
    }
}

/// How a stream ended in the view of one side's application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Both directions ended cleanly.
    Complete,
    Cut(Outcome),
    /// This application cut the stream.
    GaveUp,
    /// The application refused the open.
    Refused,
    /// The application's open failed.
    NotOpened(Refusal),
}

#[derive(Debug, Clone)]
pub struct Record {
    pub opener: usize,
    pub opened_at: Instant,
    /// One flow for each side that sends.
    pub flows: [Flow; 2],
    /// The code by which a side's application cut the stream.
    pub gave_up: [Option<ResetCode>; 2],
    pub refusal: Option<Refusal>,
    /// Whether the acceptor has received the open.
    pub incoming: bool,
    pub accepted: bool,
    pub verdicts: [Option<Verdict>; 2],
}

/// All streams of a run, by label.
#[derive(Debug)]
pub struct Model {
    protocol: Protocol,
    /// The open timeout of each side.
    open_timeouts: [Duration; 2],
    pub streams: Vec<Record>,
    /// Whether a side accepts no more streams.
    pub went_away: [bool; 2],
    /// Whether a side's carrier is lost.
    pub lost: [bool; 2],
}

/// The refusal that the model's applications return.
pub fn refusal(label: u32, reason: Reason) -> Refusal {
    Refusal::new(reason, format!("refused {label}"))
}

impl Model {
    pub fn new(protocol: Protocol, open_timeouts: [Duration; 2]) -> Self {
        Self {
            protocol,
            open_timeouts,
            streams: Vec::new(),
            went_away: [false; 2],
            lost: [false; 2],
        }
    }

    /// Records that `opener` opens a stream. Returns the label of the stream.
    pub fn open(&mut self, opener: usize, now: Instant) -> u32 {
        self.streams.push(Record {
            opener,
            opened_at: now,
            flows: [Flow::default(), Flow::default()],
            gave_up: [None; 2],
            refusal: None,
            incoming: false,
            accepted: false,
            verdicts: [None, None],
        });
        self.streams.len() as u32 - 1
    }

    /// Number of streams that `side` has opened.
    pub fn opened_by(&self, side: usize) -> usize {
        let of_side = |record: &&Record| record.opener == side;
        self.streams.iter().filter(of_side).count()
    }

    pub fn of(&mut self, label: u32) -> &mut Record {
        &mut self.streams[label as usize]
    }

    pub fn see_incoming(&mut self, label: u32, side: usize) {
        let went_away = self.went_away[side] && self.protocol == Protocol::Native;
        assert!(!went_away, "stream {label} was accepted after GOAWAY");
        let stream = self.of(label);
        assert!(stream.opener != side && !stream.incoming, "stream {label}");
        stream.incoming = true;
    }

    pub fn see_opened(&mut self, label: u32, side: usize) {
        let stream = self.of(label);
        assert!(
            stream.opener == side && stream.accepted,
            "stream {label} was not accepted"
        );
    }

    /// Records payload that arrived for the socket of `side`. Returns the number of bytes that
    /// become deliverable.
    pub fn see_payload(&mut self, portion: &Portion, label: u32, side: usize) -> u64 {
        assert_eq!(portion.label, label, "payload of another stream");
        assert_ne!(portion.from, side, "a side received its own payload");
        let flow = &mut self.of(label).flows[portion.from];
        let (start, end) = (portion.range.start, portion.range.end);
        assert!(end <= flow.sent, "stream {label}: bytes were never sent");
        let before = flow.early.range(..end).next_back();
        assert!(
            start >= flow.arrived && before.is_none_or(|(_, before)| *before <= start),
            "stream {label}: {start}..{end} arrived twice"
        );
        flow.early.insert(start, end);
        let arrived = flow.arrived;
        while let Some(entry) = flow.early.first_entry()
            && *entry.key() == flow.arrived
        {
            flow.arrived = entry.remove();
        }
        flow.arrived - arrived
    }

    pub fn see_finished(&mut self, label: u32, side: usize) {
        let flow = &self.of(label).flows[1 - side];
        assert!(flow.finished, "stream {label} never ended");
        assert_eq!(
            flow.arrived, flow.sent,
            "stream {label} ended before its last byte"
        );
    }

    pub fn see_reset(&mut self, label: u32, side: usize, cause: Outcome) {
        let (protocol, lost) = (self.protocol, self.lost[side]);
        let stream = self.of(label);
        let by_peer = stream.gave_up[1 - side];
        let justified = match (cause, protocol) {
            (Outcome::PeerReset(code), Protocol::Native) => by_peer == Some(code),
            // JMUX carries no reason.
            (Outcome::PeerReset(code), Protocol::Jmux) => {
                by_peer.is_some() && code == ResetCode::Cancelled
            }
            (Outcome::CarrierLost, _) => lost,
            (Outcome::PeerBrokeCredit | Outcome::Stalled | Outcome::OffsetsExhausted, _) => false,
        };
        assert!(justified, "stream {label}: {cause:?} has no cause");
    }

    /// The session reports that the peer has not received the open, and will not receive it.
    pub fn see_returned(&mut self, label: u32, side: usize) {
        // If the session was lost, the open had not left.
        let away = self.went_away[1 - side] || self.lost[side];
        let stream = self.of(label);
        assert_eq!(stream.opener, side, "stream {label}");
        assert!(away && !stream.incoming, "stream {label} was accepted");
        let refusal = Refusal::new(Reason::General, "the open was returned");
        self.end(label, side, Verdict::NotOpened(refusal));
    }

    pub fn see_open_failed(&mut self, label: u32, side: usize, now: Instant, refusal: &Refusal) {
        let open_timeout = self.open_timeouts[side];
        let (lost, away) = (self.lost[side], self.went_away[1 - side]);
        let jmux = self.protocol == Protocol::Jmux;
        let stream = self.of(label);
        assert_eq!(stream.opener, side, "stream {label}");
        let general = refusal.reason == Reason::General;
        let timed_out =
            refusal.reason == Reason::TimedOut && now >= stream.opened_at + open_timeout;
        let unheard = general && !stream.incoming && (away || jmux);
        // The stream was accepted, and cut before the answer had left.
        let given_up = general && stream.gave_up[1 - side].is_some();
        let refused = stream.refusal.as_ref() == Some(refusal);
        let justified = refused || given_up || timed_out || unheard || lost;
        assert!(justified, "stream {label}: {refusal:?} has no cause");
        if timed_out && stream.refusal.is_none() {
            stream.gave_up[side] = Some(ResetCode::OpenTimeout);
        }
    }

    pub fn end(&mut self, label: u32, side: usize, verdict: Verdict) {
        let known = &mut self.of(label).verdicts[side];
        assert_eq!(*known, None, "stream {label} ended twice: {verdict:?}");
        *known = Some(verdict);
    }

    /// Judges all streams after everything has ended.
    pub fn judge(&self) {
        for (label, stream) in self.streams.iter().enumerate() {
            for side in 0..2 {
                self.judge_side(label, stream, side);
            }
        }
    }

    fn judge_side(&self, label: usize, stream: &Record, side: usize) {
        let Some(verdict) = &stream.verdicts[side] else {
            assert!(
                stream.opener != side && !stream.incoming,
                "stream {label} was never ended at side {side}"
            );
            return;
        };
        let flow = &stream.flows[1 - side];
        if *verdict == Verdict::Complete {
            assert!(
                flow.finished && flow.delivered == flow.sent,
                "stream {label} was silently truncated: {flow:?}"
            );
        }
        if stream.gave_up[1 - side].is_some() && !self.lost[side] {
            assert!(
                *verdict != Verdict::Complete || stream.flows[side].finished,
                "stream {label} was cut, but side {side} did not learn of it"
            );
        }
        let untouched =
            stream.gave_up == [None; 2] && stream.accepted && !self.lost[0] && !self.lost[1];
        if untouched {
            assert_eq!(*verdict, Verdict::Complete, "stream {label}, side {side}");
        }
    }
}

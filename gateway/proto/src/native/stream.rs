//! The life of one stream: its two halves (RFC 9000, section 3) and what is due of it.
//!
//! A TCP connection cannot be reset in one direction alone, so a cut of either half cuts the stream:
//! each side ends its own half with RESET_STREAM, unless it had ended before, and asks for the end of
//! the other with STOP_SENDING where it did not come. A stream is gone when both halves have ended and
//! what was received has been taken or thrown away.

use std::time::Instant;

use super::codec::{Frame, OFFSET_MAX, stream_header};
use super::log::Sent;
use super::ranges::{Ranges, Unusable};
use super::window::{SessionWindow, StreamWindow};
use crate::session::{
    CarrierId, CreditView, FrameHeader, Priority, ResetCode, SendCapacity, Source, StreamId, Token,
};

/// How far the open has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// We asked; the answer is due at this moment.
    Opening(Instant),
    /// The peer asked; the application decides.
    Accepting,
    /// Answered, or cut before.
    Open,
}

/// The half that we send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendHalf {
    Streaming,
    /// The source has ended; FIN follows the last batch.
    Finishing,
    /// RESET_STREAM is due.
    Cut(ResetCode),
    /// FIN or RESET_STREAM is sent.
    Ended,
}

/// The half that we receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecvHalf {
    Streaming,
    /// We gave it up; what still comes is thrown away.
    Discarding,
    /// FIN or RESET_STREAM has come.
    Ended,
}

#[derive(Debug)]
struct Batch {
    token: Token,
    length: usize,
    held: u64,
}

/// A batch that will never be sent: nothing, where there was none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unsent {
    pub(super) bytes: u64,
    pub(super) held: u64,
}

/// What an OPEN says.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) target: String,
    pub(super) priority: Priority,
    pub(super) source: Option<Source>,
}

/// One stream.
#[derive(Debug)]
pub(super) struct Stream {
    id: StreamId,
    pub(super) phase: Phase,
    pub(super) window: StreamWindow,
    /// To be sent.
    open: Option<Open>,
    /// To be sent with OPENED.
    address: Option<String>,
    /// To be sent with STOP_SENDING.
    stop: Option<ResetCode>,
    /// To be sent with RESET_STREAM.
    reason: String,
    /// The peer takes up to this offset.
    send_limit: u64,
    /// What is sent, the waiting batch included.
    queued: u64,
    /// What is sent.
    sent: u64,
    batch: Option<Batch>,
    send: SendHalf,
    recv: RecvHalf,
    /// What has come.
    ranges: Ranges,
    /// Where the peer's half ends, once FIN has said so.
    final_size: Option<u64>,
    /// The carrier of its bulk, where it is not the express one.
    pub(super) home: Option<CarrierId>,
    /// The peer knows of the stream: its frames may take any carrier.
    answered: bool,
    /// It waits for the session's credit.
    pub(super) blocked: bool,
    /// When to see whether its window is idle.
    pub(super) idle_check: Option<Instant>,
    /// The application knows of the cut, or asked for it.
    cut_known: bool,
}

impl Stream {
    pub(super) fn opening(
        id: StreamId,
        open: Open,
        deadline: Instant,
        window: StreamWindow,
        send_limit: u64,
    ) -> Self {
        let mut stream = Self::new(id, Phase::Opening(deadline), window, send_limit);
        stream.open = Some(open);
        stream
    }

    pub(super) fn accepting(id: StreamId, window: StreamWindow, send_limit: u64) -> Self {
        Self::new(id, Phase::Accepting, window, send_limit)
    }

    fn new(id: StreamId, phase: Phase, window: StreamWindow, send_limit: u64) -> Self {
        Self {
            id,
            phase,
            window,
            open: None,
            address: None,
            stop: None,
            reason: String::new(),
            send_limit,
            queued: 0,
            sent: 0,
            batch: None,
            send: SendHalf::Streaming,
            recv: RecvHalf::Streaming,
            ranges: Ranges::default(),
            final_size: None,
            home: None,
            answered: phase == Phase::Accepting,
            blocked: false,
            idle_check: None,
            cut_known: false,
        }
    }

    /// OPENED or a refusal has come.
    pub(super) fn learn_answer(&mut self) {
        self.answered = true;
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answered
    }

    /// The application took the stream up.
    pub(super) fn accept(&mut self, address: &str) {
        self.phase = Phase::Open;
        self.address = Some(address.to_owned());
    }

    /// `None`: it takes nothing any more. The session's credit is not looked at here; the acceptor
    /// has no socket to read before it has accepted.
    pub(super) fn send_capacity(
        &self,
        header_bytes: usize,
        frame_max: u32,
        retained: bool,
    ) -> Option<SendCapacity> {
        if self.send != SendHalf::Streaming {
            return None;
        }
        let waits = self.batch.is_some() || self.phase == Phase::Accepting;
        Some(SendCapacity {
            // A batch is one frame.
            bytes: if waits {
                0
            } else {
                (self.send_limit - self.queued).min(frame_max.into())
            },
            header_bytes,
            payload_max: frame_max as usize,
            retained,
            retain_scarce: false,
        })
    }

    /// Whether it takes more, where the session does.
    pub(super) fn has_credit(&self) -> bool {
        self.send_capacity(0, u32::MAX, false)
            .is_some_and(|capacity| capacity.bytes > 0)
    }

    /// All 2^48 offsets are used up.
    pub(super) fn is_exhausted(&self) -> bool {
        self.queued == OFFSET_MAX
    }

    /// Returns whether the stream took it.
    pub(super) fn queue_batch(&mut self, length: usize, held: u64, token: Token) -> bool {
        let fits = length as u64 <= self.send_limit - self.queued;
        debug_assert!(self.batch.is_none() && fits && length > 0);
        let taken = self.send == SendHalf::Streaming && self.batch.is_none() && fits && length > 0;
        if taken {
            self.queued += length as u64;
            self.batch = Some(Batch {
                token,
                length,
                held,
            });
        }
        taken
    }

    /// MAX_STREAM_DATA. Returns whether there was no credit before.
    pub(super) fn raise_limit(&mut self, limit: u64) -> bool {
        let was_empty = self.send_limit == self.queued;
        self.send_limit = self.send_limit.max(limit);
        was_empty && self.send_limit > self.queued
    }

    pub(super) fn finish(&mut self) {
        if self.send == SendHalf::Streaming {
            self.send = SendHalf::Finishing;
        }
    }

    pub(super) fn finishing(&self) -> bool {
        self.send == SendHalf::Finishing
    }

    /// Cuts both halves, as far as they have not ended. Returns the batch that will never be sent: the
    /// session's credit for it comes back.
    pub(super) fn cut(
        &mut self,
        code: ResetCode,
        reason: &str,
        session: &mut SessionWindow,
    ) -> Unsent {
        self.phase = Phase::Open;
        self.address = None;
        self.cut_known = true;
        self.window.discard(session);
        match (self.recv, self.final_size) {
            (RecvHalf::Streaming, None) => {
                self.recv = RecvHalf::Discarding;
                self.stop = Some(code);
            }
            // All has been sent, and what is still on its way is accounted for.
            (RecvHalf::Streaming, Some(_)) => self.recv = RecvHalf::Ended,
            (RecvHalf::Discarding | RecvHalf::Ended, _) => {}
        }
        self.cut_sending(code, reason)
    }

    /// The peer cut the stream, which ends what we send too.
    pub(super) fn cut_sending(&mut self, code: ResetCode, reason: &str) -> Unsent {
        if !matches!(self.send, SendHalf::Streaming | SendHalf::Finishing) {
            return Unsent::default();
        }
        self.send = SendHalf::Cut(code);
        reason.clone_into(&mut self.reason);
        let batch = self.batch.take();
        let held = batch.map_or(0, |batch| batch.held);
        let bytes = self.queued - self.sent;
        self.queued = self.sent;
        Unsent { bytes, held }
    }

    /// Whether an OPEN has not been transmitted: then the peer knows nothing of the stream.
    pub(super) fn is_unsent(&self) -> bool {
        self.open.is_some()
    }

    /// Whether a frame is due that goes before all payload: OPEN or OPENED.
    pub(super) fn is_unannounced(&self) -> bool {
        self.open.is_some() || self.address.is_some()
    }

    /// Whether payload that arrives now is for the local socket.
    pub(super) fn wants_payload(&self) -> bool {
        self.recv == RecvHalf::Streaming
    }

    /// Whether the peer's half has ended: no payload may come any more.
    pub(super) fn recv_ended(&self) -> bool {
        self.recv == RecvHalf::Ended
    }

    /// FIN has come with all before it, or RESET_STREAM: nothing of it is waited for any more.
    pub(super) fn end_receiving(&mut self) {
        self.stop = None;
        self.recv = RecvHalf::Ended;
    }

    /// RESET_STREAM has come: what is behind a gap is never delivered.
    pub(super) fn end_at_gap(&mut self, session: &mut SessionWindow) {
        self.window.give_up_beyond(self.ranges.prefix(), session);
        self.end_receiving();
    }

    /// Whether payload at `start..end` can come.
    pub(super) fn check_range(&self, start: u64, end: u64) -> Result<(), Unusable> {
        self.ranges.check(start, end)
    }

    /// Payload at `start..end` has come.
    pub(super) fn insert_range(&mut self, start: u64, end: u64) {
        self.ranges.insert(start, end);
    }

    /// Since when the local socket takes nothing of what is there for it. A stream that was cut has ended already.
    pub(super) fn stalled_since(&self) -> Option<Instant> {
        let since = self.window.stalled_since(self.ranges.prefix());
        since.filter(|_| !self.cut_known)
    }

    /// What the peer said of the end; `false`: it said something else before, or more has come.
    pub(super) fn learn_final_size(&mut self, size: u64) -> bool {
        *self.final_size.get_or_insert(size) == size && self.window.received() <= size
    }

    pub(super) fn final_size(&self) -> Option<u64> {
        self.final_size
    }

    /// Whether FIN and all that is before it has come.
    pub(super) fn has_all(&self) -> bool {
        self.final_size == Some(self.ranges.prefix())
    }

    /// Whether a cut is news to the application; it is told now.
    pub(super) fn tell_cut(&mut self) -> bool {
        !std::mem::replace(&mut self.cut_known, true)
    }

    /// Whether a limit is worth a frame.
    pub(super) fn credit_due(&self) -> bool {
        self.recv == RecvHalf::Streaming && self.final_size.is_none() && self.window.due()
    }

    /// Both halves have ended and nothing that came still waits for the local socket.
    pub(super) fn done(&self) -> bool {
        self.send == SendHalf::Ended
            && self.recv == RecvHalf::Ended
            && self.stop.is_none()
            && self.window.buffered() == 0
    }

    /// The next control frame that is due.
    pub(super) fn next_control(&mut self) -> Option<Frame> {
        let stream = self.id;
        if let Some(open) = self.open.take() {
            return Some(Frame::Open {
                stream,
                priority: open.priority.code(),
                source: open.source,
                target: open.target,
            });
        }
        if let Some(address) = self.address.take() {
            return Some(Frame::Opened { stream, address });
        }
        if self.credit_due() {
            let limit = self.window.advertise();
            return Some(Frame::MaxStreamData { stream, limit });
        }
        if let SendHalf::Cut(code) = self.send {
            self.send = SendHalf::Ended;
            return Some(Frame::ResetStream {
                stream,
                code: code.code(),
                final_size: self.sent,
                reason: std::mem::take(&mut self.reason),
            });
        }
        let code = self.stop.take()?.code();
        Some(Frame::StopSending { stream, code })
    }

    /// FIN, once it is due.
    pub(super) fn next_fin(&mut self) -> Option<FrameHeader> {
        let due = self.send == SendHalf::Finishing && self.batch.is_none();
        due.then(|| {
            self.send = SendHalf::Ended;
            FrameHeader::new(stream_header(self.id, self.sent, 0, true))
        })
    }

    /// The batch, as one frame.
    pub(super) fn next_data(&mut self) -> Option<Sent> {
        let batch = self.batch.take()?;
        let sent = Sent {
            stream: self.id,
            offset: self.sent,
            // At most frame_max, which has 32 bits.
            length: batch.length as u32,
            held: batch.held,
            token: batch.token,
            start: 0,
        };
        self.sent += batch.length as u64;
        Some(sent)
    }

    /// Bytes of the batch that waits.
    pub(super) fn waiting(&self) -> Option<usize> {
        self.batch.as_ref().map(|batch| batch.length)
    }

    pub(super) fn credit(&self) -> CreditView {
        CreditView {
            peer: self.id.0,
            send: self.send_limit - self.queued,
            recv: self.window.credit(),
            buffered: self.window.buffered(),
            owed: self.window.owed(),
        }
    }
}

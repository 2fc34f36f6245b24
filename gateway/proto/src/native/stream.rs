//! The life of one stream: its two halves (RFC 9000, section 3) and its frames to send.
//!
//! A reset of a TCP connection ends both directions, so a cut of either half cuts the stream. Each
//! side ends its own half with RESET_STREAM, unless that half has ended already. If the other half
//! has not ended, the side requests the end of that half with STOP_SENDING. A stream is gone when
//! both halves have ended and all received payload has been taken or discarded.

use std::time::Instant;

use super::codec::{Frame, OFFSET_MAX, stream_header};
use super::log::Sent;
use super::ranges::{Ranges, Unusable};
use super::window::{SessionWindow, StreamWindow};
use crate::session::{
    CarrierId, CreditView, FrameHeader, Priority, ResetCode, SendCapacity, Source, StreamId, Token,
};

/// The state of the open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// This side sent the open. The answer must arrive by this time.
    Opening(Instant),
    /// The peer sent the open, and the application has not answered yet.
    Accepting,
    /// The open was answered, or the stream was cut before the answer.
    Open,
}

/// The half that this side sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendHalf {
    Streaming,
    /// The source has ended; FIN follows the last batch.
    Finishing,
    /// RESET_STREAM must be sent.
    Cut(ResetCode),
    /// FIN or RESET_STREAM has been sent.
    Ended,
}

/// The half that this side receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecvHalf {
    Streaming,
    /// This side gave the half up. Arriving payload is discarded.
    Discarding,
    /// FIN or RESET_STREAM has arrived.
    Ended,
}

#[derive(Debug)]
struct Batch {
    token: Token,
    length: usize,
    held: u64,
}

/// The size of a batch that will never be sent. Zero if no batch waited.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unsent {
    pub(super) bytes: u64,
    pub(super) held: u64,
}

/// The fields of an OPEN.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) target: String,
    pub(super) priority: Priority,
    pub(super) source: Option<Source>,
}

/// The state of one stream.
#[derive(Debug)]
pub(super) struct Stream {
    id: StreamId,
    pub(super) phase: Phase,
    pub(super) window: StreamWindow,
    /// The OPEN that must be sent.
    open: Option<Open>,
    /// The address of an OPENED that must be sent.
    address: Option<String>,
    /// The code of a STOP_SENDING that must be sent.
    stop: Option<ResetCode>,
    /// The reason for RESET_STREAM.
    reason: String,
    /// The offset up to which the peer accepts payload.
    send_limit: u64,
    /// Number of bytes sent, including the waiting batch.
    queued: u64,
    /// Number of bytes sent.
    sent: u64,
    batch: Option<Batch>,
    send: SendHalf,
    recv: RecvHalf,
    /// The bytes that have arrived.
    ranges: Ranges,
    /// The offset at which the peer's half ends, once FIN has arrived.
    final_size: Option<u64>,
    /// The carrier of the stream's bulk payload, if that is not the express carrier.
    pub(super) home: Option<CarrierId>,
    /// Whether the peer has received the open, so that frames of the stream may use any carrier.
    answered: bool,
    /// Whether the stream waits for session credit.
    pub(super) blocked: bool,
    /// The time of the next check for an idle window.
    pub(super) idle_check: Option<Instant>,
    /// Whether the application requested the cut or has been informed of it.
    cut_known: bool,
}

impl Stream {
    pub(super) fn opening(
        id: StreamId,
        open: Open,
        deadline: Instant,
        window: StreamWindow,
        send_window: u64,
    ) -> Self {
        let mut stream = Self::new(id, Phase::Opening(deadline), window, send_window);
        stream.open = Some(open);
        stream
    }

    pub(super) fn accepting(id: StreamId, window: StreamWindow, send_window: u64) -> Self {
        Self::new(id, Phase::Accepting, window, send_window)
    }

    /// `window` has received no payload, so both directions start at its offset. `send_window` is
    /// the number of bytes that the peer accepts at first.
    fn new(id: StreamId, phase: Phase, window: StreamWindow, send_window: u64) -> Self {
        let first = window.received();
        Self {
            id,
            phase,
            window,
            open: None,
            address: None,
            stop: None,
            reason: String::new(),
            send_limit: (first + send_window).min(OFFSET_MAX),
            queued: first,
            sent: first,
            batch: None,
            send: SendHalf::Streaming,
            recv: RecvHalf::Streaming,
            ranges: Ranges::new(first),
            final_size: None,
            home: None,
            answered: phase == Phase::Accepting,
            blocked: false,
            idle_check: None,
            cut_known: false,
        }
    }

    /// Records that OPENED or a refusal has arrived.
    pub(super) fn learn_answer(&mut self) {
        self.answered = true;
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answered
    }

    /// The application accepted the stream.
    pub(super) fn accept(&mut self, address: &str) {
        self.phase = Phase::Open;
        self.address = Some(address.to_owned());
    }

    /// The capacity for payload, without regard to the session's credit. `None`: the stream accepts
    /// no more payload. The acceptor has no socket to read from before it accepts the stream.
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

    /// Whether the stream's own credit permits it to send more, regardless of the session's credit.
    pub(super) fn has_credit(&self) -> bool {
        self.send_capacity(0, u32::MAX, false)
            .is_some_and(|capacity| capacity.bytes > 0)
    }

    /// Whether all 2^48 offsets are used up.
    pub(super) fn is_exhausted(&self) -> bool {
        self.queued == OFFSET_MAX
    }

    /// Returns whether the batch fits the stream's credit, so that it can be scheduled.
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

    /// Handles MAX_STREAM_DATA. Returns whether the stream had no credit before.
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

    /// Cuts the halves that have not ended. Returns the batch that will never be sent. Its session
    /// credit becomes available again.
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
            // The peer has sent its final size, so the bytes in flight are accounted for.
            (RecvHalf::Streaming, Some(_)) => self.recv = RecvHalf::Ended,
            (RecvHalf::Discarding | RecvHalf::Ended, _) => {}
        }
        self.cut_sending(code, reason)
    }

    /// Handles a cut by the peer, which also ends the sending half.
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

    /// Whether the OPEN has not been transmitted yet.
    pub(super) fn is_unsent(&self) -> bool {
        self.open.is_some()
    }

    /// Whether OPEN or OPENED must be sent before any payload.
    pub(super) fn is_unannounced(&self) -> bool {
        self.open.is_some() || self.address.is_some()
    }

    /// Whether arriving payload is for the local socket.
    pub(super) fn wants_payload(&self) -> bool {
        self.recv == RecvHalf::Streaming
    }

    /// Whether the receiving half has ended, so that no payload may arrive.
    pub(super) fn recv_ended(&self) -> bool {
        self.recv == RecvHalf::Ended
    }

    /// Ends the receiving half, after RESET_STREAM, or after FIN and all payload before it.
    pub(super) fn end_receiving(&mut self) {
        self.stop = None;
        self.recv = RecvHalf::Ended;
    }

    /// Handles RESET_STREAM. Payload after a gap is never delivered.
    pub(super) fn end_at_gap(&mut self, session: &mut SessionWindow) {
        self.window.give_up_beyond(self.ranges.prefix(), session);
        self.end_receiving();
    }

    /// Whether payload at `start..end` may arrive.
    pub(super) fn check_range(&self, start: u64, end: u64) -> Result<(), Unusable> {
        self.ranges.check(start, end)
    }

    /// Records that payload at `start..end` has arrived.
    pub(super) fn insert_range(&mut self, start: u64, end: u64) {
        self.ranges.insert(start, end);
    }

    /// The time since which the local socket has accepted no payload. `None` for a stream that was
    /// cut.
    pub(super) fn stalled_since(&self) -> Option<Instant> {
        let since = self.window.stalled_since(self.ranges.prefix());
        since.filter(|_| !self.is_cut())
    }

    /// Records the final size. Returns `false` if the peer sent a different final size before, or
    /// if more bytes have arrived.
    pub(super) fn learn_final_size(&mut self, size: u64) -> bool {
        *self.final_size.get_or_insert(size) == size && self.window.received() <= size
    }

    pub(super) fn final_size(&self) -> Option<u64> {
        self.final_size
    }

    /// Whether FIN and all payload before it have arrived.
    pub(super) fn has_all(&self) -> bool {
        self.final_size == Some(self.ranges.prefix())
    }

    /// Whether the application requested the cut or has been informed of it.
    pub(super) fn is_cut(&self) -> bool {
        self.cut_known
    }

    /// Whether the application must still be informed of the cut. Records that the caller informs
    /// it.
    pub(super) fn tell_cut(&mut self) -> bool {
        !std::mem::replace(&mut self.cut_known, true)
    }

    /// Whether the limit has changed enough to send a frame.
    pub(super) fn credit_due(&self) -> bool {
        self.recv == RecvHalf::Streaming && self.final_size.is_none() && self.window.due()
    }

    /// Whether both halves have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.send == SendHalf::Ended && self.recv == RecvHalf::Ended
    }

    /// Whether both halves have ended and no received payload waits for the local socket.
    pub(super) fn done(&self) -> bool {
        self.has_ended() && self.stop.is_none() && self.window.buffered() == 0
    }

    /// The next control frame to send.
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

    /// FIN, if it must be sent now.
    pub(super) fn next_fin(&mut self) -> Option<FrameHeader> {
        let due = self.send == SendHalf::Finishing && self.batch.is_none();
        due.then(|| {
            self.send = SendHalf::Ended;
            FrameHeader::new(stream_header(self.id, self.sent, 0, true))
        })
    }

    /// Removes the batch and returns it as one frame.
    pub(super) fn next_data(&mut self) -> Option<Sent> {
        let batch = self.batch.take()?;
        let sent = Sent {
            stream: self.id,
            offset: self.sent,
            // `length` is at most frame_max, which has 32 bits.
            length: batch.length as u32,
            held: batch.held,
            token: batch.token,
            start: 0,
        };
        self.sent += batch.length as u64;
        Some(sent)
    }

    /// Length of the waiting batch in bytes.
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

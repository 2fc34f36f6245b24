//! The life of one stream: its two halves (RFC 9000, section 3) and what is due of it.
//!
//! A TCP connection cannot be reset in one direction alone, so a cut of either half cuts the stream:
//! each side ends its own half with RESET_STREAM, unless it had ended before, and asks for the end of
//! the other with STOP_SENDING where it did not come. A stream is gone when both halves have ended and
//! what was received has been taken or thrown away.

use std::time::Instant;

use super::codec::{Frame, OFFSET_MAX, stream_header};
use super::window::{SessionWindow, StreamWindow};
use crate::session::{CreditView, FrameHeader, Payload, ResetCode, SendCapacity, StreamId, Token};

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
    offset: usize,
}

/// One stream.
#[derive(Debug)]
pub(super) struct Stream {
    id: StreamId,
    pub(super) phase: Phase,
    pub(super) window: StreamWindow,
    /// To be sent with OPEN.
    target: Option<String>,
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
    /// It waits for the session's credit.
    pub(super) blocked: bool,
    /// When to see whether its grown window is idle.
    pub(super) idle_look: Option<Instant>,
    /// The application knows of the cut, or asked for it.
    cut_known: bool,
}

impl Stream {
    pub(super) fn opening(
        id: StreamId,
        target: &str,
        deadline: Instant,
        window: StreamWindow,
        send_limit: u64,
    ) -> Self {
        let mut stream = Self::new(id, Phase::Opening(deadline), window, send_limit);
        stream.target = Some(target.to_owned());
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
            target: None,
            address: None,
            stop: None,
            reason: String::new(),
            send_limit,
            queued: 0,
            sent: 0,
            batch: None,
            send: SendHalf::Streaming,
            recv: RecvHalf::Streaming,
            blocked: false,
            idle_look: None,
            cut_known: false,
        }
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
    ) -> Option<SendCapacity> {
        if self.send != SendHalf::Streaming {
            return None;
        }
        let waits = self.batch.is_some() || self.phase == Phase::Accepting;
        Some(SendCapacity {
            bytes: if waits {
                0
            } else {
                self.send_limit - self.queued
            },
            header_bytes,
            payload_max: frame_max as usize,
        })
    }

    /// All 2^48 offsets are used up.
    pub(super) fn is_exhausted(&self) -> bool {
        self.queued == OFFSET_MAX
    }

    /// Returns whether the stream took it.
    pub(super) fn queue_batch(&mut self, length: usize, token: Token) -> bool {
        let fits = length as u64 <= self.send_limit - self.queued;
        debug_assert!(self.batch.is_none() && fits && length > 0);
        let taken = self.send == SendHalf::Streaming && self.batch.is_none() && fits && length > 0;
        if taken {
            self.queued += length as u64;
            self.batch = Some(Batch {
                token,
                length,
                offset: 0,
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

    /// Cuts both halves, as far as they have not ended. Returns the bytes of the batch that will never
    /// be sent: the session's credit for them comes back.
    pub(super) fn cut(
        &mut self,
        code: ResetCode,
        reason: &str,
        session: &mut SessionWindow,
    ) -> u64 {
        self.phase = Phase::Open;
        self.address = None;
        self.cut_known = true;
        if self.recv == RecvHalf::Streaming {
            self.recv = RecvHalf::Discarding;
            self.stop = Some(code);
        }
        self.window.discard(session);
        self.cut_sending(code, reason)
    }

    /// The peer cut the stream, which ends what we send too.
    pub(super) fn cut_sending(&mut self, code: ResetCode, reason: &str) -> u64 {
        if !matches!(self.send, SendHalf::Streaming | SendHalf::Finishing) {
            return 0;
        }
        self.send = SendHalf::Cut(code);
        reason.clone_into(&mut self.reason);
        self.batch = None;
        let unsent = self.queued - self.sent;
        self.queued = self.sent;
        unsent
    }

    /// Whether an OPEN has not been transmitted: then the peer knows nothing of the stream.
    pub(super) fn is_unsent(&self) -> bool {
        self.target.is_some()
    }

    /// Whether payload that arrives now is for the local socket.
    pub(super) fn wants_payload(&self) -> bool {
        self.recv == RecvHalf::Streaming
    }

    /// Whether the peer's half has ended: no payload may come any more.
    pub(super) fn recv_ended(&self) -> bool {
        self.recv == RecvHalf::Ended
    }

    /// FIN or RESET_STREAM came.
    pub(super) fn end_receiving(&mut self) {
        self.stop = None;
        self.recv = RecvHalf::Ended;
    }

    /// Whether a cut is news to the application; it is told now.
    pub(super) fn tell_cut(&mut self) -> bool {
        !std::mem::replace(&mut self.cut_known, true)
    }

    /// Whether a limit is worth a frame.
    pub(super) fn credit_due(&self) -> bool {
        self.recv == RecvHalf::Streaming && self.window.due()
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
        if let Some(target) = self.target.take() {
            return Some(Frame::Open {
                stream,
                priority: 0,
                target,
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

    /// The next payload frame of the batch.
    pub(super) fn next_data(&mut self, frame_max: u32) -> Option<(FrameHeader, Payload)> {
        let batch = self.batch.as_mut()?;
        let end = batch.length.min(batch.offset + frame_max as usize);
        let range = batch.offset..end;
        batch.offset = end;
        let payload = Payload {
            stream: self.id,
            token: batch.token,
            last: end == batch.length,
            range,
        };
        if payload.last {
            self.batch = None;
        }
        // At most frame_max, which has 32 bits.
        let length = payload.range.len() as u32;
        let header = stream_header(self.id, self.sent, length, false);
        self.sent += u64::from(length);
        Some((FrameHeader::new(header), payload))
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

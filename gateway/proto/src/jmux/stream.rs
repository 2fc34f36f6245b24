//! The life of one stream.
//!
//! The stream owns the state of both directions, the batch that waits to be sent, and the dirty
//! bits for control frames. JMUX closes a stream in three steps. Side A sends EOF. Side B sends
//! CLOSE when its own half has ended, too. Side A answers with CLOSE. A CLOSE before this side's
//! EOF is an abort.

use std::time::Instant;

use super::codec::{ChannelId, Control, DATA_OVERHEAD, EXTENSION_ABORT, data_header};
use super::credit::{Budget, RecvWindow};
use crate::session::share::BulkShare;
use crate::session::{CreditView, Payload, SendCapacity, StreamId, Token};

/// The state of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// This side opened the stream. The answer must arrive by `deadline`. `sent`: the OPEN has been
    /// transmitted.
    Opening { deadline: Instant, sent: bool },
    /// The peer sent the open, and the application has not answered yet.
    Accepting,
    /// Payload may flow until both ends are closed.
    Open,
}

/// The state of what this side sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LocalEnd {
    Streaming,
    /// The source has ended. EOF or CLOSE follows the last batch.
    Finishing,
    EofSent,
    /// CLOSE must be sent, as an abort or as an answer.
    Closing {
        abort: bool,
    },
    CloseSent,
}

/// The state of what the peer sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemoteEnd {
    Streaming,
    Eof,
    Closed,
}

/// The meaning of the peer's CLOSE.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CloseMeaning {
    /// CLOSE reports nothing new, because the peer had already ended the stream, or this side had
    /// given the stream up.
    Confirmed,
    /// The peer's end of file.
    Finished,
    /// The stream was cut.
    Aborted,
}

#[derive(Debug)]
struct Batch {
    token: Token,
    length: usize,
    offset: usize,
}

/// The state of one stream.
#[derive(Debug)]
pub(super) struct Stream {
    id: StreamId,
    /// The peer's number for the stream. The number is meaningless before the answer to our OPEN.
    pub(super) peer: ChannelId,
    pub(super) phase: Phase,
    pub(super) recv: RecvWindow,
    /// The target of an OPEN that must be sent.
    target: Option<String>,
    /// Window and packet size for OPEN or OPEN SUCCESS.
    offer: Offer,
    opened_due: bool,
    send_credit: u64,
    packet_max: u16,
    abort_agreed: bool,
    batch: Option<Batch>,
    local: LocalEnd,
    remote: RemoteEnd,
}

/// This side's number of a stream on the wire. The number fits 32 bits, because [`super::ids`]
/// assigns only such numbers.
fn channel(id: StreamId) -> ChannelId {
    ChannelId(id.0 as u32)
}

/// The parameters of this side in an OPEN or OPEN SUCCESS.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    pub(super) window: u32,
    pub(super) packet_max: u16,
}

impl Stream {
    pub(super) fn opening(
        id: StreamId,
        target: &str,
        recv: RecvWindow,
        offer: Offer,
        deadline: Instant,
    ) -> Self {
        Self {
            target: Some(target.to_owned()),
            ..Self::new(
                id,
                ChannelId(0),
                Phase::Opening {
                    deadline,
                    sent: false,
                },
                recv,
                offer,
            )
        }
    }

    /// A stream that the peer opened. `offer` has the parameters with which this side answers: at
    /// most those that the opener offered. The window of `offer` is the credit in both directions.
    pub(super) fn accepting(
        id: StreamId,
        peer: ChannelId,
        recv: RecvWindow,
        offer: Offer,
        extensions: u8,
    ) -> Self {
        Self {
            send_credit: u64::from(offer.window),
            packet_max: offer.packet_max,
            abort_agreed: extensions & EXTENSION_ABORT != 0,
            ..Self::new(id, peer, Phase::Accepting, recv, offer)
        }
    }

    fn new(id: StreamId, peer: ChannelId, phase: Phase, recv: RecvWindow, offer: Offer) -> Self {
        Self {
            id,
            peer,
            phase,
            recv,
            target: None,
            offer,
            opened_due: false,
            send_credit: 0,
            packet_max: 0,
            abort_agreed: false,
            batch: None,
            local: LocalEnd::Streaming,
            remote: RemoteEnd::Streaming,
        }
    }

    /// The application accepted the stream. Returns whether OPEN SUCCESS must be sent.
    pub(super) fn accept(&mut self) -> bool {
        if self.phase != Phase::Accepting {
            return false;
        }
        self.phase = Phase::Open;
        self.opened_due = true;
        true
    }

    /// Handles OPEN SUCCESS. The window and the packet size in OPEN SUCCESS apply to both
    /// directions.
    pub(super) fn opened(&mut self, peer: ChannelId, window: u32, packet_max: u16, extensions: u8) {
        self.phase = Phase::Open;
        self.peer = peer;
        self.send_credit = u64::from(window);
        self.packet_max = packet_max.min(self.offer.packet_max);
        self.abort_agreed = extensions & EXTENSION_ABORT != 0;
        self.recv.limit_to_answer(window);
    }

    pub(super) fn send_capacity(&self) -> Option<SendCapacity> {
        if self.local != LocalEnd::Streaming || self.remote == RemoteEnd::Closed {
            return None;
        }
        let open = self.phase == Phase::Open && self.batch.is_none();
        Some(SendCapacity {
            bytes: if open { self.send_credit } else { 0 },
            header_bytes: DATA_OVERHEAD,
            payload_max: self.payload_max(),
            retained: false,
            retain_scarce: false,
        })
    }

    pub(super) fn credit(&self) -> CreditView {
        CreditView {
            peer: self.peer.0.into(),
            send: self.send_credit,
            recv: self.recv.credit(),
            buffered: self.recv.buffered(),
            owed: self.recv.owed(),
        }
    }

    fn payload_max(&self) -> usize {
        usize::from(self.packet_max).saturating_sub(DATA_OVERHEAD)
    }

    /// Queues a batch. Returns whether the stream accepted the batch.
    pub(super) fn queue_batch(&mut self, length: usize, token: Token) -> bool {
        debug_assert!(self.batch.is_none() && length as u64 <= self.send_credit && length > 0);
        let taken = self.local == LocalEnd::Streaming && length > 0;
        if taken {
            self.send_credit = self.send_credit.saturating_sub(length as u64);
            self.batch = Some(Batch {
                token,
                length,
                offset: 0,
            });
        }
        taken
    }

    /// Adds `increment` bytes of credit from the peer. Returns whether the credit was zero before.
    /// `Err`: the sum exceeds 32 bits.
    pub(super) fn add_credit(&mut self, increment: u32) -> Result<bool, ()> {
        let sum = self.send_credit + u64::from(increment);
        if sum > u64::from(u32::MAX) {
            return Err(());
        }
        let was_empty = self.send_credit == 0 && increment > 0;
        self.send_credit = sum;
        Ok(was_empty)
    }

    /// Records that the local socket took payload. Returns whether a credit frame must be sent.
    pub(super) fn sink_took(
        &mut self,
        now: Instant,
        length: u64,
        bulk: &mut BulkShare,
        budget: &mut Budget,
    ) -> bool {
        self.recv.take(length);
        if !self.gives_credit() {
            return false;
        }
        self.recv.resize(now, length, bulk, budget);
        self.recv.return_due()
    }

    /// Whether the peer may still send payload that this side delivers.
    fn gives_credit(&self) -> bool {
        self.remote == RemoteEnd::Streaming && !self.closing()
    }

    pub(super) fn finish(&mut self) {
        if self.local == LocalEnd::Streaming {
            self.local = LocalEnd::Finishing;
        }
    }

    pub(super) fn finishing(&self) -> bool {
        self.local == LocalEnd::Finishing
    }

    /// Whether CLOSE has been or will be sent. If so, no payload is sent or delivered any more.
    pub(super) fn closing(&self) -> bool {
        matches!(self.local, LocalEnd::Closing { .. } | LocalEnd::CloseSent)
    }

    /// Gives up the stream and drops its buffered payload.
    pub(super) fn abort(&mut self) {
        self.recv.drop_buffered();
        self.cut();
    }

    /// Ends both directions. Buffered payload remains until the local socket takes it.
    pub(super) fn cut(&mut self) {
        self.batch = None;
        if self.local != LocalEnd::CloseSent {
            self.local = LocalEnd::Closing { abort: true };
        }
    }

    /// Handles the peer's EOF. Returns whether it is new.
    pub(super) fn handle_eof(&mut self) -> bool {
        if self.remote != RemoteEnd::Streaming {
            return false;
        }
        self.remote = RemoteEnd::Eof;
        if self.local == LocalEnd::EofSent {
            self.local = LocalEnd::Closing { abort: false };
        }
        !self.gave_up()
    }

    /// Handles the peer's CLOSE, with `abort` as decoded.
    pub(super) fn handle_close(&mut self, abort: bool) -> CloseMeaning {
        let before = std::mem::replace(&mut self.remote, RemoteEnd::Closed);
        let gave_up = self.gave_up();
        let cut = abort && self.abort_agreed;
        let clean = match self.local {
            LocalEnd::EofSent | LocalEnd::CloseSent => !cut,
            LocalEnd::Closing { abort } => !cut && !abort,
            LocalEnd::Streaming | LocalEnd::Finishing => false,
        };
        if self.local != LocalEnd::CloseSent && !matches!(self.local, LocalEnd::Closing { .. }) {
            self.local = LocalEnd::Closing { abort: false };
        }
        self.batch = None;
        match (gave_up, clean, before) {
            (true, _, _) | (_, true, RemoteEnd::Eof | RemoteEnd::Closed) => CloseMeaning::Confirmed,
            (false, true, RemoteEnd::Streaming) => CloseMeaning::Finished,
            (false, false, _) => CloseMeaning::Aborted,
        }
    }

    /// Whether this side aborted the stream, so that the application needs no notice.
    fn gave_up(&self) -> bool {
        matches!(self.local, LocalEnd::Closing { abort: true })
    }

    /// Whether the stream is complete: CLOSE is sent and no received payload waits for the local
    /// socket.
    pub(super) fn done(&self) -> bool {
        self.local == LocalEnd::CloseSent && self.recv.buffered() == 0
    }

    /// Whether the peer has sent CLOSE. After this side's end, it has then received everything. The
    /// application was informed of any other CLOSE.
    pub(super) fn close_received(&self) -> bool {
        self.remote == RemoteEnd::Closed
    }

    /// Whether arriving payload is for the local socket.
    pub(super) fn wants_payload(&self) -> bool {
        self.phase == Phase::Open && self.remote == RemoteEnd::Streaming && !self.closing()
    }

    /// The next control frame to send.
    pub(super) fn next_control(&mut self) -> Option<Control> {
        if let Phase::Opening { sent, .. } = &mut self.phase {
            let target = self.target.take()?;
            *sent = true;
            return Some(Control::Open {
                sender: channel(self.id),
                window: self.offer.window,
                packet_max: self.offer.packet_max,
                extensions: EXTENSION_ABORT,
                target,
            });
        }
        let recipient = self.peer;
        if std::mem::take(&mut self.opened_due) {
            return Some(Control::Opened {
                recipient,
                sender: channel(self.id),
                window: self.offer.window,
                packet_max: self.offer.packet_max,
                extensions: if self.abort_agreed {
                    EXTENSION_ABORT
                } else {
                    0
                },
            });
        }
        if self.gives_credit() {
            let increment = self.recv.return_credit();
            if increment > 0 {
                return Some(Control::Credit {
                    recipient,
                    increment,
                });
            }
        }
        match (self.local, self.remote) {
            (LocalEnd::Closing { abort }, _) => {
                self.local = LocalEnd::CloseSent;
                Some(Control::Close {
                    recipient,
                    abort: abort && self.abort_agreed,
                })
            }
            (LocalEnd::Finishing, RemoteEnd::Streaming) if self.batch.is_none() => {
                self.local = LocalEnd::EofSent;
                Some(Control::Finish { recipient })
            }
            (LocalEnd::Finishing, _) if self.batch.is_none() => {
                self.local = LocalEnd::CloseSent;
                Some(Control::Close {
                    recipient,
                    abort: false,
                })
            }
            _ => None,
        }
    }

    /// The next payload frame of the batch.
    pub(super) fn next_data(&mut self) -> Option<([u8; DATA_OVERHEAD], Payload)> {
        let payload_max = self.payload_max();
        let batch = self.batch.as_mut()?;
        let end = batch.length.min(batch.offset + payload_max);
        let range = batch.offset..end;
        batch.offset = end;
        let last = end == batch.length;
        let payload = Payload {
            stream: self.id,
            token: batch.token,
            range,
            last,
            retained: false,
        };
        if last {
            self.batch = None;
        }
        let length = u16::try_from(payload.range.len()).unwrap_or(u16::MAX);
        Some((data_header(self.peer, length), payload))
    }
}

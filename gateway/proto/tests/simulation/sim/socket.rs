//! A local socket with its application, in the view of a driver.

use muxtunnel_proto::{Outcome, ResetCode, Token};

/// How the sending direction of a socket ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Finish,
    Reset(ResetCode),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// This side opened the stream, and the peer has not answered yet.
    Opening,
    /// The peer opened the stream, and the target has not answered yet.
    Dialling,
    Open,
}

/// Bytes that were read from the socket and passed to the session.
#[derive(Debug, Clone, Copy)]
pub struct Batch {
    pub token: Token,
    pub start: u64,
    pub length: usize,
    /// Memory of the batch in bytes.
    pub held: usize,
    pub written: usize,
}

#[derive(Debug)]
pub struct Socket {
    pub label: u32,
    pub phase: Phase,
    /// Number of bytes that the application sends.
    pub plan: u64,
    /// How the direction ends after these bytes.
    pub ending: Ending,
    pub sent: u64,
    /// Whether the session has been informed of the end of the direction.
    pub ended: bool,
    pub batch: Option<Batch>,
    /// Whether the session accepts no bytes, so that it must report when it accepts bytes again.
    pub waits: bool,
    /// Bytes received in order and not taken.
    pub held: u64,
    /// Offset up to which payload has been announced.
    pub announced: u64,
    pub finish_seen: bool,
    pub cut: Option<Outcome>,
    /// Whether the socket does not read.
    pub stalled: bool,
    /// The greatest window that the session had for the socket, in bytes.
    pub window_max: u64,
}

impl Socket {
    pub fn new(label: u32, phase: Phase, plan: u64, ending: Ending) -> Self {
        Self {
            label,
            phase,
            plan,
            ending,
            sent: 0,
            ended: false,
            batch: None,
            waits: false,
            held: 0,
            announced: 0,
            finish_seen: false,
            cut: None,
            stalled: false,
            window_max: 0,
        }
    }

    /// Whether both directions have ended, so that at most received bytes wait for the application.
    pub fn has_ended(&self) -> bool {
        self.ended && self.batch.is_none() && self.finish_seen && self.cut.is_none()
    }

    /// Whether both directions have ended, as far as the driver can tell.
    pub fn is_complete(&self) -> bool {
        self.has_ended() && self.held == 0
    }
}

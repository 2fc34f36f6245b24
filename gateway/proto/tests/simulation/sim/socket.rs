//! One local socket with its application, as a driver sees it.

use muxtunnel_proto::{Outcome, ResetCode, Token};

/// How what a socket sends ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Finish,
    Reset(ResetCode),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// We asked the peer; no answer yet.
    Opening,
    /// The peer asked; the target has not answered yet.
    Dialling,
    Open,
}

/// Bytes read from the socket, in the session's hands.
#[derive(Debug, Clone, Copy)]
pub struct Batch {
    pub token: Token,
    pub start: u64,
    pub length: usize,
    /// Bytes of memory.
    pub held: usize,
    pub written: usize,
}

#[derive(Debug)]
pub struct Socket {
    pub label: u32,
    pub phase: Phase,
    /// What its application sends, bytes, and how that ends.
    pub plan: u64,
    pub ending: Ending,
    pub sent: u64,
    /// The session knows the end of it.
    pub ended: bool,
    pub batch: Option<Batch>,
    /// The session takes nothing of it, and has to say when it does again.
    pub waits: bool,
    /// Received in order, not taken.
    pub held: u64,
    /// Up to which offset payload has been announced.
    pub announced: u64,
    pub finish_seen: bool,
    pub cut: Option<Outcome>,
    /// Does not read.
    pub stalled: bool,
    /// The greatest window that the session had for it, bytes.
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

    /// Its application has read a clean end of file.
    pub fn sees_end(&self) -> bool {
        self.held == 0 && self.finish_seen && self.cut.is_none()
    }

    /// Both directions have ended, as far as the driver can tell.
    pub fn is_complete(&self) -> bool {
        self.ended && self.batch.is_none() && self.sees_end()
    }
}

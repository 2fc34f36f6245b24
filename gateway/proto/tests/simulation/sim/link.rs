//! A connection between the two sides: a carrier of both sessions, or one that was refused.

use std::time::{Duration, Instant};

use muxtunnel_proto::CarrierId;

use super::pipe::Pipe;

pub struct Link {
    /// As each side's session numbers it; `None`: it knows nothing of it.
    pub ids: [Option<CarrierId>; 2],
    /// By the side that writes.
    pub pipes: [Pipe; 2],
    /// A side's driver has given it up.
    pub gone: [bool; 2],
    /// A side's session has no more use for it: what waits is written, nothing is read.
    pub ending: [bool; 2],
    /// Control frames that were written and not handled yet, by the side that wrote them.
    pub unheard: [Vec<Vec<u8>>; 2],
    /// RETIRE was written, by the side that wrote it.
    pub retired: [bool; 2],
    /// A PING came on it to this side and is not answered.
    pub pinged: [bool; 2],
}

impl Link {
    /// `delays`: one way, by the side that writes.
    pub fn new(delays: [Duration; 2], ids: [Option<CarrierId>; 2]) -> Self {
        Self {
            gone: ids.map(|id| id.is_none()),
            ids,
            pipes: delays.map(Pipe::new),
            ending: [false; 2],
            unheard: [Vec::new(), Vec::new()],
            retired: [false; 2],
            pinged: [false; 2],
        }
    }

    /// Streams may go on over it.
    pub fn is_alive(&self) -> bool {
        [self.gone, self.ending, self.retired] == [[false; 2]; 3]
    }

    /// Nothing is on its way to anybody.
    pub fn is_empty(&self) -> bool {
        (0..2).all(|side| self.gone[1 - side] || self.pipes[side].is_empty())
    }

    /// When the next byte arrives at somebody.
    pub fn next_arrival(&self) -> Option<Instant> {
        let read = (0..2).filter(|side| !self.gone[1 - side] && !self.ending[1 - side]);
        read.filter_map(|side| self.pipes[side].next_arrival())
            .min()
    }
}

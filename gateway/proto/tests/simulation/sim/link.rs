//! A connection between the two sides: a carrier of both sessions, or a refused connection.

use std::time::{Duration, Instant};

use muxtunnel_proto::CarrierId;

use super::pipe::Pipe;

pub struct Link {
    /// The carrier's number in each side's session. `None`: the session does not have the carrier.
    pub ids: [Option<CarrierId>; 2],
    /// One pipe for each side that writes.
    pub pipes: [Pipe; 2],
    /// Whether a side's driver has dropped the link.
    pub gone: [bool; 2],
    /// Whether a side's session no longer needs the link. Waiting frames are still written, but
    /// nothing is read.
    pub ending: [bool; 2],
    /// Control frames that were written but not handled yet, by the side that wrote them.
    pub unheard: [Vec<Vec<u8>>; 2],
    /// Whether RETIRE was written, by the side that wrote it.
    pub retired: [bool; 2],
    /// Whether a PING to this side has arrived and is not answered yet.
    pub pinged: [bool; 2],
}

impl Link {
    /// `delays` are the one-way delays, by the side that writes.
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

    /// Whether streams may use the link.
    pub fn is_alive(&self) -> bool {
        [self.gone, self.ending, self.retired] == [[false; 2]; 3]
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        (0..2).all(|side| self.gone[1 - side] || self.pipes[side].is_empty())
    }

    /// The time at which the next byte arrives at one of the sides.
    pub fn next_arrival(&self) -> Option<Instant> {
        let read = (0..2).filter(|side| !self.gone[1 - side] && !self.ending[1 - side]);
        read.filter_map(|side| self.pipes[side].next_arrival())
            .min()
    }
}

//! Payload from a carrier straight to the local socket that it is for, without being copied.
//!
//! Only what comes next in its stream. What the socket does not take stays in its pipe, in the stream's
//! inbox; what comes when there is no pipe is read into memory behind it. So the carrier's reader never
//! waits for a local socket.

use std::io::ErrorKind;
use std::rc::Rc;

use super::stream::StreamIo;
use super::{Carrier, Driver};
use crate::stream::pipe::{Pipe, SPLICE_BYTES_MIN};

/// Payload that is on a carrier, and whose it is.
pub(super) struct Announced {
    io: Rc<StreamIo>,
    length: usize,
}

impl Driver {
    /// The payload that is next on `carrier`, where it can be spliced.
    pub(super) fn announced(&self, carrier: &Carrier) -> Option<Announced> {
        carrier.plain()?;
        let receive = self.session.view().receiving(carrier.id)?;
        if receive.length < SPLICE_BYTES_MIN {
            return None;
        }
        let io = self.streams.get(receive.stream?)?;
        let pipes = &self.share.pool().sink_pipes;
        io.splices(receive.offset, pipes).then_some(Announced {
            io,
            length: receive.length,
        })
    }

    /// Moves what there is of it through `pipe`; returns how many bytes, 0 at the end of the carrier.
    ///
    /// # Errors
    /// As splice(2) of the carrier.
    pub(super) fn splice_out(
        self: &Rc<Self>,
        carrier: &Carrier,
        announced: &Announced,
        mut pipe: Pipe,
    ) -> std::io::Result<usize> {
        let tcp = carrier.plain().ok_or(ErrorKind::Unsupported)?;
        let length = pipe.fill(tcp, announced.length)?;
        if length == 0 {
            return Ok(0);
        }
        carrier.stats.add_received(length);
        self.telemetry.splices.received(length);
        let io = &announced.io;
        self.update(|session| {
            session.payload_moved(carrier.id, length);
            let taken = io.deliver_spliced(self.share.pool(), pipe);
            if taken > 0 {
                session.sink_took(super::now(), io.id, taken);
                io.account.received(&self.telemetry, taken);
            }
        });
        Ok(length)
    }
}

//! Splices payload from a carrier straight into its local socket.
//!
//! Only the next payload in its stream can be spliced. Payload that the socket does not take stays
//! in its pipe, in the stream's inbox. If no pipe is free, later payload is read into memory, and
//! follows that pipe in the inbox. So the carrier's reader never waits for a local socket.

use std::io::ErrorKind;
use std::rc::Rc;

use super::stream::StreamIo;
use super::{Carrier, Driver};
use crate::stream::pipe::{Pipe, SPLICE_BYTES_MIN};

/// Payload that a carrier has announced, and its stream.
pub(super) struct Announced {
    io: Rc<StreamIo>,
    length: usize,
}

impl Driver {
    /// The next payload on `carrier`, if it can be spliced.
    pub(super) fn announced(&self, carrier: &Carrier) -> Option<Announced> {
        carrier.plain()?;
        let receive = self.engine.session.view().receiving(carrier.id)?;
        if receive.length < SPLICE_BYTES_MIN {
            return None;
        }
        let io = self.stream(receive.stream?)?;
        let pipes = &self.share.pool().sink_pipes;
        io.splices(receive.offset, pipes).then_some(Announced {
            io,
            length: receive.length,
        })
    }

    /// Moves available payload through `pipe`. Returns the number of bytes, or 0 at the end of the
    /// carrier.
    ///
    /// # Errors
    /// The error of splice(2) of the carrier.
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
        carrier.stats.received.add(length);
        self.telemetry.splices.received.add(length);
        let io = &announced.io;
        let now = super::now();
        self.update(|session| {
            session.payload_moved(now, carrier.id, length);
            let taken = io.deliver_spliced(self.share.pool(), pipe);
            if taken > 0 {
                session.sink_took(now, io.id, taken);
                io.account.received(&self.telemetry, taken);
            }
        });
        Ok(length)
    }
}

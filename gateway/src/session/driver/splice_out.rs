//! Splices payload from a carrier straight into its local socket.
//!
//! Only the next payload in its stream can be spliced. Payload that the socket does not take stays
//! in its pipe, at the end of the stream's inbox, and later payload goes into the same pipe as long
//! as the pipe has room. If no pipe has room, later payload is read into memory, and follows that
//! pipe in the inbox. So the carrier's reader never waits for a local socket.

use std::io::ErrorKind;
use std::rc::Rc;

use super::stream::StreamIo;
use super::{Carrier, Driver};
use crate::stream::pipe::{Filled, Pipe, SPLICE_BYTES_MIN, Way};

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
        io.splices(receive.offset).then_some(Announced {
            io,
            length: receive.length,
        })
    }

    /// Moves available payload through a pipe. Returns the number of bytes, 0 at the end of the
    /// carrier, or [`Filled::Full`] if the payload has to be copied.
    ///
    /// # Errors
    /// The error of splice(2) of the carrier.
    pub(super) fn splice_out(
        self: &Rc<Self>,
        carrier: &Carrier,
        announced: &Announced,
    ) -> std::io::Result<Filled> {
        let tcp = carrier.plain().ok_or(ErrorKind::Unsupported)?;
        let (io, wanted) = (&announced.io, announced.length);
        let filled = io.fill_last_pipe(tcp, wanted)?;
        let (filled, pipe) = match filled {
            Filled::Bytes(_) => (filled, None),
            Filled::Full if io.pipes() >= self.share.free_pipes(Way::ToLocal) => {
                return Ok(Filled::Full);
            }
            Filled::Full => match self.share.pipe(Way::ToLocal, 1) {
                Some(mut pipe) => (pipe.fill(tcp, wanted)?, Some(pipe)),
                None => return Ok(Filled::Full),
            },
        };
        if let Filled::Bytes(length) = filled
            && length > 0
        {
            self.spliced_out(carrier, io, length, pipe);
        }
        Ok(filled)
    }

    /// Accounts for `length` bytes that were moved, and delivers them: the content of `pipe`, or the
    /// last bytes of the stream's inbox.
    fn spliced_out(
        self: &Rc<Self>,
        carrier: &Carrier,
        io: &Rc<StreamIo>,
        length: usize,
        pipe: Option<Pipe>,
    ) {
        carrier.stats.received.add(length);
        self.telemetry.splices.received.add(length);
        let now = super::now();
        self.update(|session| {
            session.payload_moved(now, carrier.id, length);
            let taken = io.deliver_spliced(self.share.pool(), length, pipe);
            if taken > 0 {
                session.sink_took(now, io.id, taken);
                io.account.received(&self.telemetry, taken);
            }
        });
    }
}

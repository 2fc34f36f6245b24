//! The carrier's reading loop: bytes -> frames -> local sockets.
//!
//! Reads as much as fits, parses in place, and writes each stream's run of payload straight from the
//! read buffer. What the local socket does not take is copied into its inbox. Never waits for
//! anything but the carrier.

use std::io::{ErrorKind, IoSlice};
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use muxtunnel_proto::{CarrierId, Header, SessionError, StreamId};

use super::{CarrierEnd, Driver};

/// Bytes read at once; more than the largest frame, so that a frame is never stuck.
const READ_BYTES: usize = 256 << 10;
const _: () = assert!(READ_BYTES > 2 * muxtunnel_proto::jmux::codec::MESSAGE_SIZE_MAX);

/// Payload of one stream in the read buffer, not passed on yet.
#[derive(Default)]
struct Run {
    stream: Option<StreamId>,
    ranges: Vec<Range<usize>>,
}

pub(super) async fn run(driver: &Rc<Driver>) -> CarrierEnd {
    let mut buffer = vec![0; READ_BYTES].into_boxed_slice();
    let mut filled = 0;
    let mut run = Run::default();
    loop {
        if let Err(error) = driver.tcp.readable().await {
            return error.into();
        }
        match driver.tcp.try_read(&mut buffer[filled..]) {
            Ok(0) => return CarrierEnd::Closed,
            Ok(length) => {
                driver.stats.add_received(length);
                filled += length;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return error.into(),
        }
        match driver.consume(&buffer[..filled], &mut run) {
            Ok(consumed) => {
                buffer.copy_within(consumed..filled, 0);
                filled -= consumed;
            }
            Err(error) => return error.into(),
        }
        driver.publish();
        // Others of this thread take their turn: the carrier's writer, the streams, other carriers.
        tokio::task::yield_now().await;
    }
}

impl Driver {
    /// Handles the whole frames and the payload in `bytes`; returns how many bytes that were.
    fn consume(self: &Rc<Self>, bytes: &[u8], run: &mut Run) -> Result<usize, SessionError> {
        let now = Instant::now();
        let mut position = 0;
        let result = loop {
            let mut session = self.session.borrow_mut();
            if let Some(receive) = session.receiving(CarrierId::ONLY) {
                let length = receive.length.min(bytes.len() - position);
                if length == 0 {
                    break Ok(position);
                }
                session.payload_moved(CarrierId::ONLY, length);
                drop(session);
                if let Some(stream) = receive.stream {
                    self.append(run, stream, position..position + length, bytes);
                }
                position += length;
                continue;
            }
            match session.handle_header(now, CarrierId::ONLY, &bytes[position..]) {
                Ok(Header::Incomplete { .. }) => break Ok(position),
                Ok(Header::Payload { consumed, .. }) => position += consumed,
                Ok(Header::Control { consumed }) => {
                    position += consumed;
                    drop(session);
                    // An end of the stream must find all payload before it passed on.
                    self.pass_on(run, bytes);
                    self.handle_events();
                }
                Err(error) => break Err(error),
            }
        };
        self.pass_on(run, bytes);
        self.handle_events();
        result
    }

    fn append(&self, run: &mut Run, stream: StreamId, range: Range<usize>, bytes: &[u8]) {
        if run.stream != Some(stream) {
            self.pass_on(run, bytes);
            run.stream = Some(stream);
        }
        run.ranges.push(range);
    }

    /// Writes a run to its local socket, or keeps it in the inbox.
    fn pass_on(&self, run: &mut Run, bytes: &[u8]) {
        let Some(stream) = run.stream.take() else {
            return;
        };
        let mut slices: Vec<IoSlice<'_>> = run
            .ranges
            .drain(..)
            .map(|range| IoSlice::new(&bytes[range]))
            .collect();
        let Some(io) = self.stream(stream) else {
            self.keep(stream, &slices);
            return;
        };
        let taken = io.deliver(&mut slices);
        if taken > 0 {
            self.session
                .borrow_mut()
                .sink_took(Instant::now(), stream, taken);
            io.account.received(&self.telemetry, taken);
        }
    }
}

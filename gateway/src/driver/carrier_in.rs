//! The carrier's reading loop: bytes -> frames -> local sockets.
//!
//! Reads as much as fits, parses in place, and writes each stream's run of payload straight from the
//! read buffer. What the local socket does not take is copied into its inbox. Never waits for
//! anything but the carrier.

use std::io::{ErrorKind, IoSlice};
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use muxtunnel_proto::jmux::codec::PACKET_SIZE_DEFAULT;
use muxtunnel_proto::{CarrierId, Header, SessionError, StreamId};

use super::buffers::{LARGE_BYTES, Size};
use super::{CarrierEnd, Driver, socket};

/// A control frame is never stuck for want of room behind another.
const _: () = assert!(LARGE_BYTES >= 2 * muxtunnel_proto::jmux::codec::MESSAGE_SIZE_MAX);
/// Payload frames of one stream that are passed on by one write: a whole buffer of JMUX's default
/// packets.
const RANGES_MAX: usize = 96;
const _: () = assert!(RANGES_MAX * PACKET_SIZE_DEFAULT as usize > LARGE_BYTES);

/// Payload of one stream in the read buffer, not passed on yet.
#[derive(Default)]
struct Run {
    stream: Option<StreamId>,
    ranges: Vec<Range<usize>>,
    bytes: usize,
}

pub(super) async fn run(driver: &Rc<Driver>) -> CarrierEnd {
    // The beginning of a frame whose end has not come: only then a buffer is held while waiting.
    let mut unread = None;
    let mut filled = 0;
    let mut run = Run::default();
    loop {
        if let Err(error) = driver.tcp.readable().await {
            return error.into();
        }
        let mut buffer = unread
            .take()
            .unwrap_or_else(|| driver.share.pool().take(Size::Large));
        let room = buffer.len() - filled;
        let more = match socket::read_carrier(&driver.tcp, &mut buffer[filled..]) {
            Ok(0) => return CarrierEnd::Closed,
            Ok(length) => {
                driver.stats.add_received(length);
                filled += length;
                length == room
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                unread = Some(buffer).filter(|_| filled > 0);
                continue;
            }
            Err(error) => return error.into(),
        };
        match driver.consume(&buffer[..filled], &mut run) {
            Ok(consumed) => {
                buffer.copy_within(consumed..filled, 0);
                filled -= consumed;
                unread = Some(buffer).filter(|_| filled > 0);
            }
            Err(error) => return error.into(),
        }
        driver.publish();
        if more {
            // Others of this thread take their turn: the carrier's writer, the streams, other carriers.
            tokio::task::yield_now().await;
        }
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
                    self.append(now, run, stream, position..position + length, bytes);
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
                    self.pass_on(now, run, bytes);
                    self.handle_events();
                }
                Err(error) => break Err(error),
            }
        };
        self.pass_on(now, run, bytes);
        self.handle_events();
        result
    }

    fn append(
        &self,
        now: Instant,
        run: &mut Run,
        stream: StreamId,
        range: Range<usize>,
        bytes: &[u8],
    ) {
        if run.stream != Some(stream) || run.ranges.len() == RANGES_MAX {
            self.pass_on(now, run, bytes);
            run.stream = Some(stream);
        }
        run.bytes += range.len();
        run.ranges.push(range);
    }

    /// Writes a run to its local socket, or keeps it in the inbox.
    fn pass_on(&self, now: Instant, run: &mut Run, bytes: &[u8]) {
        let Some(stream) = run.stream.take() else {
            return;
        };
        let mut slices = [IoSlice::new(&[]); RANGES_MAX];
        let count = run.ranges.len();
        for (slice, range) in slices.iter_mut().zip(run.ranges.drain(..)) {
            *slice = IoSlice::new(&bytes[range]);
        }
        let total = std::mem::take(&mut run.bytes);
        let Some(io) = self.stream(stream) else {
            self.keep(stream, &slices[..count]);
            return;
        };
        let taken = io.deliver(self.share.pool(), &mut slices[..count], total);
        if taken > 0 {
            self.session.borrow_mut().sink_took(now, stream, taken);
            io.account.received(&self.telemetry, taken);
        }
    }
}

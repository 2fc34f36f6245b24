//! A carrier's reading loop: it parses bytes into frames and writes payload to local sockets.
//!
//! The loop reads as much as fits, parses in place, and writes each stream's run of payload
//! straight from the read buffer. The loop copies payload that the local socket does not take into
//! the stream's inbox. If frames are long, each read ends at a header, and [`super::splice_out`]
//! moves the payload. The loop waits only for the carrier.

use std::io::{ErrorKind, IoSlice};
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use muxtunnel_proto::{
    CONTROL_BYTES_MAX, CarrierId, DATAGRAM_BYTES_MAX, HEADER_BYTES_MAX, Header, PACKET_BYTES_MIN,
    Session, SessionError, StreamId,
};

use super::{Carrier, Driver, SessionEnd};
use crate::io::duplex;
use crate::stream::buffers::{Buffer, LARGE_BYTES, Size};
use crate::stream::pipe::{Filled, SPLICE_BYTES_MIN};

/// The read buffer has room for two control frames.
const _: () = assert!(LARGE_BYTES >= 2 * CONTROL_BYTES_MAX);
/// The read buffer has room for two packets with their headers.
const _: () = assert!(LARGE_BYTES >= 2 * (HEADER_BYTES_MAX + DATAGRAM_BYTES_MAX));
/// Maximum number of payload frames of one stream in one write. A full buffer of the smallest bulk
/// packets has fewer.
const RANGES_MAX: usize = 96;
const _: () = assert!(RANGES_MAX * PACKET_BYTES_MIN > LARGE_BYTES);

/// Minimum payload of a long frame. After a long frame the reader expects more long frames. The
/// value exceeds the payload of a JMUX packet.
const LONG_FRAME_BYTES: usize = 64 << 10;
const _: () = assert!(LONG_FRAME_BYTES >= SPLICE_BYTES_MIN);
/// Number of successive short frames after which the reader no longer expects long frames.
const PATIENCE: u8 = 16;

/// Payload of one stream that is in the read buffer and is not passed on yet.
#[derive(Default)]
struct Run {
    stream: Option<StreamId>,
    /// The run's offset in its stream.
    offset: u64,
    ranges: Vec<Range<usize>>,
    bytes: usize,
}

/// The beginning of an incomplete frame. A reader that waits holds a buffer only if a frame is
/// incomplete.
#[derive(Default)]
struct Unread {
    buffer: Option<Buffer>,
    filled: usize,
    aim: Aim,
}

/// The number of bytes that a read takes. After a long frame, a read ends with the next header at
/// the latest. So the payload after this header stays in the kernel and can be spliced.
#[derive(Debug, Default, Clone, Copy)]
struct Aim {
    /// After this number of further short frames, the reader no longer expects a long frame. At 0,
    /// a read takes as many bytes as it can.
    patience: u8,
    /// Length of the incomplete frame as far as it is known, in bytes.
    needed: usize,
}

impl Aim {
    /// Adapts to a frame of `length` bytes.
    fn learn(&mut self, length: usize) {
        if length < LONG_FRAME_BYTES {
            return self.learn_short();
        }
        self.needed = 0;
        self.patience = PATIENCE;
    }

    /// Adapts to a frame that is not worth a separate read: it is short, or cannot be spliced.
    fn learn_short(&mut self) {
        self.needed = 0;
        self.patience = self.patience.saturating_sub(1);
    }

    /// Maximum number of bytes of the next read. The buffer already has `filled` bytes. `payload`
    /// is the number of payload bytes that the last header announced and that have not been read;
    /// `None`: a header comes next.
    fn bytes(self, filled: usize, payload: Option<usize>) -> usize {
        match payload {
            _ if self.patience == 0 => usize::MAX,
            Some(payload) => payload + HEADER_BYTES_MAX,
            None => self
                .needed
                .max(HEADER_BYTES_MAX)
                .saturating_sub(filled)
                .max(1),
        }
    }
}

/// The bytes that were read from a carrier, and the position up to which they are processed.
struct Reading<'a> {
    now: Instant,
    carrier: CarrierId,
    bytes: &'a [u8],
    position: usize,
    aim: &'a mut Aim,
    run: &'a mut Run,
}

/// The result of one step of reading.
enum Step {
    /// Number of bytes that were moved.
    Moved(usize),
    /// The kernel has no more bytes for now.
    Waits,
    Closed,
}

/// Runs the loop. `begun` contains bytes that were already read from the carrier.
pub(super) async fn run(driver: &Rc<Driver>, carrier: &Carrier, begun: Vec<u8>) -> SessionEnd {
    let mut unread = Unread::default();
    let mut run = Run::default();
    if !begun.is_empty() {
        let mut buffer = driver.share.pool().take(Size::Large);
        buffer[..begun.len()].copy_from_slice(&begun);
        unread.filled = begun.len();
        carrier.stats.received.add(begun.len());
        drop(begun);
        if let Err(error) = driver.take_in(carrier, buffer, &mut unread, &mut run) {
            return error.into();
        }
    }
    let mut moved = 0;
    loop {
        if let Err(error) = duplex::readable(&*carrier.transport).await {
            return error.into();
        }
        match driver.step(carrier, &mut unread, &mut run) {
            Ok(Step::Moved(length)) => moved += length,
            Ok(Step::Waits) => moved = 0,
            Ok(Step::Closed) => return SessionEnd::Closed,
            Err(end) => return end,
        }
        if moved >= LARGE_BYTES {
            moved = 0;
            // Lets other tasks of this thread run: the carrier's writer, the streams, other
            // carriers.
            tokio::task::yield_now().await;
        }
    }
}

impl Driver {
    /// Splices announced payload, or reads and handles what is available.
    fn step(
        self: &Rc<Self>,
        carrier: &Carrier,
        unread: &mut Unread,
        run: &mut Run,
    ) -> Result<Step, SessionEnd> {
        let announced = match unread.filled {
            0 => self.announced(carrier),
            _ => None,
        };
        if let Some(announced) = &announced {
            match self.splice_out(carrier, announced) {
                Ok(Filled::Full) => {}
                Ok(Filled::Bytes(0)) => return Ok(Step::Closed),
                Ok(Filled::Bytes(length)) => return Ok(Step::Moved(length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Waits),
                Err(error) => return Err(error.into()),
            }
        }
        let mut buffer = unread
            .buffer
            .take()
            .unwrap_or_else(|| self.share.pool().take(Size::Large));
        let payload = self.engine.session.view().receiving(carrier.id);
        let payload = payload.map(|receive| receive.length);
        let aim = unread.aim.bytes(unread.filled, payload);
        // Splicing requires unencrypted bytes in the kernel.
        let is_plain = carrier.plain().is_some();
        let aim = if is_plain { aim } else { usize::MAX };
        let end = buffer.len().min(unread.filled.saturating_add(aim));
        match carrier.transport.try_read(&mut buffer[unread.filled..end]) {
            Ok(0) => Ok(Step::Closed),
            Ok(length) => {
                carrier.stats.received.add(length);
                let waits = is_plain && length < end - unread.filled;
                let is_long = payload.is_some_and(|bytes| bytes >= SPLICE_BYTES_MIN);
                if is_plain && unread.filled == 0 && is_long {
                    self.telemetry.splices.fallen_back.add(length);
                }
                if announced.is_some() {
                    self.telemetry.splices.pipes_lacking.add(1);
                }
                unread.filled += length;
                self.take_in(carrier, buffer, unread, run)?;
                Ok(if waits {
                    Step::Waits
                } else {
                    Step::Moved(length)
                })
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                unread.buffer = Some(buffer).filter(|_| unread.filled > 0);
                Ok(Step::Waits)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Processes the complete frames in `buffer`; the rest stays in `unread`.
    fn take_in(
        self: &Rc<Self>,
        carrier: &Carrier,
        mut buffer: Buffer,
        unread: &mut Unread,
        run: &mut Run,
    ) -> Result<(), SessionError> {
        let consumed = self.consume(carrier, &buffer[..unread.filled], &mut unread.aim, run)?;
        buffer.copy_within(consumed..unread.filled, 0);
        unread.filled -= consumed;
        unread.buffer = Some(buffer).filter(|_| unread.filled > 0);
        Ok(())
    }

    /// Processes the complete frames and the payload in `bytes`; returns the number of processed
    /// bytes. If the session gives up the carrier, the remaining bytes are dropped.
    fn consume(
        self: &Rc<Self>,
        carrier: &Carrier,
        bytes: &[u8],
        aim: &mut Aim,
        run: &mut Run,
    ) -> Result<usize, SessionError> {
        let mut reading = Reading {
            now: super::now(),
            carrier: carrier.id,
            bytes,
            position: 0,
            aim,
            run,
        };
        let mut goes_on = true;
        while goes_on && carrier.is_running() {
            goes_on = self.try_update(|session| {
                let parsed = self.parse(session, &mut reading);
                // `parse` stops at a control frame, which may end a stream. The payload before that
                // frame must be delivered before the end of the stream is handled.
                self.pass_on(session, &mut reading);
                parsed
            })?;
        }
        Ok(reading.position)
    }

    /// Processes frames and payload up to and including the next control frame. Returns whether
    /// there was a control frame: then the caller handles its events before the next call. The
    /// caller also passes on the remaining run.
    fn parse(
        &self,
        session: &mut dyn Session,
        reading: &mut Reading<'_>,
    ) -> Result<bool, SessionError> {
        loop {
            let unread = &reading.bytes[reading.position..];
            if let Some(receive) = session.receiving(reading.carrier) {
                let length = receive.length.min(unread.len());
                if length == 0 {
                    return Ok(false);
                }
                session.payload_moved(reading.now, reading.carrier, length);
                if let Some(stream) = receive.stream {
                    self.append(session, reading, stream, receive.offset, length);
                }
                reading.position += length;
                continue;
            }
            match session.handle_header(reading.now, reading.carrier, unread)? {
                Header::Incomplete { needed } => {
                    reading.aim.needed = needed;
                    return Ok(false);
                }
                Header::Payload { consumed, receive } => {
                    reading.aim.learn(receive.length);
                    reading.position += consumed;
                }
                Header::Datagram { header, consumed } => {
                    reading.aim.learn_short();
                    reading.position += consumed;
                    self.packets.arrived(&unread[header..consumed]);
                }
                Header::Control { consumed } => {
                    reading.aim.learn(consumed);
                    reading.position += consumed;
                    return Ok(true);
                }
            }
        }
    }

    /// Appends the next `length` bytes, payload of `stream` at `offset`, to the run.
    fn append(
        &self,
        session: &mut dyn Session,
        reading: &mut Reading<'_>,
        stream: StreamId,
        offset: u64,
        length: usize,
    ) {
        let run = &reading.run;
        let goes_on = run.stream == Some(stream)
            && run.offset + run.bytes as u64 == offset
            && run.ranges.len() < RANGES_MAX;
        if !goes_on {
            self.pass_on(session, reading);
            reading.run.stream = Some(stream);
            reading.run.offset = offset;
        }
        reading.run.bytes += length;
        let range = reading.position..reading.position + length;
        reading.run.ranges.push(range);
    }

    /// Writes a run to its local socket; the inbox keeps the rest.
    fn pass_on(&self, session: &mut dyn Session, reading: &mut Reading<'_>) {
        let Reading {
            now, bytes, run, ..
        } = reading;
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
            self.keep(stream, run.offset, &slices[..count]);
            return;
        };
        let taken = io.deliver(self.share.pool(), run.offset, &mut slices[..count], total);
        if taken > 0 {
            session.sink_took(*now, stream, taken);
            io.account.received(&self.telemetry, taken);
        }
    }
}

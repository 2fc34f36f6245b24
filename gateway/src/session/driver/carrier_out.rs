//! A carrier's writing loop: one gathered write of all frames that are ready.
//!
//! The loop runs after the tasks that make frames ready, and stops when no frame is ready. So the
//! loop flushes without a timer. Other frames cannot overtake a queued frame. So the loop takes
//! frames from the session only while the kernel has room, and within the bounds of
//! [`crate::session::backlog`]. If the session may have to retransmit a batch, [`super::retention`]
//! keeps the batch until the session releases it.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::ops::Range;
use std::rc::Rc;

use muxtunnel_proto::{Payload, Session, Token, Transmit};

use super::retention::Retained;
use super::stream::Ready;
use super::{Carrier, Driver, SessionEnd};
use crate::io::duplex;
use crate::io::socket;
use crate::io::transport::Transport;
use crate::stream::batch::Batch;
use crate::stream::buffers::Permit;
use crate::stream::packet::{Framed, Packet};
use crate::stream::pipe::{Pipe, Way};

/// Maximum number of slices in one write.
const SLICES_MAX: usize = 64;

/// Maximum length of a packet that is copied to the end of the previous frame.
const COPIED_BYTES_MAX: usize = 4 << 10;

pub(super) enum Chunk {
    Control(Vec<u8>),
    /// A batch, and how many bytes of its buffer belong to frames.
    Batch(Batch, usize),
    /// Bytes of a retained batch.
    Kept {
        batch: Rc<Batch>,
        range: Range<usize>,
        /// The permit of the batch's buffer ([`Permit`]), which is released once the bytes are
        /// written.
        _permit: Option<Permit>,
    },
    /// Payload in a pipe. The chunk before this chunk contains the header.
    Pipe(Pipe),
    /// A frame with an IP packet.
    Packet(Framed),
}

impl Chunk {
    /// `None`: the bytes are in a pipe.
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Control(bytes) => Some(bytes),
            Self::Batch(batch, span) => Some(batch.bytes(0..*span)),
            Self::Kept { batch, range, .. } => Some(batch.bytes(range.clone())),
            Self::Packet(frame) => Some(frame),
            Self::Pipe(_) => None,
        }
    }

    /// The batch, if it is retained.
    fn kept(&self) -> Option<&Rc<Batch>> {
        match self {
            Self::Kept { batch, .. } => Some(batch),
            Self::Control(_) | Self::Batch(..) | Self::Pipe(_) | Self::Packet(_) => None,
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Pipe(pipe) => pipe.held(),
            chunk => chunk.bytes().map_or(0, <[u8]>::len),
        }
    }
}

/// The chunks to write, oldest first. `written` bytes of the first chunk are already written; a
/// pipe counts its own written bytes.
#[derive(Default)]
pub(super) struct Queue {
    chunks: VecDeque<Chunk>,
    written: usize,
    bytes: usize,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn push_control(&mut self, control: &[u8]) {
        match self.chunks.back_mut() {
            Some(Chunk::Control(bytes)) => {
                self.bytes += control.len();
                bytes.extend_from_slice(control);
            }
            _ => self.push(Chunk::Control(control.to_vec())),
        }
    }

    /// Queues a packet. A short packet is copied, so that adjacent frames form one slice of a
    /// write.
    fn push_packet(&mut self, header: &[u8], packet: Packet) {
        if packet.bytes().len() <= COPIED_BYTES_MAX {
            self.push_control(header);
            self.push_control(packet.bytes());
        } else {
            self.push(Chunk::Packet(packet.framed(header)));
        }
    }

    fn push(&mut self, chunk: Chunk) {
        self.bytes += chunk.length();
        self.chunks.push_back(chunk);
    }

    /// Writes the oldest chunks with one call. Returns how many bytes the transport took, and how
    /// many bytes it was given.
    fn write(&mut self, transport: &dyn Transport) -> std::io::Result<(usize, usize)> {
        if let Some(Chunk::Pipe(pipe)) = self.chunks.front_mut() {
            let total = pipe.held();
            let tcp = transport.plain().ok_or(ErrorKind::Unsupported)?;
            let length = pipe.drain(tcp, usize::MAX)?;
            self.bytes -= length;
            if length == total {
                self.chunks.pop_front();
            }
            return Ok((length, total));
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (count, total) = self.slices(&mut slices);
        let length = match (self.chunks.get(count), transport.plain()) {
            (Some(Chunk::Pipe(_)), Some(tcp)) => {
                socket::write_before_more(tcp, &slices[..count], total)
            }
            _ => transport.try_write(&slices[..count]),
        }?;
        self.advance(length);
        Ok((length, total))
    }

    /// Puts the oldest chunks, up to a pipe, into `slices`; returns the number of slices and of
    /// bytes.
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> (usize, usize) {
        let (mut count, mut total, mut skip) = (0, 0, self.written);
        for (bytes, slice) in self.chunks.iter().map_while(Chunk::bytes).zip(slices) {
            *slice = IoSlice::new(&bytes[skip..]);
            count += 1;
            total += slice.len();
            skip = 0;
        }
        (count, total)
    }

    /// Removes the oldest `length` bytes, which were written. These bytes must be in memory, not in
    /// a pipe.
    fn advance(&mut self, length: usize) {
        self.bytes -= length;
        self.written += length;
        while let Some(first) = self.chunks.front().and_then(Chunk::bytes).map(<[u8]>::len) {
            if self.written < first {
                break;
            }
            self.written -= first;
            self.chunks.pop_front();
        }
    }
}

pub(super) async fn run(driver: &Rc<Driver>, carrier: &Carrier) -> SessionEnd {
    loop {
        if let Err(error) = duplex::writable(&*carrier.transport).await {
            return error.into();
        }
        if let Err(error) = driver.gather(carrier) {
            return error.into();
        }
        if carrier.queue.borrow().is_empty() {
            driver.idle_wake.notify_waiters();
            carrier.transmits().await;
        } else {
            match write(driver, carrier) {
                Ok(true) => {}
                Ok(false) => driver.carrier_blocked(carrier),
                Err(error) => return error.into(),
            }
        }
    }
}

/// Writes queued chunks once; returns whether the kernel took all bytes that it was given.
fn write(driver: &Rc<Driver>, carrier: &Carrier) -> std::io::Result<bool> {
    let written = carrier.queue.borrow_mut().write(&*carrier.transport);
    match written {
        Ok((length, total)) => {
            carrier.stats.sent.add(length);
            if let Some(path) = carrier.transport.path()
                && let Some(rtt) = carrier.backlog.sample(path, super::now())?
            {
                driver.update(|session| session.handle_rtt(carrier.id, rtt));
            }
            Ok(length == total && !carrier.transport.holds_back())
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Ends a carrier that the session no longer needs: writes the queue, and waits until the peer ends
/// its half.
pub(super) async fn say_last_word(driver: &Rc<Driver>, carrier: &Carrier) -> std::io::Result<()> {
    let transport = &*carrier.transport;
    while !carrier.queue.borrow().is_empty() {
        duplex::writable(transport).await?;
        write(driver, carrier)?;
    }
    duplex::writable(transport).await?;
    transport.finish()?;
    duplex::linger(transport).await
}

impl Driver {
    /// Takes frames from the session while the queue has room.
    fn gather(self: &Rc<Self>, carrier: &Carrier) -> std::io::Result<()> {
        carrier.begin_transmit();
        self.update(|session| self.gather_from(session, carrier))
    }

    fn gather_from(&self, session: &mut dyn Session, carrier: &Carrier) -> std::io::Result<()> {
        let mut queue = carrier.queue.borrow_mut();
        let queued_max = carrier.backlog.queued_max();
        let (now, mut in_batch) = (super::now(), false);
        while in_batch || queue.bytes < queued_max {
            let has_turn = !in_batch && self.packets.have_turn();
            if has_turn && self.gather_packet(session, carrier, &mut queue) {
                continue;
            }
            match session.poll_transmit(now, carrier.id) {
                None if has_turn || !self.gather_packet(session, carrier, &mut queue) => break,
                None => {}
                Some(Transmit::Control { bytes, .. }) => queue.push_control(&bytes),
                Some(Transmit::Data {
                    header, payload, ..
                }) => {
                    in_batch = !payload.last;
                    self.packets.payload_left(payload.range.len());
                    self.gather_data(carrier, &mut queue, &header, &payload)?;
                }
                Some(Transmit::Again {
                    header, payload, ..
                }) => self.gather_again(&mut queue, &header, &payload)?,
            }
        }
        Ok(())
    }

    /// Takes the next packet; returns whether there was a packet.
    fn gather_packet(
        &self,
        session: &mut dyn Session,
        carrier: &Carrier,
        queue: &mut Queue,
    ) -> bool {
        if !session.takes_datagrams(carrier.id) {
            return false;
        }
        let Some(packet) = self.packets.next(super::now()) else {
            return false;
        };
        if let Some(header) = session.transmit_datagram(carrier.id, packet.bytes().len()) {
            queue.push_packet(&header, packet);
        }
        true
    }

    /// # Errors
    /// The error of read(2) of a pipe.
    fn gather_data(
        &self,
        carrier: &Carrier,
        queue: &mut Queue,
        header: &[u8],
        payload: &Payload,
    ) -> std::io::Result<()> {
        let Some(io) = self.stream(payload.stream) else {
            return Ok(());
        };
        io.put_header(payload.range.start, header);
        if !payload.last {
            return Ok(());
        }
        let length = payload.range.end;
        match io.take_batch() {
            Some(Ready::Pipe(pipe)) => {
                io.note_transmitted(None, length);
                queue.push_control(header);
                queue.push(self.chunk_of_pipe(carrier, pipe, payload)?);
            }
            Some(Ready::Buffer(batch)) => {
                let span = batch.layout.span(length);
                let chunk = if payload.retained {
                    self.keep_batch(batch, span, payload.token)
                } else {
                    Chunk::Batch(batch, span)
                };
                io.note_transmitted(chunk.kept(), length);
                queue.push(chunk);
            }
            None => {}
        }
        io.account.sent(&self.telemetry, length);
        Ok(())
    }

    /// The content of `pipe`, one packet. The content is copied if `carrier` cannot splice (another
    /// carrier of the session can), or if no pipe has room to retain it.
    ///
    /// # Errors
    /// The error of read(2).
    pub(super) fn chunk_of_pipe(
        &self,
        carrier: &Carrier,
        mut pipe: Pipe,
        payload: &Payload,
    ) -> std::io::Result<Chunk> {
        let length = pipe.held();
        if carrier.plain().is_some() && self.retain_pipe(carrier, &pipe, payload) {
            self.telemetry.splices.sent.add(length);
            return Ok(Chunk::Pipe(pipe));
        }
        let bytes = pipe.read(length)?;
        if !payload.retained {
            return Ok(Chunk::Control(bytes));
        }
        let batch = Rc::new(Batch::of_packet(bytes));
        let retained = Retained::Batch(Rc::clone(&batch));
        self.engine.retention.keep(payload.token, retained);
        Ok(Chunk::Kept {
            batch,
            range: 0..length,
            _permit: None,
        })
    }

    /// Retains the content of `pipe` if the session requires it. Returns whether that is done.
    fn retain_pipe(&self, carrier: &Carrier, pipe: &Pipe, payload: &Payload) -> bool {
        if !payload.retained {
            return true;
        }
        let another = || self.share.pipe(Way::ToCarrier, 1);
        let Some(retained) = carrier.retained.retain(pipe, another) else {
            self.telemetry.splices.pipes_lacking.add(1);
            return false;
        };
        let retained = Retained::Pipe(retained);
        self.engine.retention.keep(payload.token, retained);
        true
    }

    fn keep_batch(&self, mut batch: Batch, span: usize, token: Token) -> Chunk {
        let permit = batch.take_permit();
        let batch = Rc::new(batch);
        self.engine
            .retention
            .keep(token, Retained::Batch(Rc::clone(&batch)));
        Chunk::Kept {
            batch,
            range: 0..span,
            _permit: permit,
        }
    }

    /// Queues a part of a retained batch that another carrier did not deliver. Payload in a pipe is
    /// copied here, since the session may request the payload in parts and repeatedly.
    ///
    /// # Errors
    /// The batch is not retained; the carrier has to end.
    fn gather_again(
        &self,
        queue: &mut Queue,
        header: &[u8],
        payload: &Payload,
    ) -> std::io::Result<()> {
        let retained = self.engine.retention.take(payload.token);
        let batch = match retained {
            Some(Retained::Batch(batch)) => batch,
            Some(Retained::Pipe(retained)) => Rc::new(Batch::of_packet(retained.read()?)),
            None => {
                return Err(std::io::Error::other(
                    "payload to retransmit is not retained",
                ));
            }
        };
        self.engine
            .retention
            .keep(payload.token, Retained::Batch(Rc::clone(&batch)));
        queue.push_control(header);
        let place = batch.place(&payload.range);
        self.telemetry.resumes.sent_again(place.len());
        queue.push(Chunk::Kept {
            batch,
            range: place,
            _permit: None,
        });
        Ok(())
    }

    /// Reports to the session that the kernel takes no more bytes on `carrier`, so that other
    /// carriers take the waiting frames.
    fn carrier_blocked(self: &Rc<Self>, carrier: &Carrier) {
        self.update(|session| session.handle_carrier_blocked(carrier.id));
    }
}

/// Takes the remaining frames for a carrier that the session no longer needs.
pub(super) fn gather_last_word(session: &mut dyn Session, carrier: &Carrier) {
    let mut queue = carrier.queue.borrow_mut();
    let now = super::now();
    while let Some(Transmit::Control { bytes, .. }) = session.poll_transmit(now, carrier.id) {
        queue.push_control(&bytes);
    }
}

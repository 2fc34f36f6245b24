//! The carrier's writing loop: one gathered write of all that is ready.
//!
//! It runs after the tasks that made something ready and stops when there is nothing more, so it
//! flushes by itself and never by a timer. Frames are taken from the session only when the kernel has
//! room, and no more than [`super::backlog`] allows: what is taken cannot be overtaken.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::rc::Rc;

use std::time::Instant;

use muxtunnel_proto::{CarrierId, Transmit};

use super::batch::Batch;
use super::{CarrierEnd, Driver, socket};

/// Slices of one write.
const SLICES_MAX: usize = 64;

/// Bytes thrown away at once while a peer reads the last word.
const DISCARD_BYTES: usize = 16 << 10;

enum Chunk {
    Control(Vec<u8>),
    /// The batch and how many bytes of its buffer are frames.
    Batch(Batch, usize),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Control(bytes) => bytes,
            Self::Batch(batch, span) => batch.frames(*span),
        }
    }
}

/// What waits for the kernel, oldest first; `written` bytes of the first are gone.
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

    fn push_control(&mut self, control: Vec<u8>) {
        self.bytes += control.len();
        match self.chunks.back_mut() {
            Some(Chunk::Control(bytes)) => bytes.extend_from_slice(&control),
            _ => self.chunks.push_back(Chunk::Control(control)),
        }
    }

    fn push_batch(&mut self, batch: Batch, span: usize) {
        self.bytes += span;
        self.chunks.push_back(Chunk::Batch(batch, span));
    }

    /// Puts what is oldest into `slices`; returns how many slices and bytes these are.
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> (usize, usize) {
        let (mut count, mut total, mut skip) = (0, 0, self.written);
        for (chunk, slice) in self.chunks.iter().zip(slices) {
            *slice = IoSlice::new(&chunk.bytes()[skip..]);
            count += 1;
            total += slice.len();
            skip = 0;
        }
        (count, total)
    }

    fn advance(&mut self, length: usize) {
        self.bytes -= length;
        self.written += length;
        while let Some(first) = self.chunks.front().map(|chunk| chunk.bytes().len()) {
            if self.written < first {
                break;
            }
            self.written -= first;
            self.chunks.pop_front();
        }
    }
}

pub(super) async fn run(driver: &Rc<Driver>) -> CarrierEnd {
    loop {
        if let Err(error) = driver.tcp.writable().await {
            return error.into();
        }
        driver.gather();
        driver.publish();
        if driver.queue.borrow().is_empty() {
            driver.idle_wake.notify_waiters();
            driver.transmit_wake.notified().await;
        } else if let Err(error) = write(driver) {
            return error.into();
        }
    }
}

/// One write of what waits.
fn write(driver: &Driver) -> std::io::Result<()> {
    let mut queue = driver.queue.borrow_mut();
    let written = {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (count, total) = queue.slices(&mut slices);
        socket::write(&driver.tcp, &slices[..count], total)
    };
    match written {
        Ok(length) => {
            driver.stats.add_sent(length);
            queue.advance(length);
            if let Some(rtt) = driver.backlog.look(&driver.tcp, Instant::now())? {
                driver.session.borrow_mut().handle_rtt(CarrierId::ONLY, rtt);
            }
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// The session is over: writes what waits, with why at its end, and lets the peer read it. Closing
/// with unread bytes would be a reset, which takes the word away from the peer.
pub(super) async fn say_last_word(driver: &Driver) -> std::io::Result<()> {
    while !driver.queue.borrow().is_empty() {
        driver.tcp.writable().await?;
        write(driver)?;
    }
    socket2::SockRef::from(&driver.tcp).shutdown(std::net::Shutdown::Write)?;
    let mut discarded = vec![0; DISCARD_BYTES];
    loop {
        driver.tcp.readable().await?;
        match driver.tcp.try_read(&mut discarded) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

impl Driver {
    /// Takes frames from the session while there is room for them.
    fn gather(&self) {
        let mut session = self.session.borrow_mut();
        let mut queue = self.queue.borrow_mut();
        let queued_max = self.backlog.queued_max();
        let mut in_batch = false;
        while in_batch || queue.bytes < queued_max {
            match session.poll_transmit() {
                None => break,
                Some(Transmit::Control { bytes, .. }) => queue.push_control(bytes),
                Some(Transmit::Data {
                    header, payload, ..
                }) => {
                    let Some(io) = self.stream(payload.stream) else {
                        continue;
                    };
                    io.put_header(payload.range.start, &header);
                    in_batch = !payload.last;
                    if payload.last {
                        let length = payload.range.end;
                        if let Some((batch, span)) = io.take_batch(length) {
                            queue.push_batch(batch, span);
                        }
                        io.account.sent(&self.telemetry, length);
                    }
                }
            }
        }
    }

    /// What a closed session still has to say.
    pub(super) fn gather_last_word(&self) {
        let mut session = self.session.borrow_mut();
        let mut queue = self.queue.borrow_mut();
        while let Some(Transmit::Control { bytes, .. }) = session.poll_transmit() {
            queue.push_control(bytes);
        }
    }
}

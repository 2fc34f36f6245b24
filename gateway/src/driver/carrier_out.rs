//! The carrier's writing loop: one gathered write of all that is ready.
//!
//! It runs after the tasks that made something ready and stops when there is nothing more, so it
//! flushes by itself and never by a timer.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::rc::Rc;

use muxtunnel_proto::Transmit;

use super::buffers::Batch;
use super::{CarrierEnd, Driver};

/// Frames are taken from the session until this many bytes wait for the kernel.
const QUEUED_BYTES_MAX: usize = 512 << 10;
/// Slices of one write.
const SLICES_MAX: usize = 64;

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
struct Queue {
    chunks: VecDeque<Chunk>,
    written: usize,
    bytes: usize,
}

impl Queue {
    fn push_control(&mut self, control: &[u8]) {
        self.bytes += control.len();
        match self.chunks.back_mut() {
            Some(Chunk::Control(bytes)) => bytes.extend_from_slice(control),
            _ => self.chunks.push_back(Chunk::Control(control.to_vec())),
        }
    }

    fn push_batch(&mut self, batch: Batch, span: usize) {
        self.bytes += span;
        self.chunks.push_back(Chunk::Batch(batch, span));
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut skip = self.written;
        let slices = self.chunks.iter().take(SLICES_MAX).map(|chunk| {
            let slice = IoSlice::new(&chunk.bytes()[skip..]);
            skip = 0;
            slice
        });
        slices.collect()
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
    let mut queue = Queue::default();
    loop {
        driver.gather(&mut queue);
        driver.publish();
        driver.stats.set_writing(queue.bytes > 0);
        if queue.bytes == 0 {
            driver.idle_wake.notify_one();
            driver.transmit_wake.notified().await;
            continue;
        }
        if let Err(error) = driver.tcp.writable().await {
            return error.into();
        }
        let written = driver.tcp.try_write_vectored(&queue.slices());
        match written {
            Ok(length) => {
                driver.stats.add_sent(length);
                queue.advance(length);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return error.into(),
        }
    }
}

impl Driver {
    /// Takes frames from the session while there is room for them.
    fn gather(&self, queue: &mut Queue) {
        let mut session = self.session.borrow_mut();
        let mut in_batch = false;
        while in_batch || queue.bytes < QUEUED_BYTES_MAX {
            match session.poll_transmit() {
                None => break,
                Some(Transmit::Control { bytes, .. }) => queue.push_control(&bytes),
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
                        self.telemetry.add_bytes_sent(length);
                    }
                }
            }
        }
    }
}

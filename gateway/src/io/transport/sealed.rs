//! A transport that seals its bytes in records, on top of any other transport.
//!
//! This module reads and writes for every kind of [`Records`]. Each call handles as many records as
//! fit into a buffer. The transport holds a buffer only while a record is incomplete, or while the
//! transport below accepts no more bytes.

use std::cell::RefCell;
use std::fmt::Debug;
use std::io::{ErrorKind, IoSlice, Result};
use std::task::{Context, Poll, ready};

use muxtunnel_gateway_config::status::CarrierTransport;

use super::{Detached, Path, Transport, buffer};
use crate::io::duplex::Duplex;
use crate::io::proof::Proof;

/// The result of opening a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// The call took `consumed` sealed bytes, which became `length` plain bytes.
    Record { consumed: usize, length: usize },
    /// The end of the record has not arrived.
    Incomplete,
    /// The call requires `needed` bytes of room for plain bytes.
    NoRoom { needed: usize },
    /// The peer sent the end.
    End,
}

/// Seals and opens records. An implementation has keys and counters, but no socket.
pub(super) trait Records: Debug + Send {
    /// Seals as many bytes as fit into `out`, which has the size of a buffer and therefore room for
    /// a record. Returns the number of sealed bytes.
    ///
    /// # Errors
    /// No further bytes can be sealed.
    fn seal(&mut self, plain: &mut Gather<'_>, out: &mut [u8]) -> Result<usize>;

    /// Opens the first record of `sealed` into `plain`. The call may also overwrite the bytes of
    /// `plain` after the opened bytes.
    ///
    /// # Errors
    /// The peer did not seal the record, or the record was modified in transit.
    fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> Result<Opened>;

    /// Seals the answer that the peer expects to an opened record. Returns the answer's length,
    /// usually 0.
    ///
    /// # Errors
    /// No further bytes can be sealed.
    fn answer(&mut self, _out: &mut [u8]) -> Result<usize> {
        Ok(0)
    }

    /// Whether the peer expects such an answer.
    fn owes_answer(&self) -> bool {
        false
    }

    /// Asks for an answer of the peer with the next [`Self::answer`]. Returns whether the records
    /// have such a message.
    fn ping(&mut self) -> bool {
        false
    }

    /// Number of answers to [`Self::ping`].
    fn answers(&self) -> u64 {
        0
    }

    /// The kind of transport that the records create on top of the transport below; `None`: the
    /// kind remains that of the transport below.
    fn is_transport(&self) -> Option<CarrierTransport> {
        None
    }

    /// Seals the end of the direction. Returns the length, which may be 0.
    ///
    /// # Errors
    /// No further bytes can be sealed.
    fn close(&mut self, out: &mut [u8]) -> Result<usize>;
}

/// The source of a record's bytes.
pub(super) enum Next<'a> {
    /// There are no more bytes.
    End,
    /// The next bytes of the first slice, which count as taken.
    Whole(&'a [u8]),
    /// Bytes of several slices, which the caller must copy.
    Parts,
}

/// Bytes of several slices, which are taken in order.
#[derive(Debug)]
pub(super) struct Gather<'a> {
    slices: &'a [IoSlice<'a>],
    /// Number of bytes taken from the first slice.
    skip: usize,
    taken: usize,
}

impl<'a> Gather<'a> {
    pub(super) fn new(slices: &'a [IoSlice<'a>]) -> Self {
        Self {
            slices,
            skip: 0,
            taken: 0,
        }
    }

    /// The rest of the first slice that is not empty; empty at the end.
    pub(super) fn first(&mut self) -> &'a [u8] {
        while let Some(slice) = self.slices.first() {
            if self.skip < slice.len() {
                return &slice[self.skip..];
            }
            self.slices = &self.slices[1..];
            self.skip = 0;
        }
        &[]
    }

    /// The next bytes of a record of at most `most` bytes. Contiguous bytes are taken without a
    /// copy.
    pub(super) fn next(&mut self, most: usize) -> Next<'a> {
        let first = self.first();
        if first.is_empty() {
            Next::End
        } else if first.len() >= most || self.slices.len() <= 1 {
            let whole = &first[..first.len().min(most)];
            self.advance(whole.len());
            Next::Whole(whole)
        } else {
            Next::Parts
        }
    }

    /// Number of bytes that are not taken yet.
    pub(super) fn left(&self) -> usize {
        let all: usize = self.slices.iter().map(|slice| slice.len()).sum();
        all - self.skip
    }

    /// Takes `length` bytes of the first slice.
    pub(super) fn advance(&mut self, length: usize) {
        self.skip += length;
        self.taken += length;
    }

    /// Copies as many bytes into `to` as are available and fit. Returns the number of bytes.
    pub(super) fn copy(&mut self, to: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < to.len() {
            let first = self.first();
            if first.is_empty() {
                break;
            }
            let length = first.len().min(to.len() - filled);
            to[filled..filled + length].copy_from_slice(&first[..length]);
            filled += length;
            self.advance(length);
        }
        filled
    }
}

/// Sealed bytes that the transport below has not accepted.
#[derive(Debug, Default)]
struct Outgoing {
    /// The buffer; `None`: no sealed bytes wait.
    buffer: Option<Box<[u8]>>,
    written: usize,
    filled: usize,
}

/// Bytes that were read and not returned to the caller.
#[derive(Debug, Default)]
struct Incoming {
    /// Sealed bytes.
    buffer: Option<Box<[u8]>>,
    start: usize,
    filled: usize,
    /// Plain bytes of a record that did not fit into the caller's buffer, and how many of these
    /// bytes the caller has got since.
    plain: Vec<u8>,
    passed: usize,
    /// Whether more bytes may be available without a read.
    more: bool,
    ended: bool,
}

/// A transport in records over `below`.
#[derive(Debug)]
pub(super) struct Sealed<R> {
    below: Box<dyn Transport>,
    records: RefCell<R>,
    incoming: RefCell<Incoming>,
    outgoing: RefCell<Outgoing>,
    proof: Option<Proof>,
}

impl<R: Records + 'static> Sealed<R> {
    /// `unread` contains sealed bytes that were already read. `plain` contains bytes that were
    /// already opened.
    pub(super) fn boxed(
        below: Box<dyn Transport>,
        records: R,
        proof: Option<Proof>,
        unread: &[u8],
        plain: Vec<u8>,
    ) -> Box<dyn Transport> {
        let mut incoming = Incoming {
            more: !unread.is_empty() || !plain.is_empty(),
            plain,
            ..Incoming::default()
        };
        if !unread.is_empty() {
            let mut buffer = buffer::take();
            buffer[..unread.len()].copy_from_slice(unread);
            incoming.buffer = Some(buffer);
            incoming.filled = unread.len();
        }
        Box::new(Self {
            below,
            records: RefCell::new(records),
            incoming: RefCell::new(incoming),
            outgoing: RefCell::default(),
            proof,
        })
    }
}

impl<R: Records> Sealed<R> {
    /// Sends the expected answer if no sealed bytes wait. Otherwise the next write sends the
    /// answer.
    fn answer(&self) -> Result<()> {
        let mut records = self.records.borrow_mut();
        let mut outgoing = self.outgoing.borrow_mut();
        if !records.owes_answer() || outgoing.buffer.is_some() {
            return Ok(());
        }
        let mut buffer = buffer::take();
        outgoing.filled = records.answer(&mut buffer)?;
        outgoing.buffer = Some(buffer);
        outgoing.flush(&*self.below).map(drop)
    }
}

impl Outgoing {
    /// Writes pending bytes. Returns whether all bytes were written.
    fn flush(&mut self, below: &dyn Transport) -> Result<bool> {
        let Some(buffer) = self.buffer.take() else {
            return Ok(true);
        };
        while self.written < self.filled {
            let rest = IoSlice::new(&buffer[self.written..self.filled]);
            match below.try_write(&[rest]) {
                Ok(length) => self.written += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.buffer = Some(buffer);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.written = 0;
        self.filled = 0;
        buffer::put(buffer);
        Ok(true)
    }
}

impl Incoming {
    /// Copies plain bytes that were opened earlier into `to`. Returns their number.
    fn pass_on(&mut self, to: &mut [u8]) -> usize {
        let rest = &self.plain[self.passed..];
        let length = rest.len().min(to.len());
        to[..length].copy_from_slice(&rest[..length]);
        self.passed += length;
        if self.passed == self.plain.len() {
            self.plain = Vec::new();
            self.passed = 0;
        }
        length
    }

    /// Opens complete records that fit into `to`. Returns the number of plain bytes.
    fn open(&mut self, records: &mut dyn Records, to: &mut [u8]) -> Result<usize> {
        let mut moved = self.pass_on(to);
        self.more = true;
        while moved < to.len() && !self.ended {
            let sealed = match &self.buffer {
                Some(buffer) => &buffer[self.start..self.filled],
                None => &[],
            };
            match records.open(sealed, &mut to[moved..])? {
                Opened::Record { consumed, length } => {
                    self.start += consumed;
                    moved += length;
                }
                Opened::Incomplete => {
                    self.more = false;
                    break;
                }
                Opened::NoRoom { .. } if moved > 0 => break,
                Opened::NoRoom { needed } => {
                    let mut plain = vec![0; needed];
                    if let Opened::Record { consumed, length } = records.open(sealed, &mut plain)? {
                        self.start += consumed;
                        plain.truncate(length);
                    }
                    self.plain = plain;
                    moved = self.pass_on(to);
                }
                Opened::End => self.ended = true,
            }
        }
        Ok(moved)
    }

    /// Reads more bytes. Returns whether more bytes may follow; false at the end.
    fn fill(&mut self, below: &dyn Transport) -> Result<bool> {
        let mut buffer = self.buffer.take().unwrap_or_else(buffer::take);
        buffer.copy_within(self.start..self.filled, 0);
        self.filled -= self.start;
        self.start = 0;
        let result = below.try_read(&mut buffer[self.filled..]);
        self.filled += *result.as_ref().unwrap_or(&0);
        if self.filled > 0 {
            self.buffer = Some(buffer);
        } else {
            buffer::put(buffer);
        }
        result.map(|length| length > 0)
    }
}

impl<R: Records + 'static> Duplex for Sealed<R> {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.incoming.borrow().more {
            return Poll::Ready(Ok(()));
        }
        self.below.poll_readable(context)
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            ready!(self.below.poll_writable(context))?;
            if self.outgoing.borrow_mut().flush(&*self.below)? {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn try_read(&self, bytes: &mut [u8]) -> Result<usize> {
        let mut incoming = self.incoming.borrow_mut();
        loop {
            let moved = incoming.open(&mut *self.records.borrow_mut(), bytes)?;
            self.answer()?;
            if moved > 0 || incoming.ended || bytes.is_empty() {
                return Ok(moved);
            }
            if !incoming.fill(&*self.below)? {
                return Ok(0);
            }
        }
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        let mut outgoing = self.outgoing.borrow_mut();
        if !outgoing.flush(&*self.below)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut plain = Gather::new(slices);
        // If the buffer was too small for all bytes, the transport below may still accept more, so
        // the loop continues.
        loop {
            let mut buffer = buffer::take();
            outgoing.filled = self.records.borrow_mut().seal(&mut plain, &mut buffer)?;
            outgoing.buffer = Some(buffer);
            if !outgoing.flush(&*self.below)? || plain.first().is_empty() {
                return Ok(plain.taken);
            }
        }
    }

    fn finish(&self) -> Result<()> {
        let mut outgoing = self.outgoing.borrow_mut();
        if outgoing.flush(&*self.below)? {
            let mut buffer = buffer::take();
            outgoing.filled = self.records.borrow_mut().close(&mut buffer)?;
            outgoing.buffer = Some(buffer);
            // The peer can do without the last message, so the call does not wait for the kernel.
            outgoing.flush(&*self.below)?;
        }
        self.below.finish()
    }
}

impl<R: Records + 'static> Transport for Sealed<R> {
    fn holds_back(&self) -> bool {
        self.outgoing.borrow().buffer.is_some() || self.below.holds_back()
    }

    fn shut(&self) {
        self.below.shut();
    }

    fn path(&self) -> Option<&dyn Path> {
        self.below.path()
    }

    fn ping(&self) -> bool {
        if !self.records.borrow_mut().ping() {
            return self.below.ping();
        }
        // A failure ends the next read or write.
        let _ = self.answer();
        true
    }

    fn answers(&self) -> u64 {
        self.records.borrow().answers() + self.below.answers()
    }

    fn runs_on(&self) -> CarrierTransport {
        let is = self.records.borrow().is_transport();
        is.unwrap_or_else(|| self.below.runs_on())
    }

    fn proof(&self) -> Option<&Proof> {
        self.proof.as_ref()
    }

    fn peer(&self) -> String {
        self.below.peer()
    }

    fn detach(self: Box<Self>) -> Result<Detached> {
        let Self {
            below,
            records,
            incoming,
            outgoing,
            proof,
        } = *self;
        let below = below.detach()?;
        Ok(Box::new(move || {
            Ok(Box::new(Self {
                below: below()?,
                records,
                incoming,
                outgoing,
                proof,
            }))
        }))
    }
}

#[cfg(test)]
mod tests;

//! A carrier in memory: a duplex byte stream that transfers pieces of random size, returns
//! `WouldBlock` at random, and can be cut.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::choice::Choices;
use super::frames::{Frames, Place};
use super::seen::Seen;
use super::stage::{Stage, Whose};
use crate::io::duplex::Duplex;
use crate::io::transport::{Detached, Transport};

/// On average, one of this many writes or reads returns `WouldBlock`.
const AGAIN: usize = 6;
/// Maximum pause after `WouldBlock`.
const AGAIN_MILLISECONDS: usize = 20;

/// Readiness of one direction.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The direction is not ready before this time.
    until: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    waker: Option<Waker>,
}

impl Gate {
    /// Returns `WouldBlock`, and makes the direction unready for a random time.
    pub(super) fn close(&mut self, choices: &mut Choices) -> Error {
        let pause = choices.below(AGAIN_MILLISECONDS + 1);
        let pause = if choices.one_in(2) { 0 } else { pause };
        self.until = Some(Instant::now() + Duration::from_millis(pause as u64));
        ErrorKind::WouldBlock.into()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.until.is_some_and(|until| until > Instant::now())
    }

    /// Completes once the gate is open. [`Self::wake`] also wakes the waiting task.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.waker = Some(context.waker().clone());
        match self.until {
            Some(until) if until > Instant::now() => self.wait(until, context),
            _ => Poll::Ready(()),
        }
    }

    fn wait(&mut self, until: Instant, context: &mut Context<'_>) -> Poll<()> {
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        timer.as_mut().poll(context)
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// What follows the last byte of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    End,
    Reset,
}

/// One direction of the carrier.
#[derive(Debug)]
struct Pipe {
    stage: Rc<Stage>,
    choices: Choices,
    delay: Duration,
    capacity: usize,
    /// Bytes in flight, with their arrival times.
    flying: VecDeque<(Instant, Vec<u8>)>,
    /// Number of bytes of the first entry that were read.
    taken: usize,
    held: usize,
    behind: Option<Behind>,
    /// Whether writes fail.
    broken: bool,
    /// Whether the writer has ended this direction.
    finished: bool,
    /// Whether written bytes are discarded.
    swallows: bool,
    reads: Gate,
    writes: Gate,
    written: Frames,
    read: Frames,
}

impl Pipe {
    fn new(stage: &Rc<Stage>, number: u64) -> Rc<RefCell<Self>> {
        let profile = &stage.profile;
        let mut choices = stage.choices(Whose::Carrier, number);
        let factor = choices.of(&[1, 1, 3]);
        Rc::new(RefCell::new(Self {
            stage: Rc::clone(stage),
            delay: profile.delay * factor,
            choices,
            capacity: profile.carrier_bytes,
            flying: VecDeque::new(),
            taken: 0,
            held: 0,
            behind: None,
            broken: false,
            finished: false,
            swallows: false,
            reads: Gate::default(),
            writes: Gate::default(),
            written: Frames::new(profile.kind),
            read: Frames::new(profile.kind),
        }))
    }

    fn again(&mut self) -> bool {
        let faults = self.stage.profile.agains && !self.stage.fair.get();
        faults && self.choices.one_in(AGAIN)
    }

    /// How many of `length` bytes to transfer.
    fn piece(&mut self, length: usize) -> usize {
        if self.stage.profile.pieces && self.choices.one_in(2) {
            self.choices.length(length)
        } else {
            length
        }
    }

    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.reads.poll(context).is_pending() {
            return Poll::Pending;
        }
        match (self.flying.front(), self.behind) {
            (Some((at, _)), _) if *at > Instant::now() => {
                let at = *at;
                self.reads.wait(at, context).map(Ok)
            }
            (None, None) => Poll::Pending,
            _ => Poll::Ready(Ok(())),
        }
    }

    fn try_read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let now = Instant::now();
        if self.reads.is_closed() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let is_there = |(at, _): &&(Instant, Vec<u8>)| *at <= now;
        let arrived = self.flying.iter().take_while(is_there);
        let arrived: usize = arrived.map(|(_, bytes)| bytes.len()).sum();
        let arrived = arrived.saturating_sub(self.taken).min(bytes.len());
        if arrived == 0 {
            return match self.behind.filter(|_| self.held == 0) {
                None => Err(ErrorKind::WouldBlock.into()),
                Some(Behind::End) => Ok(0),
                Some(Behind::Reset) => Err(ErrorKind::ConnectionReset.into()),
            };
        }
        self.stage.moved();
        if self.again() {
            self.stage.see(Seen::ReadAgain);
            return Err(self.reads.close(&mut self.choices));
        }
        let length = self.piece(arrived);
        self.take(&mut bytes[..length]);
        match self.read.pass(&bytes[..length]) {
            Ok(Place::Header) => self.stage.see(Seen::ReadEndsInHeader),
            Ok(Place::Payload) => self.stage.see(Seen::ReadEndsInPayload),
            Ok(Place::Boundary) => {}
            Err(error) => self
                .stage
                .fail(format!("a carrier delivered invalid frames: {error}")),
        }
        self.writes.wake();
        Ok(length)
    }

    fn take(&mut self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            let Some((_, first)) = self.flying.front() else {
                break;
            };
            let length = (first.len() - self.taken).min(bytes.len() - filled);
            bytes[filled..filled + length].copy_from_slice(&first[self.taken..self.taken + length]);
            filled += length;
            self.taken += length;
            if self.taken == first.len() {
                self.taken = 0;
                self.flying.pop_front();
            }
        }
        self.held -= filled;
    }

    fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.writes.poll(context).is_pending() {
            return Poll::Pending;
        }
        if self.broken || self.swallows || self.held < self.capacity {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    fn try_write(&mut self, slices: &[IoSlice<'_>]) -> Result<usize> {
        if self.broken || self.finished {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if self.writes.is_closed() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.swallows {
            return Ok(total);
        }
        let room = self.capacity.saturating_sub(self.held).min(total);
        if room < total {
            self.stage.see(Seen::CarrierFull);
        }
        if room == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.stage.moved();
        if self.again() {
            self.stage.see(Seen::WriteAgain);
            return Err(self.writes.close(&mut self.choices));
        }
        let length = self.piece(room);
        let mut bytes = Vec::with_capacity(length);
        for slice in slices {
            let length = slice.len().min(length - bytes.len());
            bytes.extend_from_slice(&slice[..length]);
        }
        match self.written.pass(&bytes) {
            Ok(Place::Header) => self.stage.see(Seen::WriteEndsInHeader),
            Ok(Place::Payload) => self.stage.see(Seen::WriteEndsInPayload),
            Ok(Place::Boundary) => {}
            Err(error) => self.stage.fail(format!("a carrier got no frames: {error}")),
        }
        self.held += length;
        self.flying.push_back((Instant::now() + self.delay, bytes));
        self.reads.wake();
        if length < total && self.again() {
            // Simulates a kernel that takes no more for a while.
            self.writes.close(&mut self.choices);
        }
        Ok(length)
    }

    fn end(&mut self, behind: Behind) {
        self.behind.get_or_insert(behind);
        self.reads.wake();
    }

    /// Loses the last bytes of a cut direction, and ends the direction for the reader.
    fn lose(&mut self) {
        let kept = match self.choices.below(3) {
            0 => self.held,
            1 => 0,
            _ => self.choices.below(self.held + 1),
        };
        if self.held > 0 && kept == self.held {
            self.stage.see(Seen::CutWithNothingLost);
        }
        let mut rest = kept + self.taken;
        for (_, bytes) in &mut self.flying {
            bytes.truncate(rest);
            rest -= bytes.len();
        }
        self.flying.retain(|(_, bytes)| !bytes.is_empty());
        // The reader has already read all bytes that are left of the first piece.
        if self
            .flying
            .front()
            .is_some_and(|(_, bytes)| bytes.len() == self.taken)
        {
            self.flying.pop_front();
            self.taken = 0;
        }
        self.held = kept;
        let mut arrives = self.read.clone();
        let (mut place, mut skip) = (arrives.place(), self.taken);
        for (_, bytes) in &self.flying {
            place = arrives.pass(&bytes[skip..]).unwrap_or(place);
            skip = 0;
        }
        match place {
            Place::Header => self.stage.see(Seen::CutInHeader),
            Place::Payload => self.stage.see(Seen::CutInPayload),
            Place::Boundary => {}
        }
        self.swallows = true;
        let is_reset = self.choices.one_in(2);
        if !is_reset {
            self.stage.see(Seen::CutAsEnd);
        }
        self.end(if is_reset { Behind::Reset } else { Behind::End });
        self.writes.wake();
    }

    fn break_writer(&mut self) {
        self.broken = true;
        self.writes.wake();
    }
}

/// One end of the carrier.
#[derive(Debug)]
struct End {
    out: Rc<RefCell<Pipe>>,
    into: Rc<RefCell<Pipe>>,
}

impl Duplex for End {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.into.borrow_mut().poll_readable(context)
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.out.borrow_mut().poll_writable(context)
    }

    fn try_read(&self, bytes: &mut [u8]) -> Result<usize> {
        self.into.borrow_mut().try_read(bytes)
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        self.out.borrow_mut().try_write(slices)
    }

    fn finish(&self) -> Result<()> {
        let mut out = self.out.borrow_mut();
        out.end(Behind::End);
        out.finished = true;
        Ok(())
    }
}

impl Transport for End {
    fn shut(&self) {
        self.out.borrow_mut().end(Behind::End);
        self.out.borrow_mut().break_writer();
        // If the other end continues to write, its writes fail.
        self.into.borrow_mut().break_writer();
    }

    fn peer(&self) -> String {
        "drawn".to_owned()
    }

    fn detach(self: Box<Self>) -> Result<Detached> {
        Err(ErrorKind::Unsupported.into())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.shut();
    }
}

/// The world's access to a carrier.
#[derive(Debug)]
pub(super) struct Cable {
    pipes: [Rc<RefCell<Pipe>>; 2],
}

/// Both ends of a carrier, the entry first.
pub(super) fn carrier(
    stage: &Rc<Stage>,
    number: u64,
) -> (Box<dyn Transport>, Box<dyn Transport>, Cable) {
    let pipes = [0, 1].map(|side| Pipe::new(stage, 2 * number + side));
    let [there, back] = &pipes;
    let end = |out: &Rc<RefCell<Pipe>>, into: &Rc<RefCell<Pipe>>| {
        let (out, into) = (Rc::clone(out), Rc::clone(into));
        Box::new(End { out, into })
    };
    (end(there, back), end(back, there), Cable { pipes })
}

impl Cable {
    /// Whether both ends are open and the carrier was not cut.
    pub(super) fn is_whole(&self) -> bool {
        self.pipes.iter().all(|pipe| {
            let pipe = pipe.borrow();
            pipe.behind.is_none() && !pipe.broken
        })
    }

    /// Whether bytes are in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.pipes.iter().any(|pipe| pipe.borrow().held > 0)
    }

    /// Cuts the carrier; both ends notice at once.
    pub(super) fn cut(&self) {
        for pipe in &self.pipes {
            let mut pipe = pipe.borrow_mut();
            pipe.lose();
            pipe.break_writer();
        }
    }

    /// Cuts one direction. Its reader detects the cut. Its writer does not, and the written bytes
    /// are discarded.
    pub(super) fn cut_half(&self, stage: &Stage, direction: usize) {
        stage.see(Seen::HalfCut);
        self.pipes[direction].borrow_mut().lose();
    }
}

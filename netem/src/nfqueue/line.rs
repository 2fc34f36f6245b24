//! The driver of the delay line: one thread between the kernel's queue and [`DelayLine`].
//!
//! The module owns the netlink socket and the loop: read packets, release due packets, sleep until
//! the next packet is due. Input: packet ids and a stop signal. Output: verdicts. The loop runs
//! until it is stopped or the queue fails. The loop never removes the rules, so that after a
//! failure traffic stops and does not pass undelayed.

use std::{
    io,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        prctl,
        socket::{setsockopt, sockopt::RcvBufForce},
        time::TimeSpec,
    },
};

use super::{
    QUEUE,
    message::{self, Event, Form},
};
use crate::{
    delay_line::{DelayLine, Dropped, PACKETS_MAX, Release},
    impairments::Impairments,
};

/// Room for queued packets that this process has not read: 131,072 messages of about 400 bytes of
/// kernel memory are 52 MB.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;

/// Maximum number of messages that the loop reads before it releases due packets, so that a flood
/// of arrivals cannot delay departures. 256 messages take about 0.3 ms.
const READS_PER_TURN: usize = 256;

/// Size of the buffer for a datagram. A message with an id and without payload has less than 200
/// bytes.
const DATAGRAM_BYTES: usize = 8192;

/// Timer slack of the loop in nanoseconds: 1 us instead of the default of 50 us.
const TIMER_SLACK_NANOSECONDS: u64 = 1000;

/// The queue could not be opened, or failed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// A system call failed.
    #[error("{step}: {source}{}", hint(source))]
    System {
        /// The failed step.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel sent a malformed message.
    #[error(transparent)]
    Malformed(#[from] message::Malformed),
    /// The thread ended without an error.
    #[error("the thread of the delay line ended unexpectedly")]
    Thread,
}

/// The remedy for frequent errors.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM | Errno::EACCES) => {
            " (the process needs NET_ADMIN in this network namespace, and the queue must be free)"
        }
        Some(Errno::EBUSY) => " (another process holds the queue; is muxwan running already?)",
        Some(Errno::EINVAL | Errno::EPROTONOSUPPORT) => " (the kernel may lack nfnetlink_queue)",
        _ => "",
    }
}

fn system(step: &'static str) -> impl Fn(io::Error) -> QueueError {
    move |source| QueueError::System { step, source }
}

/// A delay line that runs in its own thread.
#[derive(Debug)]
pub struct Running {
    /// If this socket is closed or written to, the thread stops. If the thread ends by itself, it
    /// closes its own end of the socket.
    stop: UnixStream,
    one_way_delay_ns: Arc<AtomicU64>,
    thread: JoinHandle<Result<Counts, QueueError>>,
}

/// Number of packets by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that were delayed.
    pub passed: u64,
    /// Packets that were lost at the requested rate of loss.
    pub lost: u64,
    /// Packets that were dropped because a buffer was full.
    pub overflowed: u64,
}

impl Running {
    /// Opens the queue and serves it. No packet arrives before the rules exist.
    ///
    /// # Errors
    /// [`QueueError`]: the kernel does not support the queue, the queue is in use, or rights are
    /// missing.
    pub fn start(path: Impairments) -> Result<Self, QueueError> {
        let form = if path.needs_frames() {
            Form::Frames
        } else {
            Form::Whole
        };
        let socket = open(QUEUE, form)?;
        let (stop, stopped) = UnixStream::pair().map_err(system("cannot create a socket pair"))?;
        let one_way_delay_ns = Arc::new(AtomicU64::new(nanoseconds(path.one_way_delay)));
        let shared = Arc::clone(&one_way_delay_ns);
        let thread = thread::Builder::new()
            .name("delay-line".to_owned())
            .spawn(move || {
                Server {
                    socket,
                    line: DelayLine::new(path, PACKETS_MAX, rand::random::<f64>),
                    counts: Counts::default(),
                    one_way_delay_ns: shared,
                }
                .serve(&stopped)
            })
            .map_err(system("cannot start the thread of the delay line"))?;
        Ok(Self {
            stop,
            one_way_delay_ns,
            thread,
        })
    }

    /// Sets the one-way delay of later packets.
    pub fn set_one_way_delay(&self, one_way_delay: Duration) {
        let value = nanoseconds(one_way_delay);
        self.one_way_delay_ns.store(value, Ordering::Relaxed);
    }

    /// A descriptor that becomes readable when the thread has ended by itself.
    #[must_use]
    pub fn ended(&self) -> &UnixStream {
        &self.stop
    }

    /// Releases all held packets, ends the thread and closes the queue.
    ///
    /// # Errors
    /// The reason why the thread had already ended.
    pub fn stop(self) -> Result<Counts, QueueError> {
        drop(self.stop);
        self.thread.join().map_err(|_| QueueError::Thread)?
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn open(queue: u16, form: Form) -> Result<Socket, QueueError> {
    let mut socket = Socket::new(NETLINK_NETFILTER).map_err(system("cannot open netlink"))?;
    socket.bind_auto().map_err(system("cannot bind netlink"))?;
    // If the buffer is full, the kernel drops the packet, as a router does. Without this option the
    // socket would return an error.
    socket
        .set_no_enobufs(true)
        .map_err(system("cannot set NETLINK_NO_ENOBUFS"))?;
    request(&socket, &message::bind(queue), "cannot bind the queue")?;
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER_BYTES)
        .map_err(|error| system("cannot set SO_RCVBUFFORCE")(error.into()))?;
    request(
        &socket,
        &message::configure(queue, PACKETS_MAX as u32, form),
        "cannot configure the queue",
    )?;
    socket
        .set_non_blocking(true)
        .map_err(system("cannot set the socket to non-blocking"))?;
    Ok(socket)
}

/// Sends one message of the set-up and reads its answer. No packet can arrive yet.
fn request(socket: &Socket, bytes: &[u8], step: &'static str) -> Result<(), QueueError> {
    socket.send(bytes, 0).map_err(system(step))?;
    let mut buffer = Vec::with_capacity(DATAGRAM_BYTES);
    socket.recv(&mut buffer, 0).map_err(system(step))?;
    for event in message::parse(&buffer)? {
        if let Event::Answer(error @ ..=-1) = event {
            return Err(system(step)(io::Error::from_raw_os_error(-error)));
        }
    }
    Ok(())
}

struct Server<D> {
    socket: Socket,
    line: DelayLine<D>,
    counts: Counts,
    one_way_delay_ns: Arc<AtomicU64>,
}

impl<D: FnMut() -> f64> Server<D> {
    fn serve(mut self, stopped: &UnixStream) -> Result<Counts, QueueError> {
        prctl::set_timerslack(TIMER_SLACK_NANOSECONDS)
            .map_err(|error| system("cannot set the timer slack")(error.into()))?;
        while !self.wait(stopped)? {
            let one_way_delay = self.one_way_delay_ns.load(Ordering::Relaxed);
            self.line
                .set_one_way_delay(Duration::from_nanos(one_way_delay));
            self.take_in()?;
            let due = self.line.release(Instant::now());
            self.let_out(due)?;
        }
        // Also releases packets in the queue that were not read yet. The rules are already removed,
        // so the queue becomes empty.
        while !self.take_in()? {}
        let rest = self.line.release_all();
        self.let_out(rest)?;
        Ok(self.counts)
    }

    /// Sleeps until a packet arrives or is due. Returns whether the loop must stop.
    fn wait(&self, stopped: &UnixStream) -> Result<bool, QueueError> {
        let timeout = self
            .line
            .next_due()
            .map(|due| TimeSpec::from(due.saturating_duration_since(Instant::now())));
        let mut ready = [
            PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        ];
        match ppoll(&mut ready, timeout, None) {
            Ok(_) | Err(Errno::EINTR) => Ok(ready[1].any().unwrap_or(false)),
            Err(error) => Err(system("cannot wait for packets")(error.into())),
        }
    }

    /// Reads up to [`READS_PER_TURN`] messages. Returns whether the socket has no more.
    fn take_in(&mut self) -> Result<bool, QueueError> {
        let mut buffer = Vec::with_capacity(DATAGRAM_BYTES);
        for _ in 0..READS_PER_TURN {
            buffer.clear();
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) => self.handle(&buffer, Instant::now())?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(system("cannot read the queue")(error)),
            }
        }
        Ok(false)
    }

    fn handle(&mut self, datagram: &[u8], now: Instant) -> Result<(), QueueError> {
        for event in message::parse(datagram)? {
            // Ignores an answer: it belongs to a verdict whose packets no longer exist, because the
            // interface went down.
            let Event::Packet { id, bytes } = event else {
                continue;
            };
            match self.line.hold(id, bytes, now) {
                Ok(()) => {
                    self.counts.passed += 1;
                    continue;
                }
                Err(Dropped::Lost) => self.counts.lost += 1,
                Err(Dropped::Buffer | Dropped::Full) => self.counts.overflowed += 1,
            }
            self.send(&message::drop_one(QUEUE, id))?;
        }
        Ok(())
    }

    fn let_out(&self, due: Option<Release>) -> Result<(), QueueError> {
        due.map_or(Ok(()), |due| {
            self.send(&message::accept_up_to(QUEUE, due.up_to_id))
        })
    }

    fn send(&self, bytes: &[u8]) -> Result<(), QueueError> {
        self.socket
            .send(bytes, 0)
            .map(|_| ())
            .map_err(system("cannot send a verdict"))
    }
}

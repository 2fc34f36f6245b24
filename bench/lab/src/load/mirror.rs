//! Streams to an echo server. The client compares each byte. A stream that ends before all its
//! bytes have returned is lost.
//!
//! The streams run on a separate runtime. Meanwhile the owner of [`Streams`] reads their [`Tally`].
//! The module counts lost streams and wrong bytes, and prints them to standard error. All other
//! streams continue.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    runtime::Runtime,
    sync::Notify,
    task::JoinHandle,
    time::timeout,
};

use muxbench::pattern::Pattern;

use super::wire::{MIRROR_BYTES, Request};

/// Maximum number of bytes in flight per stream, both directions together. For 1,000 streams, the
/// sum is 62.5 MiB. This is more than gateways with little memory retain, and too little to hide a
/// stall in socket buffers.
const ON_THE_WAY_BYTES_MAX: u64 = 64 << 10;

/// The progress of the streams.
#[derive(Debug)]
pub(super) struct Tally {
    start: Instant,
    /// Bytes that each stream has received.
    received: Vec<AtomicU64>,
    ended: Vec<AtomicBool>,
    wrong_bytes: AtomicU64,
    /// When each stream received its last byte, nanoseconds since the start.
    last_ns: Vec<AtomicU64>,
    /// When [`Tally::watch`] was called, nanoseconds since the start.
    watched_ns: AtomicU64,
    /// The longest pause of a stream between two received bytes since `watched_ns`, in nanoseconds.
    longest_ns: AtomicU64,
}

impl Tally {
    fn new(streams: usize) -> Self {
        Self {
            start: Instant::now(),
            received: (0..streams).map(|_| AtomicU64::new(0)).collect(),
            ended: (0..streams).map(|_| AtomicBool::new(false)).collect(),
            wrong_bytes: AtomicU64::new(0),
            last_ns: (0..streams).map(|_| AtomicU64::new(0)).collect(),
            watched_ns: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
        }
    }

    /// Payload bytes so far, both directions together.
    pub(super) fn bytes(&self) -> u64 {
        2 * self.counts().iter().sum::<u64>()
    }

    /// Number of received bytes that differed from the sent bytes.
    pub(super) fn wrong_bytes(&self) -> u64 {
        self.wrong_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that each stream has received.
    pub(super) fn counts(&self) -> Vec<u64> {
        let counts = self.received.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// The numbers of the streams that have not ended and have received nothing since `counts`.
    pub(super) fn waiting_since(&self, counts: &[u64]) -> Vec<usize> {
        let now = self.counts();
        let waits = |number: &usize| {
            now[*number] == counts[*number] && !self.ended[*number].load(Ordering::Relaxed)
        };
        (0..now.len()).filter(waits).collect()
    }

    /// Begins to measure the longest stall.
    pub(super) fn watch(&self) {
        self.watched_ns.store(self.now_ns(), Ordering::Relaxed);
        self.longest_ns.store(0, Ordering::Relaxed);
    }

    /// The longest time since [`Tally::watch`] in which a stream received nothing, including
    /// streams that still receive nothing. Ended streams are ignored.
    pub(super) fn stall(&self) -> Duration {
        let now = self.now_ns();
        let open = self.ended.iter().enumerate().filter_map(|(number, ended)| {
            let waits = !ended.load(Ordering::Relaxed);
            waits.then(|| self.since_last_ns(number, now))
        });
        let longest = self.longest_ns.load(Ordering::Relaxed);
        Duration::from_nanos(open.fold(longest, u64::max))
    }

    /// Time since a stream last received bytes. If [`Tally::watch`] was called later: time since
    /// that call.
    fn since_last_ns(&self, number: usize, now: u64) -> u64 {
        let last = self.last_ns[number].load(Ordering::Relaxed);
        now.saturating_sub(last.max(self.watched_ns.load(Ordering::Relaxed)))
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn add(&self, number: usize, bytes: usize, wrong: u64) {
        self.received[number].fetch_add(bytes as u64, Ordering::Relaxed);
        self.wrong_bytes.fetch_add(wrong, Ordering::Relaxed);
        let now = self.now_ns();
        let since = self.since_last_ns(number, now);
        self.last_ns[number].store(now, Ordering::Relaxed);
        self.longest_ns.fetch_max(since, Ordering::Relaxed);
    }
}

/// The running streams.
#[derive(Debug)]
pub(super) struct Streams {
    runtime: Runtime,
    tasks: Vec<JoinHandle<Result<()>>>,
    shared: Arc<Shared>,
}

/// The state that all streams share.
#[derive(Debug)]
struct Shared {
    pattern: Pattern,
    tally: Tally,
    /// Number of bytes that a stream sends. [`Streams::finish`] may end the stream earlier.
    bytes: u64,
    is_finished: AtomicBool,
}

impl Streams {
    /// Opens `count` streams, each of which sends up to `bytes` bytes.
    ///
    /// # Errors
    /// If the runtime cannot be created. A stream that cannot be opened counts as lost.
    pub(super) fn open(to: SocketAddr, count: u32, bytes: u64) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let shared = Arc::new(Shared {
            pattern: Pattern::new(MIRROR_BYTES),
            tally: Tally::new(count as usize),
            bytes,
            is_finished: AtomicBool::new(false),
        });
        let tasks = (0..count as usize)
            .map(|number| runtime.spawn(Arc::clone(&shared).carry(number, to)))
            .collect();
        Ok(Self {
            runtime,
            tasks,
            shared,
        })
    }

    /// The progress of the streams.
    pub(super) fn tally(&self) -> &Tally {
        &self.shared.tally
    }

    /// Ends all streams, and waits up to `patience` until all sent bytes have returned. Returns the
    /// number of lost streams.
    pub(super) fn finish(&mut self, patience: Duration) -> u32 {
        self.shared.is_finished.store(true, Ordering::Relaxed);
        self.complete(patience)
    }

    /// Waits up to `patience` until all streams have sent and received all their bytes. Returns the
    /// number of lost streams.
    pub(super) fn complete(&mut self, patience: Duration) -> u32 {
        let deadline = Instant::now() + patience;
        let mut lost = 0;
        for (number, task) in self.tasks.drain(..).enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = self.runtime.block_on(async { timeout(left, task).await });
            let received = self.shared.tally.received[number].load(Ordering::Relaxed);
            // A stream that ended early has already printed its error.
            lost += match ended {
                Ok(Ok(Ok(()))) => 0,
                Ok(_) => 1,
                Err(_) => {
                    eprintln!(
                        "stream {number} is lost: not complete in time, {received} bytes received"
                    );
                    1
                }
            };
        }
        lost
    }
}

impl Shared {
    async fn carry(self: Arc<Self>, number: usize, to: SocketAddr) -> Result<()> {
        let result = self.carry_all(number, to).await;
        self.tally.ended[number].store(true, Ordering::Relaxed);
        if let Err(error) = &result {
            let received = self.tally.received[number].load(Ordering::Relaxed);
            let after = self.tally.start.elapsed();
            eprintln!(
                "stream {number} lost after {after:?} with {received} bytes received: {error:#}"
            );
        }
        result
    }

    async fn carry_all(&self, number: usize, to: SocketAddr) -> Result<()> {
        let stream = TcpStream::connect(to).await;
        let mut stream = stream.with_context(|| format!("cannot connect to {to}"))?;
        stream.set_nodelay(true)?;
        stream.write_u8(Request::Mirror as u8).await?;
        let (mut input, mut output) = stream.split();
        let half = Half {
            shared: self,
            number,
            progress: Notify::new(),
            all: AtomicU64::new(u64::MAX),
        };
        tokio::try_join!(
            async { half.send(&mut output).await.context("sending") },
            async { half.receive(&mut input).await.context("receiving") },
        )?;
        Ok(())
    }
}

/// The state that the halves of a stream share.
struct Half<'a> {
    shared: &'a Shared,
    number: usize,
    /// Notifies the sender of received bytes.
    progress: Notify,
    /// The total number of sent bytes, set when the stream has sent its last byte.
    all: AtomicU64,
}

impl Half<'_> {
    async fn send(&self, output: &mut WriteHalf<'_>) -> Result<()> {
        let (shared, mut sent) = (self.shared, 0);
        while sent < shared.bytes && !shared.is_finished.load(Ordering::Relaxed) {
            let received = shared.tally.received[self.number].load(Ordering::Relaxed);
            let room = (received + ON_THE_WAY_BYTES_MAX).min(shared.bytes);
            if sent >= room {
                self.progress.notified().await;
                continue;
            }
            let length = (room - sent).min(MIRROR_BYTES as u64) as usize;
            let piece = shared.pattern.at(self.number, sent, length);
            sent += output.write(piece).await? as u64;
        }
        self.all.store(sent, Ordering::Relaxed);
        Ok(output.shutdown().await?)
    }

    async fn receive(&self, input: &mut ReadHalf<'_>) -> Result<()> {
        let (shared, number) = (self.shared, self.number);
        let mut buffer = vec![0; MIRROR_BYTES];
        let mut offset = 0;
        loop {
            let bytes = input.read(&mut buffer).await?;
            if bytes == 0 {
                let is_all = offset == self.all.load(Ordering::Relaxed);
                ensure!(
                    is_all,
                    "the stream ended before all sent bytes had returned"
                );
                return Ok(());
            }
            let wrong = shared.pattern.wrong(number, offset, &buffer[..bytes]);
            if wrong > 0 {
                eprintln!(
                    "stream {number}: {wrong} of {bytes} bytes wrong from offset {offset} on"
                );
            }
            offset += bytes as u64;
            shared.tally.add(number, bytes, wrong);
            self.progress.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_wait_are_those_that_received_nothing_and_have_not_ended() {
        let tally = Tally::new(3);
        let before = tally.counts();
        tally.add(0, 10, 0);
        tally.ended[1].store(true, Ordering::Relaxed);
        assert_eq!(tally.waiting_since(&before), [2]);
        assert_eq!((tally.bytes(), tally.wrong_bytes()), (20, 0));
    }

    fn pass(time: Duration) {
        let before = Instant::now();
        while before.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    const MS_5: Duration = Duration::from_millis(5);

    #[test]
    fn a_stall_lasts_from_one_byte_to_the_next() {
        let tally = Tally::new(1);
        tally.add(0, 1, 0);
        tally.watch();
        pass(MS_5);
        assert!(tally.stall() >= MS_5);
        tally.add(0, 1, 3);
        tally.add(0, 1, 0);
        assert!(tally.stall() >= MS_5);
        assert_eq!(tally.wrong_bytes(), 3);
    }

    #[test]
    fn one_stream_that_stalls_is_seen_while_the_others_go_on() {
        let tally = Tally::new(2);
        tally.watch();
        let start = Instant::now();
        while start.elapsed() < MS_5 {
            tally.add(0, 1, 0);
        }
        assert!(tally.stall() >= MS_5);
        // The pause counts as a stall even after the stream continues.
        tally.add(1, 1, 0);
        tally.add(0, 1, 0);
        assert!(tally.stall() >= MS_5);
    }

    #[test]
    fn what_was_before_the_watch_and_a_stream_that_has_ended_are_no_stall() {
        let tally = Tally::new(2);
        pass(2 * MS_5);
        tally.ended[1].store(true, Ordering::Relaxed);
        let (before, since) = (tally.start.elapsed(), Instant::now());
        tally.watch();
        tally.add(0, 1, 0);
        let stall = tally.stall();
        assert!(stall <= since.elapsed() && before >= 2 * MS_5, "{stall:?}");
    }
}

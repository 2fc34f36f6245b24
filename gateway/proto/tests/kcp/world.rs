//! Two connections, the path between them, and the data that each end writes and reads.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use muxtunnel_proto::kcp::{Connection, Keepalive, SEGMENT_PAYLOAD_BYTES, Settings};

/// xorshift64*: a small generator with the same numbers on every platform.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// True with a probability of `permille` thousandths.
    pub(crate) fn chance(&mut self, permille: u64) -> bool {
        (self.next() >> 32) % 1000 < permille
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }
}

/// One direction of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub(crate) delay: Duration,
    /// Bytes per second.
    pub(crate) rate: u64,
    /// Maximum number of bytes that wait for transmission.
    pub(crate) queue: u64,
    /// Lost datagrams, in thousandths.
    pub(crate) loss: u64,
    pub(crate) reorder: u64,
    pub(crate) duplicate: u64,
}

impl Path {
    pub(crate) const FAR: Self = Self {
        delay: Duration::from_millis(50),
        rate: 12_500_000,
        queue: 1 << 20,
        loss: 0,
        reorder: 0,
        duplicate: 0,
    };

    pub(crate) const fn losing(self, loss: u64) -> Self {
        Self { loss, ..self }
    }
}

struct Link {
    path: Path,
    /// The time at which the link has transmitted all queued datagrams.
    free: Instant,
}

/// One end, with the data that it writes and the data that it has read.
pub(crate) struct End {
    pub(crate) connection: Connection,
    pub(crate) write: u64,
    pub(crate) written: u64,
    pub(crate) read: u64,
    pub(crate) ended: bool,
    /// The end finishes after its bytes.
    pub(crate) finishes: bool,
    /// The end reads nothing before this time.
    pub(crate) reads_from: Instant,
}

impl End {
    fn new(conversation: u32, now: Instant, first: u64, bytes: usize) -> Self {
        let settings = Settings {
            send_bytes: bytes,
            receive_bytes: bytes,
        };
        let keepalive = Keepalive {
            dead_after: Duration::from_secs(15),
            interval: Duration::from_secs(5),
            retries: 2,
        };
        Self {
            connection: Connection::new((conversation, 3), settings, keepalive, now, first),
            write: 0,
            written: 0,
            read: 0,
            ended: false,
            finishes: true,
            reads_from: now,
        }
    }

    fn act(&mut self, now: Instant) {
        let mut bytes = [0; 8192];
        while now >= self.reads_from
            && !self.ended
            && let Some(length) = self.connection.read(&mut bytes)
        {
            for (at, byte) in (self.read..).zip(&bytes[..length]) {
                assert_eq!(*byte, byte_at(at), "at {at}");
            }
            self.read += length as u64;
            self.ended = length == 0;
        }
        while self.written < self.write && self.connection.is_writable() {
            let left = (self.write - self.written).min(bytes.len() as u64) as usize;
            for (at, byte) in (self.written..).zip(&mut bytes[..left]) {
                *byte = byte_at(at);
            }
            let (one, two) = bytes[..left].split_at(left / 3);
            let slices = [IoSlice::new(one), IoSlice::new(two)];
            self.written += self.connection.write(&slices) as u64;
        }
        if self.finishes && self.written == self.write && !self.connection.is_finished() {
            self.connection.finish();
        }
    }
}

fn byte_at(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 16) as u8
}

/// Two ends and the datagrams in flight.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) began: Instant,
    pub(crate) ends: [End; 2],
    links: [Link; 2],
    coming: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sent: u64,
    pub(crate) datagrams: u64,
    pub(crate) random: Random,
    /// From this time on, every datagram is lost.
    pub(crate) cut: Option<Instant>,
}

impl World {
    /// A world in which each end writes the number of bytes at its index in `bytes`.
    pub(crate) fn new(seed: u64, path: Path, bytes: [u64; 2]) -> Self {
        Self::beginning_at(seed, path, bytes, 0, 16 << 20)
    }

    pub(crate) fn beginning_at(
        seed: u64,
        path: Path,
        bytes: [u64; 2],
        first: u64,
        window: usize,
    ) -> Self {
        let now = Instant::now();
        let link = || Link { path, free: now };
        let mut ends = [(); 2].map(|()| End::new(7, now, first, window));
        for (end, bytes) in ends.iter_mut().zip(bytes) {
            end.write = bytes;
        }
        Self {
            now,
            began: now,
            ends,
            links: [link(), link()],
            coming: BTreeMap::new(),
            sent: 0,
            datagrams: 0,
            random: Random::new(seed),
            cut: None,
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.now - self.began
    }

    fn send(&mut self, from: usize, datagram: Vec<u8>) {
        self.datagrams += 1;
        let link = &mut self.links[from];
        let path = link.path;
        if self.random.chance(path.loss) || self.cut.is_some_and(|cut| self.now >= cut) {
            return;
        }
        let begins = link.free.max(self.now);
        let queued = (begins - self.now).as_micros() as u64 * path.rate / 1_000_000;
        if queued > path.queue {
            return;
        }
        let length = datagram.len() as u64 + 28;
        link.free = begins + Duration::from_nanos(length * 1_000_000_000 / path.rate);
        let mut arrives = link.free + path.delay;
        if self.random.chance(path.reorder) {
            arrives += Duration::from_micros(self.random.below(5_000));
        }
        let copies = 1 + u64::from(self.random.chance(path.duplicate));
        for _ in 0..copies {
            self.sent += 1;
            self.coming
                .insert((arrives, self.sent), (1 - from, datagram.clone()));
        }
    }

    fn turn(&mut self) {
        for at in 0..2 {
            self.ends[at].act(self.now);
            loop {
                let mut datagram = Vec::new();
                if !self.ends[at]
                    .connection
                    .poll_transmit(self.now, &mut datagram)
                {
                    break;
                }
                assert!(datagram.len() <= SEGMENT_PAYLOAD_BYTES + 24);
                self.send(at, datagram);
            }
        }
    }

    /// Whether everything has arrived at both ends.
    pub(crate) fn is_done(&self) -> bool {
        self.ends
            .iter()
            .all(|end| end.ended && end.connection.is_settled())
    }

    /// Runs until the world is done or a connection has failed. Panics after `limit`.
    pub(crate) fn run(&mut self, limit: Duration) {
        self.turn();
        while !self.is_done()
            && self
                .ends
                .iter()
                .all(|end| end.connection.failure().is_none())
        {
            assert!(self.elapsed() < limit, "{}", self.progress());
            self.step();
        }
    }

    /// Advances to the next event.
    pub(crate) fn step(&mut self) {
        let first = self.coming.keys().next().map(|(at, _)| *at);
        let timers = self
            .ends
            .iter()
            .filter_map(|end| end.connection.poll_timeout());
        let reads = self.ends.iter().map(|end| end.reads_from);
        let reads = reads.filter(|at| *at > self.now);
        let next = timers
            .chain(first)
            .chain(reads)
            .min()
            .expect("no event is left");
        self.now = self.now.max(next);
        while let Some(entry) = self.coming.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, datagram) = entry.remove();
            self.ends[to].connection.handle(self.now, &datagram);
        }
        for end in &mut self.ends {
            end.connection.handle_timeout(self.now);
        }
        self.turn();
    }

    pub(crate) fn progress(&self) -> String {
        let [one, two] = &self.ends;
        format!(
            "after {:?}: {} of {} and {} of {} read; {:?} {:?}",
            self.elapsed(),
            two.read,
            one.write,
            one.read,
            two.write,
            one.connection.path(),
            two.connection.path()
        )
    }
}

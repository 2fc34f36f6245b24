//! The queue in front of a carrier: a queue for each flow, served in turn, each with `CoDel`.
//!
//! FQ-CoDel (RFC 8290) over [`CoDel`](codel) (RFC 8289), generic over what waits. A flow that has little to
//! send goes first, bulk flows share by bytes, a flow that keeps a standing queue is told to slow down, and a
//! full queue takes from the longest flow. Nothing here blocks.
//!
//! Read next: `queue/codel.rs`.

mod codel;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use codel::{Codel, Verdict};

/// Packets that one overfull push drops at most (RFC 8290, 4.1.3).
const DROP_BATCH_MAX: usize = 64;
/// The end of a list of flows or packets.
const NONE: u32 = u32::MAX;

/// Limits and times of a queue.
#[derive(Clone, Copy, Debug)]
pub struct FqCodelConfig {
    /// Queues that flows are hashed to. RFC 8290: 1024.
    pub flows: usize,
    /// Bytes that a flow may send in its turn.
    ///
    /// A flow is new, and goes before all old ones, for its first quantum: 16 KiB hold a first window of TCP
    /// (RFC 6928: 10 segments), and ten times a ping. A super-packet of 64 KiB goes as a whole; its flow
    /// then waits until others have had as much, at most four quanta. So a packet of a new flow waits for
    /// the packet that is being written alone, and one of an old flow for one super-packet of each other.
    pub quantum: usize,
    /// How long packets may wait all the time.
    pub target: Duration,
    /// How long they may wait longer than that; about the longest round trip.
    pub interval: Duration,
    /// Bytes of all packets.
    pub bytes_max: usize,
    /// Packets. The queue itself takes about 64 bytes, and the size of `T`, for each.
    pub packets_max: usize,
}

impl Default for FqCodelConfig {
    fn default() -> Self {
        Self {
            flows: 1024,
            quantum: 16 << 10,
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            bytes_max: 8 << 20,
            packets_max: 16_384,
        }
    }
}

/// What a queue did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Packets dropped since the queue was over its limits.
    pub dropped_overlimit: u64,
    /// Packets that `CoDel` dropped.
    pub dropped_codel: u64,
    /// Packets that `CoDel` had marked instead.
    pub marked: u64,
}

/// A queue of `T`, each with a length in bytes.
#[derive(Debug)]
pub struct FqCodel<T> {
    config: FqCodelConfig,
    flows: Box<[Flow]>,
    new_flows: List,
    old_flows: List,
    entries: Vec<Entry<T>>,
    /// Entries that hold nothing.
    free: u32,
    packets: usize,
    bytes: usize,
    counters: QueueCounters,
}

#[derive(Debug)]
struct Entry<T> {
    item: Option<T>,
    length: usize,
    since: Instant,
    next: u32,
}

#[derive(Debug)]
struct Flow {
    packets: List,
    bytes: usize,
    /// Of the longest packet since the flow had none.
    longest: usize,
    /// Bytes it may still send in its turn; less than 0 once a packet was longer.
    deficit: i64,
    is_listed: bool,
    /// The next flow of its list.
    next: u32,
    codel: Codel,
}

/// A list by index; its owner has the links.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };
}

impl<T> FqCodel<T> {
    /// An empty queue. A limit or count of 0 is taken as 1.
    #[must_use]
    pub fn new(mut config: FqCodelConfig) -> Self {
        config.flows = config.flows.clamp(1, 1 << 16);
        config.quantum = config.quantum.clamp(1, 1 << 30);
        config.packets_max = config.packets_max.clamp(1, 1 << 30);
        let flow = |_| Flow {
            packets: List::EMPTY,
            bytes: 0,
            longest: 0,
            deficit: 0,
            is_listed: false,
            next: NONE,
            codel: Codel::new(config.target, config.interval),
        };
        Self {
            config,
            flows: (0..config.flows).map(flow).collect(),
            new_flows: List::EMPTY,
            old_flows: List::EMPTY,
            entries: Vec::new(),
            free: NONE,
            packets: 0,
            bytes: 0,
            counters: QueueCounters::default(),
        }
    }

    /// Bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Packets that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// What the queue did since it was made.
    #[must_use]
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// Appends an item of `length` bytes to its flow's queue.
    ///
    /// Returns what had to be dropped from the head of the longest flow, up to half of it, because the queue
    /// is over its limits now; mostly nothing, which allocates nothing.
    pub fn push(&mut self, now: Instant, flow_hash: u32, length: usize, item: T) -> Vec<T> {
        let at = self.flow_at(flow_hash);
        let entry = self.store(Entry {
            item: Some(item),
            length,
            since: now,
            next: NONE,
        });
        let Some(flow) = self.flows.get_mut(at as usize) else {
            return Vec::new();
        };
        append(&mut flow.packets, entry, &mut self.entries);
        flow.bytes += length;
        flow.longest = flow.longest.max(length);
        if !flow.is_listed {
            flow.is_listed = true;
            flow.deficit = i64::try_from(self.config.quantum).unwrap_or(i64::MAX);
            append(&mut self.new_flows, at, &mut self.flows);
        }
        self.bytes += length;
        self.packets += 1;
        let mut dropped = Vec::new();
        while self.bytes > self.config.bytes_max || self.packets > self.config.packets_max {
            self.drop_from_longest(&mut dropped);
        }
        dropped
    }

    /// Takes the item that is next; `None` if nothing waits.
    ///
    /// Where `CoDel` would drop an item, `mark` is asked first to mark that it met congestion: if it returns
    /// `true` the item goes on, else it is dropped and the next of the flow is looked at.
    pub fn pop(&mut self, now: Instant, mark: &mut dyn FnMut(&mut T) -> bool) -> Option<T> {
        loop {
            let is_new = self.new_flows.head != NONE;
            let at = if is_new {
                self.new_flows.head
            } else {
                self.old_flows.head
            };
            let flow = self.flows.get_mut(at as usize)?;
            if flow.deficit <= 0 {
                flow.deficit += i64::try_from(self.config.quantum).unwrap_or(i64::MAX);
                self.unlist(is_new);
                append(&mut self.old_flows, at, &mut self.flows);
                continue;
            }
            if let Some((item, length)) = self.pop_from(at, now, mark) {
                if let Some(flow) = self.flows.get_mut(at as usize) {
                    flow.deficit -= i64::try_from(length).unwrap_or(i64::MAX);
                }
                return Some(item);
            }
            self.unlist(is_new);
            // A flow that was new has to pass the old ones once, or it would be new again at once.
            if is_new && self.old_flows.head != NONE {
                append(&mut self.old_flows, at, &mut self.flows);
            } else if let Some(flow) = self.flows.get_mut(at as usize) {
                flow.is_listed = false;
            }
        }
    }

    /// Takes the next item of a flow that `CoDel` lets go, and its length.
    fn pop_from(
        &mut self,
        at: u32,
        now: Instant,
        mark: &mut dyn FnMut(&mut T) -> bool,
    ) -> Option<(T, usize)> {
        loop {
            let (mut item, length, since) = self.take(at)?;
            let flow = self.flows.get_mut(at as usize)?;
            // The last packets of a flow are no queue: one as long as the longest may always wait.
            let is_short = flow.bytes <= flow.longest;
            let waited = now.saturating_duration_since(since);
            if flow.codel.judge(now, waited, is_short) == Verdict::Send {
                return Some((item, length));
            }
            if mark(&mut item) {
                self.counters.marked += 1;
                return Some((item, length));
            }
            self.counters.dropped_codel += 1;
        }
    }

    /// Takes the first item of a flow, with its length and when it came.
    fn take(&mut self, at: u32) -> Option<(T, usize, Instant)> {
        let flow = self.flows.get_mut(at as usize)?;
        let index = flow.packets.head;
        let Some(entry) = self.entries.get_mut(index as usize) else {
            flow.codel.emptied();
            flow.longest = 0;
            return None;
        };
        flow.packets.head = entry.next;
        if entry.next == NONE {
            flow.packets.tail = NONE;
        }
        flow.bytes = flow.bytes.saturating_sub(entry.length);
        self.bytes = self.bytes.saturating_sub(entry.length);
        self.packets = self.packets.saturating_sub(1);
        entry.next = std::mem::replace(&mut self.free, index);
        Some((entry.item.take()?, entry.length, entry.since))
    }

    /// Drops from the head of the flow with the most bytes: half of them, in at most 64 packets.
    fn drop_from_longest(&mut self, dropped: &mut Vec<T>) {
        let longest = self
            .flows
            .iter()
            .zip(0_u32..)
            .max_by_key(|(flow, _)| flow.bytes);
        let Some((bytes, at)) = longest.map(|(flow, at)| (flow.bytes, at)) else {
            return;
        };
        let rest = bytes / 2;
        for _ in 0..DROP_BATCH_MAX {
            let Some((item, ..)) = self.take(at) else {
                return;
            };
            dropped.push(item);
            self.counters.dropped_overlimit += 1;
            let is_half = self
                .flows
                .get(at as usize)
                .is_none_or(|flow| flow.bytes <= rest);
            if is_half {
                return;
            }
        }
    }

    /// Takes the first flow off the list of new or old ones.
    fn unlist(&mut self, is_new: bool) {
        let list = if is_new {
            &mut self.new_flows
        } else {
            &mut self.old_flows
        };
        if let Some(flow) = self.flows.get(list.head as usize) {
            list.head = flow.next;
            if list.head == NONE {
                list.tail = NONE;
            }
        }
    }

    fn store(&mut self, entry: Entry<T>) -> u32 {
        if let Some(free) = self.entries.get_mut(self.free as usize) {
            let index = std::mem::replace(&mut self.free, free.next);
            *free = entry;
            return index;
        }
        self.entries.push(entry);
        // At most packets_max and one, which is below 2^30 + 2.
        u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
    }

    fn flow_at(&self, flow_hash: u32) -> u32 {
        // The upper bits of a product: as even as a remainder, without a division.
        let product = u64::from(flow_hash) * self.flows.len() as u64;
        u32::try_from(product >> 32).unwrap_or_default()
    }
}

/// What a list links.
trait Link {
    fn set_next(&mut self, next: u32);
}

impl<T> Link for Entry<T> {
    fn set_next(&mut self, next: u32) {
        self.next = next;
    }
}

impl Link for Flow {
    fn set_next(&mut self, next: u32) {
        self.next = next;
    }
}

fn append<L: Link>(list: &mut List, index: u32, links: &mut [L]) {
    if let Some(link) = links.get_mut(index as usize) {
        link.set_next(NONE);
    }
    match links.get_mut(list.tail as usize) {
        Some(tail) => tail.set_next(index),
        None => list.head = index,
    }
    list.tail = index;
}

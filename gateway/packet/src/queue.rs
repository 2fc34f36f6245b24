//! The queue in front of a carrier. Each flow has its own queue with `CoDel`, and the flows take
//! turns.
//!
//! The algorithm is FQ-CoDel (RFC 8290) over [`CoDel`](codel) (RFC 8289), generic over the type of
//! a packet. A flow that sends little goes before bulk flows. Bulk flows share the carrier by
//! bytes. Packets of a flow with a standing queue are marked or dropped. A full queue drops packets
//! of the longest flow. No function blocks.
//!
//! Read next: `queue/codel.rs`.

mod codel;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test")]
mod tests;

use std::time::{Duration, Instant};

use codel::{Codel, Verdict};

/// Maximum number of packets to drop from one flow before selecting the longest flow again.
const DROP_BATCH_MAX: usize = 64;
/// Index that marks the end of a list of flows or packets.
const NONE: u32 = u32::MAX;

/// Limits and delays of a queue.
#[derive(Clone, Copy, Debug)]
pub struct FqCodelConfig {
    /// Number of queues that flows are hashed to. RFC 8290 recommends 1024.
    pub flows: usize,
    /// Bytes that a flow may send in its turn.
    ///
    /// A flow is new for its first quantum, and new flows go before old flows. So a packet of a new
    /// flow waits only for the packet that is being written. The default of 16 KiB holds an initial
    /// TCP window (10 segments, RFC 6928), or ten pings.
    ///
    /// A super-packet of 64 KiB is sent as a whole, and its flow then waits for at most four quanta
    /// of each other flow. So a packet of an old flow waits for one super-packet of each other
    /// flow.
    pub quantum: usize,
    /// Acceptable standing delay of packets.
    pub target: Duration,
    /// How long the delay may exceed `target` before packets are marked or dropped. Set this to
    /// about the longest round-trip time of the path.
    pub interval: Duration,
    /// Maximum sum of the lengths of all packets, in bytes.
    pub bytes_max: usize,
    /// Maximum number of packets. For each packet, the queue itself takes about 64 bytes plus the
    /// size of `T`.
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

/// Counters of a queue since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Packets dropped because the queue exceeded its limits.
    pub dropped_overlimit: u64,
    /// Packets that `CoDel` dropped.
    pub dropped_codel: u64,
    /// Packets that `CoDel` marked and did not drop.
    pub marked: u64,
}

/// A queue of items of type `T`. Each item has a length in bytes.
#[derive(Debug)]
pub struct FqCodel<T> {
    config: FqCodelConfig,
    flows: Box<[Flow]>,
    new_flows: List,
    old_flows: List,
    entries: Vec<Entry<T>>,
    /// Head of the list of unused entries.
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
    /// Bytes of the longest packet since the flow was last empty.
    longest: usize,
    /// Bytes that the flow may still send in its turn. The value is negative after a packet that
    /// was longer than the rest of the turn.
    deficit: i64,
    is_listed: bool,
    /// The next flow of the same list.
    next: u32,
    codel: Codel,
}

/// A linked list of indices. The linked elements store the links.
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
    /// Creates an empty queue. Limits `flows` to 1..=65,536, and `quantum` and `packets_max` to
    /// 1..=2^30.
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

    /// Bytes of all queued packets.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of queued packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets
    }

    /// Whether no packet is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// The counters since the creation of the queue.
    #[must_use]
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// Changes the limit of the bytes of all packets. If the queue exceeds the new limit, the next
    /// [`push`](Self::push) drops packets.
    pub fn set_bytes_max(&mut self, bytes: usize) {
        self.config.bytes_max = bytes;
    }

    /// Appends an item of `length` bytes to its flow's queue.
    ///
    /// If the queue then exceeds its limits, drops items from the head of the longest flow and
    /// returns the dropped items. The result allocates memory only if the call drops an item. RFC
    /// 8290 (4.1.3) drops half of the longest flow at once. With super-packets, that would be
    /// thousands of segments.
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
        while self.is_over() {
            self.drop_from_longest(&mut dropped);
        }
        dropped
    }

    /// Takes the next item. Returns `None` if the queue is empty.
    ///
    /// If `CoDel` selects an item to drop, the function first calls `mark`, which marks congestion
    /// in the item. If `mark` returns `true`, the function returns the item. Otherwise the function
    /// drops the item and continues with the next item of the flow.
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
            // A new flow that becomes empty first joins the old flows. Otherwise the next packet of
            // the flow would make the flow new again, ahead of the old flows.
            if is_new && self.old_flows.head != NONE {
                append(&mut self.old_flows, at, &mut self.flows);
            } else if let Some(flow) = self.flows.get_mut(at as usize) {
                flow.is_listed = false;
            }
        }
    }

    /// Takes the next item of a flow. Skips items that `CoDel` drops. Returns the item and its
    /// length.
    fn pop_from(
        &mut self,
        at: u32,
        now: Instant,
        mark: &mut dyn FnMut(&mut T) -> bool,
    ) -> Option<(T, usize)> {
        loop {
            let (mut item, length, since) = self.take(at)?;
            let flow = self.flows.get_mut(at as usize)?;
            // A standing queue holds more bytes than the flow's longest packet.
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

    /// Takes the first item of a flow, with its length and its arrival time.
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

    /// Drops packets from the head of the flow with the most bytes until the queue is within its
    /// limits. Stops after [`DROP_BATCH_MAX`] packets, because another flow may then be the
    /// longest.
    fn drop_from_longest(&mut self, dropped: &mut Vec<T>) {
        let longest = self
            .flows
            .iter()
            .zip(0_u32..)
            .max_by_key(|(flow, _)| flow.bytes);
        let Some(at) = longest.map(|(_, at)| at) else {
            return;
        };
        for _ in 0..DROP_BATCH_MAX {
            if !self.is_over() {
                return;
            }
            let Some((item, ..)) = self.take(at) else {
                return;
            };
            dropped.push(item);
            self.counters.dropped_overlimit += 1;
        }
    }

    fn is_over(&self) -> bool {
        self.bytes > self.config.bytes_max || self.packets > self.config.packets_max
    }

    /// Removes the first flow from the list of new or old flows.
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
        // There are at most packets_max + 1 entries, which is below 2^30 + 2.
        u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
    }

    fn flow_at(&self, flow_hash: u32) -> u32 {
        // The upper bits of the product are as uniform as a remainder, and cost no division.
        let product = u64::from(flow_hash) * self.flows.len() as u64;
        u32::try_from(product >> 32).unwrap_or_default()
    }
}

/// An element of a list.
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

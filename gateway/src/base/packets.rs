//! The counters of the IP packets that the gateway carries or drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use muxtunnel_gateway_config::status;
use muxtunnel_packet::DropReason;
use parking_lot::Mutex;

use crate::base::counters::Counter;

/// The packets of all sessions. A super-packet (GSO) counts as one packet.
#[derive(Debug, Default)]
pub(crate) struct PacketStats {
    /// Packets handed to a carrier.
    sent: Counter,
    bytes_sent: Counter,
    /// Packets handed to the interface.
    received: Counter,
    bytes_received: Counter,
    /// Dropped packets, in the order of [`DropReason::ALL`].
    drops: [AtomicU64; DropReason::ALL.len()],
    marks: AtomicU64,
    /// Packets that were handed to another worker.
    pub(crate) handed: Counter,
    sessions: AtomicU32,
    /// Entry: the assignment in force.
    assigned: Mutex<Option<status::Assigned>>,
}

/// Counts a session that carries packets, until the value is dropped.
#[derive(Debug)]
pub(crate) struct PacketSession(Arc<PacketStats>);

impl Drop for PacketSession {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Relaxed);
    }
}

impl PacketStats {
    /// Counts a session that carries packets.
    pub(crate) fn session(self: &Arc<Self>) -> PacketSession {
        self.sessions.fetch_add(1, Relaxed);
        PacketSession(Arc::clone(self))
    }

    /// Number of sessions of all workers that carry packets.
    pub(crate) fn sessions(&self) -> u32 {
        self.sessions.load(Relaxed)
    }

    /// Counts a packet of `bytes` that was handed to a carrier.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.add(1);
        self.bytes_sent.add(bytes);
    }

    /// Counts a packet of `bytes` that was handed to the interface.
    pub(crate) fn received(&self, bytes: usize) {
        self.received.add(1);
        self.bytes_received.add(bytes);
    }

    /// Counts dropped packets.
    pub(crate) fn dropped(&self, reason: DropReason, packets: u64) {
        if packets > 0 {
            self.drops[reason.index()].fetch_add(packets, Relaxed);
        }
    }

    /// Counts packets that were marked with congestion experienced (ECN).
    pub(crate) fn marked(&self, packets: u64) {
        if packets > 0 {
            self.marks.fetch_add(packets, Relaxed);
        }
    }

    /// Sets the assignment in force at an entry.
    pub(crate) fn set_assigned(&self, assigned: status::Assigned) {
        self.assigned.lock().replace(assigned);
    }

    /// The current values.
    pub(crate) fn status(&self) -> status::Packets {
        let count = |reason: DropReason| self.drops[reason.index()].load(Relaxed);
        let drops = DropReason::ALL
            .into_iter()
            .filter(|reason| count(*reason) > 0)
            .map(|reason| (reason.label().to_owned(), count(reason)));
        status::Packets {
            sent: self.sent.get(),
            bytes_sent: self.bytes_sent.get(),
            received: self.received.get(),
            bytes_received: self.bytes_received.get(),
            drops: drops.collect(),
            marks: self.marks.load(Relaxed),
            handed: self.handed.get(),
            sessions: self.sessions(),
            assigned: self.assigned.lock().clone(),
        }
    }
}

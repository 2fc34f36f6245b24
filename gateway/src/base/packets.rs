//! What is counted of IP packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use muxtunnel_gateway_config::status;
use muxtunnel_packet::DropReason;
use parking_lot::Mutex;

/// One direction. A packet that is to be cut into several (GSO) counts as one.
#[derive(Debug, Default)]
pub(crate) struct PacketCounter {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl PacketCounter {
    fn add(&self, bytes: usize) {
        self.packets.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Packets, and their bytes.
    fn read(&self) -> (u64, u64) {
        (self.packets.load(Relaxed), self.bytes.load(Relaxed))
    }
}

/// The packets of all sessions.
#[derive(Debug, Default)]
pub(crate) struct PacketStats {
    /// Handed to a carrier.
    sent: PacketCounter,
    /// Handed to the interface.
    received: PacketCounter,
    /// By [`DropReason::ALL`].
    drops: [AtomicU64; DropReason::ALL.len()],
    marks: AtomicU64,
    sessions: AtomicU32,
    /// Of an entry.
    assigned: Mutex<Option<status::Assigned>>,
}

/// A session that carries packets, for as long as this lives.
#[derive(Debug)]
pub(crate) struct PacketSession(Arc<PacketStats>);

impl Drop for PacketSession {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Relaxed);
    }
}

impl PacketStats {
    /// A session carries packets.
    pub(crate) fn session(self: &Arc<Self>) -> PacketSession {
        self.sessions.fetch_add(1, Relaxed);
        PacketSession(Arc::clone(self))
    }

    /// A packet of so many bytes is a carrier's.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.add(bytes);
    }

    /// A packet of so many bytes is the interface's.
    pub(crate) fn received(&self, bytes: usize) {
        self.received.add(bytes);
    }

    /// So many packets were dropped.
    pub(crate) fn dropped(&self, reason: DropReason, packets: u64) {
        if packets > 0 {
            self.drops[reason.index()].fetch_add(packets, Relaxed);
        }
    }

    /// So many packets were marked as having met a queue (ECN).
    pub(crate) fn marked(&self, packets: u64) {
        if packets > 0 {
            self.marks.fetch_add(packets, Relaxed);
        }
    }

    /// The exit has assigned this.
    pub(crate) fn set_assigned(&self, assigned: status::Assigned) {
        self.assigned.lock().replace(assigned);
    }

    /// As of now.
    pub(crate) fn status(&self) -> status::Packets {
        let ((sent, bytes_sent), (received, bytes_received)) =
            (self.sent.read(), self.received.read());
        let count = |reason: DropReason| self.drops[reason.index()].load(Relaxed);
        let drops = DropReason::ALL
            .into_iter()
            .filter(|reason| count(*reason) > 0)
            .map(|reason| (reason.label().to_owned(), count(reason)));
        status::Packets {
            sent,
            bytes_sent,
            received,
            bytes_received,
            drops: drops.collect(),
            marks: self.marks.load(Relaxed),
            sessions: self.sessions.load(Relaxed),
            assigned: self.assigned.lock().clone(),
        }
    }
}

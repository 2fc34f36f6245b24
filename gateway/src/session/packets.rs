//! The IP packets of a session: those that wait for a carrier, and who hears those that come.
//!
//! They wait in queues of their own ([`FqCodel`], RFC 8290), of [`QUEUE_BYTES_MAX`] at most, and share a carrier with
//! streams: where both have something to send, each has half of the bytes. Here is how the driver shares;
//! `quic/packets.rs` has the same for QUIC.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use muxtunnel_packet::{DropReason, FqCodel, FqCodelConfig, mark_congestion};
use muxtunnel_proto::Assignment;

use tokio::sync::{Mutex, MutexGuard, Notify};

use crate::base::packets::PacketStats;
use crate::io::tun::Offloads;
use crate::session::mux::{HearsAssignment, HearsPacket};
use crate::stream::packet::Packet;

/// Bytes of memory that the packets of a session take while they wait: 5 ms, CoDel's target, at 13 Gbit/s.
const QUEUE_BYTES_MAX: usize = 8 << 20;
/// How far the packets or the streams may get ahead of the other before each has its half again.
const LEAD_MAX: i64 = 256 << 10;

/// The packets of one session.
pub(crate) struct PacketQueue {
    /// The peer takes them.
    agreed: Cell<bool>,
    waiting: RefCell<FqCodel<Packet>>,
    hears: OnceCell<(HearsPacket, Offloads)>,
    /// Of the side that connected, by the other side.
    assignment: OnceCell<Rc<Assignment>>,
    hears_assignment: OnceCell<HearsAssignment>,
    /// It is known.
    assigned_wake: Notify,
    /// One more waits.
    wake: Notify,
    /// Of the carriers that take packets by themselves, the one that does.
    turn: Mutex<()>,
    /// Bytes of packets that left beyond those of streams, while both had something to send.
    lead: Cell<i64>,
    stats: Arc<PacketStats>,
}

impl PacketQueue {
    pub(super) fn new(stats: Arc<PacketStats>) -> Self {
        Self {
            agreed: Cell::new(false),
            waiting: RefCell::new(FqCodel::new(FqCodelConfig {
                bytes_max: QUEUE_BYTES_MAX,
                ..FqCodelConfig::default()
            })),
            hears: OnceCell::new(),
            assignment: OnceCell::new(),
            hears_assignment: OnceCell::new(),
            assigned_wake: Notify::new(),
            wake: Notify::new(),
            turn: Mutex::new(()),
            lead: Cell::new(0),
            stats,
        }
    }

    pub(super) fn agree(&self, agreed: bool) {
        self.agreed.set(agreed);
    }

    pub(super) fn are_agreed(&self) -> bool {
        self.agreed.get()
    }

    /// Whether a packet goes before the streams' next payload.
    pub(super) fn have_turn(&self) -> bool {
        self.lead.get() <= 0
    }

    /// So many bytes of streams left.
    pub(super) fn payload_left(&self, bytes: usize) {
        self.move_lead(-(bytes as i64));
    }

    fn move_lead(&self, by: i64) {
        let lead = self.lead.get() + by;
        self.lead.set(lead.clamp(-LEAD_MAX, LEAD_MAX));
    }

    /// The packet that leaves next.
    pub(super) fn next(&self, now: Instant) -> Option<Packet> {
        let mut waiting = self.waiting.borrow_mut();
        let before = waiting.counters();
        let mut mark = |packet: &mut Packet| mark_congestion(packet.bytes_mut());
        let packet = waiting.pop(now, &mut mark);
        let after = waiting.counters();
        let dropped = after.dropped_codel - before.dropped_codel;
        self.stats.dropped(DropReason::Codel, dropped);
        self.stats.marked(after.marked - before.marked);
        let Some(packet) = packet else {
            self.lead.set(0);
            return None;
        };
        let length = packet.bytes().len();
        self.move_lead(length as i64);
        self.stats.sent(length);
        Some(packet)
    }

    /// `hears` gets each packet that comes from now on; the first one counts.
    pub(super) fn hear(&self, hears: HearsPacket, offloads: Offloads) {
        let _ = self.hears.set((hears, offloads));
    }

    /// The assignment is known; the first one counts.
    pub(super) fn assign(&self, assignment: Assignment) {
        if self.assignment.set(Rc::new(assignment)).is_err() {
            return;
        }
        self.assigned_wake.notify_waiters();
        if let (Some(hears), Some(assignment)) =
            (self.hears_assignment.get(), self.assignment.get())
        {
            hears(assignment);
        }
    }

    /// `hears` gets the assignment, at once where it is known; the first one counts.
    pub(super) fn hear_assignment(&self, hears: HearsAssignment) {
        if let (Ok(()), Some(assignment)) =
            (self.hears_assignment.set(hears), self.assignment.get())
            && let Some(hears) = self.hears_assignment.get()
        {
            hears(assignment);
        }
    }

    /// Waits for the assignment. May be dropped and called again.
    pub(super) async fn assignment(&self) -> Rc<Assignment> {
        loop {
            let woken = self.assigned_wake.notified();
            if let Some(assignment) = self.assignment.get() {
                return Rc::clone(assignment);
            }
            woken.await;
        }
    }

    /// What may be joined for those who hear packets; `None`: nobody does.
    pub(super) fn offloads(&self) -> Option<Offloads> {
        self.hears.get().map(|(_, offloads)| *offloads)
    }

    /// A packet came.
    pub(super) fn arrived(&self, packet: &[u8]) {
        match self.hears.get() {
            Some((hears, _)) => hears(packet),
            None => self.dropped(DropReason::NoSession),
        }
    }

    /// A packet that left the queue, or came, is dropped.
    pub(super) fn dropped(&self, reason: DropReason) {
        self.stats.dropped(reason, 1);
    }

    /// One more waits. What there is no room for is dropped.
    pub(super) fn push(&self, now: Instant, flow: u32, packet: Packet) {
        let held = packet.held();
        let dropped = self.waiting.borrow_mut().push(now, flow, held, packet);
        let dropped = dropped.len() as u64;
        self.stats.dropped(DropReason::QueueFull, dropped);
        self.wake.notify_one();
    }

    /// Waits until one more is there, for one carrier at a time. May be dropped and called again.
    pub(super) async fn pushed(&self) {
        self.wake.notified().await;
    }

    /// Waits for the right to take packets: of several carriers one has it until it ends, so that those of a flow stay in
    /// order.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_streams_that_both_wait_have_half_of_the_bytes_each() {
        let queue = PacketQueue::new(Arc::default());
        let now = Instant::now();
        for _ in 0..100 {
            let packet = Packet::from(&[0; 20_000][..]);
            queue.waiting.borrow_mut().push(now, 7, 20_000, packet);
        }
        let (mut packets, mut payload) = (0, 0);
        while payload < 1_000_000 {
            if queue.have_turn() {
                packets += queue.next(now).unwrap().bytes().len();
            } else {
                queue.payload_left(7_000);
                payload += 7_000;
            }
            assert!(packets.abs_diff(payload) <= 20_000, "{packets} {payload}");
        }
    }

    #[test]
    fn who_was_alone_is_not_owed_more_than_the_lead() {
        let queue = PacketQueue::new(Arc::default());
        for _ in 0..1000 {
            queue.payload_left(1 << 20);
        }
        let now = Instant::now();
        let length = 64 << 10;
        for _ in 0..10 {
            let packet = Packet::from(&vec![0; length][..]);
            queue.waiting.borrow_mut().push(now, 7, length, packet);
        }
        let mut in_a_row = 0;
        while queue.have_turn() && queue.next(now).is_some() {
            in_a_row += 1;
        }
        assert_eq!(in_a_row * length as i64, LEAD_MAX + length as i64);
    }
}

//! The IP packets of a session: the queue in front of its carriers, and the receiver of the peer's
//! packets.
//!
//! Packets wait in fair queues ([`FqCodel`], RFC 8290) with at most [`queue_bytes_max`] bytes in
//! total, and share a carrier with streams. While both packets and streams have bytes to send, each
//! gets half of the sent bytes. This module divides the bytes for sessions of the driver. For QUIC,
//! `quic/packets.rs` divides them.

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

/// Memory for the waiting packets of all sessions in bytes. Each session gets an equal share, but
/// at least [`QUEUE_BYTES_MIN`]. Linux's `fq_codel` has the same limit (`memory_limit`,
/// tc-fq_codel(8)). Ten TCP connections over veth overflowed 8 MiB (docs/performance.md, "IP
/// packets").
const QUEUES_BYTES_MAX: usize = 32 << 20;
/// Minimum share of a session, in bytes. At 13 Gbit/s, these bytes take 5 ms, which is CoDel's
/// target.
const QUEUE_BYTES_MIN: usize = 8 << 20;
/// A session's share is at most its receive memory divided by this number, but at least
/// [`QUEUE_BYTES_MIN`]. So the share is smaller on a gateway with a small memory limit.
const RECEIVE_PART: u64 = 4;
/// Maximum recorded lead, in bytes, of packets over streams or of streams over packets.
const LEAD_MAX: i64 = 256 << 10;

/// Memory for the waiting packets of one session, in bytes. There are `sessions` sessions, and this
/// session has `receive` bytes of receive memory.
fn queue_bytes_max(sessions: u32, receive: u64) -> usize {
    let part = usize::try_from(receive / RECEIVE_PART).unwrap_or(usize::MAX);
    let share = QUEUES_BYTES_MAX / sessions.max(1) as usize;
    share.min(part).max(QUEUE_BYTES_MIN)
}

pub(crate) struct PacketQueue {
    /// Whether both sides have agreed on packets.
    agreed: Cell<bool>,
    waiting: RefCell<FqCodel<Packet>>,
    hears: OnceCell<(HearsPacket, Offloads)>,
    /// The acceptor's assignment to the dialler.
    assignment: OnceCell<Rc<Assignment>>,
    hears_assignment: OnceCell<HearsAssignment>,
    /// Notified when the assignment is known.
    assigned_wake: Notify,
    wake: Notify,
    /// Held by the carrier that has the right to take packets (`Self::turn`).
    turn: Mutex<()>,
    /// Bytes of packets sent minus bytes of streams sent, since the queue was last empty; from
    /// -[`LEAD_MAX`] to [`LEAD_MAX`].
    lead: Cell<i64>,
    /// Receive memory of the session, bytes.
    receive: u64,
    stats: Arc<PacketStats>,
}

impl PacketQueue {
    pub(super) fn new(stats: Arc<PacketStats>, receive: u64) -> Self {
        Self {
            agreed: Cell::new(false),
            waiting: RefCell::new(FqCodel::new(FqCodelConfig::default())),
            hears: OnceCell::new(),
            assignment: OnceCell::new(),
            hears_assignment: OnceCell::new(),
            assigned_wake: Notify::new(),
            wake: Notify::new(),
            turn: Mutex::new(()),
            lead: Cell::new(0),
            receive,
            stats,
        }
    }

    pub(super) fn agree(&self, agreed: bool) {
        self.agreed.set(agreed);
    }

    pub(super) fn are_agreed(&self) -> bool {
        self.agreed.get()
    }

    /// Whether a packet is sent before the streams' next payload.
    pub(super) fn have_turn(&self) -> bool {
        self.lead.get() <= 0
    }

    /// Counts sent bytes of streams.
    pub(super) fn payload_left(&self, bytes: usize) {
        self.move_lead(-(bytes as i64));
    }

    fn move_lead(&self, by: i64) {
        let lead = self.lead.get() + by;
        self.lead.set(lead.clamp(-LEAD_MAX, LEAD_MAX));
    }

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

    /// Sets the receiver of packets; only the first call has an effect.
    pub(super) fn hear(&self, hears: HearsPacket, offloads: Offloads) {
        let _ = self.hears.set((hears, offloads));
    }

    /// Stores the assignment, and passes it to its receiver. Ignores later assignments.
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

    /// Sets the receiver of the assignment. If the assignment is known already, the receiver gets
    /// it at once. Only the first call has an effect.
    pub(super) fn hear_assignment(&self, hears: HearsAssignment) {
        if let (Ok(()), Some(assignment)) =
            (self.hears_assignment.set(hears), self.assignment.get())
            && let Some(hears) = self.hears_assignment.get()
        {
            hears(assignment);
        }
    }

    /// Waits for the assignment. A caller may drop the future and call again.
    pub(super) async fn assignment(&self) -> Rc<Assignment> {
        loop {
            let woken = self.assigned_wake.notified();
            if let Some(assignment) = self.assignment.get() {
                return Rc::clone(assignment);
            }
            woken.await;
        }
    }

    /// Which super-packets the receiver accepts. `None`: there is no receiver yet.
    pub(super) fn offloads(&self) -> Option<Offloads> {
        self.hears.get().map(|(_, offloads)| *offloads)
    }

    /// Passes a received packet to the receiver.
    pub(super) fn arrived(&self, packet: &[u8]) {
        match self.hears.get() {
            Some((hears, _)) => hears(packet),
            None => self.dropped(DropReason::NoSession),
        }
    }

    /// Counts a packet that was dropped after it was queued or received.
    pub(super) fn dropped(&self, reason: DropReason) {
        self.stats.dropped(reason, 1);
    }

    /// Queues a packet. If the queues are full, drops packets of the longest queue.
    pub(super) fn push(&self, now: Instant, flow: u32, packet: Packet) {
        let held = packet.held();
        let mut waiting = self.waiting.borrow_mut();
        waiting.set_bytes_max(queue_bytes_max(self.stats.sessions(), self.receive));
        let dropped = waiting.push(now, flow, held, packet).len() as u64;
        self.stats.dropped(DropReason::QueueFull, dropped);
        self.wake.notify_one();
    }

    /// Waits until a packet is queued. Only the carrier that has the right to take packets may
    /// wait. A caller may drop the future and call again.
    pub(super) async fn pushed(&self) {
        self.wake.notified().await;
    }

    /// Waits for the right to take packets. One carrier has this right until the carrier ends, so
    /// that the packets of a flow stay in order.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_streams_that_both_wait_have_half_of_the_bytes_each() {
        let queue = PacketQueue::new(Arc::default(), 256 << 20);
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
    fn sessions_share_the_memory_of_packets_that_wait() {
        let stats = Arc::<PacketStats>::default();
        let queue = PacketQueue::new(Arc::clone(&stats), 256 << 20);
        let now = Instant::now();
        let fill = || {
            for _ in 0..600 {
                queue.push(now, 7, Packet::from(&[0; 65_000][..]));
            }
            queue.waiting.borrow().bytes()
        };
        let first = stats.session();
        let alone = fill();
        assert!((31 << 20..=32 << 20).contains(&alone), "{alone}");
        let _others = [stats.session(), stats.session()];
        let of_three = fill();
        assert!(
            (10 << 20..=(32 << 20) / 3).contains(&of_three),
            "{of_three}"
        );
        let _more: Vec<_> = (0..9).map(|_| stats.session()).collect();
        let of_twelve = fill();
        assert!((7 << 20..=8 << 20).contains(&of_twelve), "{of_twelve}");
        drop(first);
    }

    #[test]
    fn a_session_with_little_receive_memory_has_a_short_queue() {
        let bytes = |receive: u64| queue_bytes_max(1, receive << 20);
        assert_eq!(
            [256, 64, 32, 1].map(bytes),
            [32 << 20, 16 << 20, 8 << 20, 8 << 20]
        );
    }

    #[test]
    fn who_was_alone_is_not_owed_more_than_the_lead() {
        let queue = PacketQueue::new(Arc::default(), 256 << 20);
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

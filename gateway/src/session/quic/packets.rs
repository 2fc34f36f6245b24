//! IP packets in datagrams (RFC 9221): one in each, without a header of virtio-net.
//!
//! What an interface brings is cut to what the path takes ([`Segments`]); what comes is joined again ([`Coalescer`]), and then
//! looked at as what any carrier brings. Packets wait in the session's queues, where `CoDel` sees them: the library
//! has [`PACKETS_UNSENT_MAX`] of them, and sends them before payload of streams. So that streams have their half, none
//! go to the library for a while once there were enough ([`Sharing`]).

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use muxtunnel_packet::{Coalescer, DropReason, Segments, VirtioHeader, check, check_plain};
use quinn::SendDatagramError;
use tokio::time::Instant;

use crate::io::quic::PACKETS_UNSENT_MAX;
use crate::io::tun::Offloads;
use crate::session::packets::PacketQueue;
use crate::session::quic_streams::Traffic;
use crate::stream::packet::Packet;

/// Datagrams that are joined at once.
const BATCH_MAX: usize = 256;
/// Bytes of packets before streams that have something to send have their turn: at least...
const TURN_MIN: u64 = 64 << 10;
/// ...and, where they make no use of it, at most.
const TURN_MAX: u64 = 8 << 20;
/// How long a turn of streams may take.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// The least time that the event loop can wait.
const TICK: Duration = Duration::from_millis(1);

/// What both loops have.
type Shared = (Rc<Traffic>, Rc<PacketQueue>);

/// Sends what waits, until the connection ends.
pub(super) async fn send((traffic, packets): Shared) {
    let _turn = packets.turn().await;
    let mut sharing = Sharing::new(&traffic);
    loop {
        let Some(packet) = packets.next(Instant::now().into_std()) else {
            sharing.begin();
            packets.pushed().await;
            continue;
        };
        let Some(datagrams) = cut(&traffic, &packet) else {
            packets.dropped(DropReason::TooBig);
            continue;
        };
        drop(packet);
        for datagram in datagrams {
            let length = datagram.len() as u64;
            let quic = traffic.connection.quic();
            match quic.send_datagram_wait(datagram).await {
                Ok(()) => sharing.sent(length),
                // The path takes less than a moment ago.
                Err(SendDatagramError::TooLarge) => packets.dropped(DropReason::TooBig),
                Err(_) => return,
            }
        }
        sharing.yield_to_streams().await;
    }
}

/// A packet as the datagrams that the path takes; `None`: it does not fit, and must not be cut.
fn cut(traffic: &Traffic, packet: &Packet) -> Option<Vec<Bytes>> {
    let framed = packet.bytes();
    let longest = traffic.connection.quic().max_datagram_size()?;
    let mut segments = Segments::of(framed, &check(framed).ok()?, longest)?;
    let (mut bytes, mut lengths) = (Vec::with_capacity(framed.len() / 8 * 9), Vec::new());
    while let Some(length) = segments.next_length() {
        segments.append_next(&mut bytes);
        lengths.push(length);
    }
    let mut bytes = Bytes::from(bytes);
    let datagrams = lengths.into_iter().map(|length| bytes.split_to(length));
    Some(datagrams.collect())
}

/// Hands on what comes, until the connection ends.
pub(super) async fn receive((traffic, packets): Shared) {
    let quic = traffic.connection.quic();
    let mut joining = Joining(None);
    while let Ok(first) = quic.read_datagram().await {
        joining.arrived(&packets, &first);
        for _ in 1..BATCH_MAX {
            let Some(Ok(next)) = quic.read_datagram().now_or_never() else {
                break;
            };
            joining.arrived(&packets, &next);
        }
        joining.flush(&packets);
        // Others have their turn, also where more has come.
        tokio::task::yield_now().await;
    }
}

/// What came at once, joined as far as the interface takes it.
struct Joining(Option<Coalescer>);

impl Joining {
    fn arrived(&mut self, packets: &PacketQueue, datagram: &[u8]) {
        let Ok(packet) = check_plain(datagram) else {
            packets.dropped(DropReason::Malformed);
            return;
        };
        let Some(offloads) = packets.offloads() else {
            packets.dropped(DropReason::NoSession);
            return;
        };
        if offloads == Offloads::Nothing {
            let framed = [&VirtioHeader::default().to_bytes(), datagram].concat();
            packets.arrived(&framed);
            return;
        }
        let with_udp = offloads == Offloads::TcpAndUdp;
        let coalescer = self.0.get_or_insert_with(|| Coalescer::new(with_udp));
        coalescer.push(datagram, &packet, &mut |framed| packets.arrived(framed));
    }

    fn flush(&mut self, packets: &PacketQueue) {
        if let Some(coalescer) = &mut self.0 {
            coalescer.flush(&mut |framed| packets.arrived(framed));
        }
    }
}

/// Turns of packets and streams.
///
/// The library does not say whether streams have something to send. So where they may have, they have the connection for
/// themselves after each turn of packets, for as many bytes or as long as that took; where they make little use of it, turns of
/// packets are longer next, and those of streams as short as can be.
struct Sharing<'a> {
    traffic: &'a Traffic,
    /// Bytes of packets that go to the library before streams have their turn.
    turn: u64,
    /// Streams made use of their last turn.
    is_used: bool,
    /// Of this turn.
    sent: u64,
    since: Instant,
    /// In all.
    total: u64,
}

impl<'a> Sharing<'a> {
    fn new(traffic: &'a Traffic) -> Self {
        Self {
            traffic,
            turn: TURN_MIN,
            is_used: true,
            sent: 0,
            since: Instant::now(),
            total: 0,
        }
    }

    /// A turn of packets begins.
    fn begin(&mut self) {
        self.sent = 0;
        self.since = Instant::now();
    }

    /// The library has so many bytes of packets more.
    fn sent(&mut self, bytes: u64) {
        self.sent += bytes;
        self.total += bytes;
    }

    /// Lets streams have their turn where it is theirs.
    async fn yield_to_streams(&mut self) {
        if self.sent < self.turn {
            return;
        }
        if !self.traffic.is_busy() {
            self.turn = TURN_MIN;
            self.begin();
            return;
        }
        while self.unsent() > 0 && !self.has_ended() {
            tokio::time::sleep(TICK).await;
        }
        let took = self.since.elapsed();
        let most = match self.is_used {
            true => took.clamp(TICK, PAUSE_MAX),
            false => TICK,
        };
        let (begun, before) = (Instant::now(), self.others());
        let mut moved = 0;
        while moved < self.sent && begun.elapsed() < most && self.traffic.is_busy() {
            tokio::time::sleep(TICK).await;
            moved = self.others().saturating_sub(before);
        }
        let share = begun.elapsed().as_secs_f64() / took.max(TICK).as_secs_f64();
        self.is_used = moved as f64 > self.sent as f64 * share / 4.0;
        self.turn = match self.is_used {
            true => moved.clamp(TURN_MIN, TURN_MAX),
            false => (self.turn * 2).min(TURN_MAX),
        };
        self.begin();
    }

    fn has_ended(&self) -> bool {
        self.traffic.connection.quic().close_reason().is_some()
    }

    /// Packets that the library has not sent, bytes.
    fn unsent(&self) -> u64 {
        let space = self.traffic.connection.quic().datagram_send_buffer_space();
        let empty = PACKETS_UNSENT_MAX - size_of::<Bytes>();
        empty.saturating_sub(space) as u64
    }

    /// Bytes that were sent of what is no packet.
    fn others(&self) -> u64 {
        let all = self.traffic.connection.quic().stats().udp_tx.bytes;
        all.saturating_sub(self.total - self.unsent().min(self.total))
    }
}

#[cfg(test)]
mod tests;

//! IP packets in datagrams (RFC 9221): each datagram contains one packet without a virtio-net
//! header.
//!
//! [`Segments`] cuts an interface's packets to the size that the path takes. [`Coalescer`] joins
//! received packets, which are then checked like the packets of any carrier. Packets wait in the
//! session's queues, where `CoDel` controls them. The library holds few packets
//! ([`packets_unsent`](crate::io::quic::Connection::packets_unsent)), and sends packets before
//! payload of streams. To give streams half of the capacity, the library gets no packets for a while
//! after each turn ([`Sharing`]).

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use muxtunnel_packet::{Coalescer, DropReason, Segments, VirtioHeader, check, check_plain};
use quinn::SendDatagramError;
use tokio::time::Instant;

use super::answers::Answers;
use crate::io::tun::Offloads;
use crate::session::packets::PacketQueue;
use crate::session::quic_streams::Traffic;
use crate::stream::packet::Packet;

/// Maximum number of datagrams that are joined at once.
const BATCH_MAX: usize = 256;
/// Minimum number of bytes in a turn of packets, if streams have unsent bytes.
const TURN_MIN: u64 = 64 << 10;
/// Maximum number of bytes in a turn of packets, if streams do not use their turns.
const TURN_MAX: u64 = 8 << 20;
/// Maximum length of a turn of streams.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Minimum time that the event loop can sleep.
const TICK: Duration = Duration::from_millis(1);

/// State that both loops share.
type Shared = (Rc<Traffic>, Rc<PacketQueue>);

/// Sends waiting packets until the connection ends.
pub(super) async fn send((traffic, packets): Shared, answers: Rc<Answers>) {
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
                Ok(()) => {
                    sharing.sent(length);
                    answers.sent(&traffic);
                }
                // The path's packet size has just decreased.
                Err(SendDatagramError::TooLarge) => packets.dropped(DropReason::TooBig),
                Err(_) => return,
            }
        }
        sharing.yield_to_streams().await;
    }
}

/// Cuts a packet into datagrams that the path takes; `None`: the packet does not fit, and must not
/// be cut.
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

/// Passes received packets to their receiver until the connection ends.
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
        // Yields to other tasks, even if more packets have arrived.
        tokio::task::yield_now().await;
    }
}

/// Packets that arrived together, joined as far as the interface accepts joined packets.
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
/// The library does not report whether streams have bytes to send. So after each turn of packets,
/// streams get a turn alone if they may have such bytes. The turn of streams ends after as many
/// bytes as the turn of packets had, or after as much time as it took. If streams use little of
/// their turn, later turns of packets are longer, and turns of streams have the minimum length.
struct Sharing<'a> {
    traffic: &'a Traffic,
    /// Number of bytes of packets after which the turn of packets ends.
    turn: u64,
    /// Whether streams used their last turn.
    is_used: bool,
    /// Number of bytes of packets in this turn.
    sent: u64,
    since: Instant,
    /// Total number of bytes of packets.
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

    fn begin(&mut self) {
        self.sent = 0;
        self.since = Instant::now();
    }

    /// Counts bytes of packets that the library took to send.
    fn sent(&mut self, bytes: u64) {
        self.sent += bytes;
        self.total += bytes;
    }

    /// Waits for the end of the streams' turn, if the turn of packets is over.
    async fn yield_to_streams(&mut self) {
        if self.sent < self.turn {
            return;
        }
        if !self.traffic.is_busy() {
            self.turn = TURN_MIN;
            self.begin();
            return;
        }
        while self.traffic.connection.packets_unsent() > 0 && !self.has_ended() {
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

    /// Number of sent bytes that do not belong to packets.
    fn others(&self) -> u64 {
        let all = self.traffic.connection.quic().stats().udp_tx.bytes;
        let unsent = self.traffic.connection.packets_unsent();
        all.saturating_sub(self.total - unsent.min(self.total))
    }
}

#[cfg(test)]
mod tests;

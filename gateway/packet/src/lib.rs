//! The pure core of the layer-3 mode: what a packet may be, which packet is next, and what its
//! sender is told.
//!
//! It knows no socket, device, clock, task or lock (`clippy.toml` next to this crate bans them), has
//! no `unsafe`, and does not panic for any input. Bytes and `now` come in as arguments.
//!
//! # Two forms of a packet
//! - *framed*: the 10 bytes of [`VirtioHeader`], then one IP packet. The TUN device reads and writes this form, and
//!   carriers that are a stream carry it.
//! - *plain*: one IP packet alone, with complete checksums. QUIC datagrams carry this form.
//!
//! # The way of a packet
//! From the device: [`from_device`] -> whose it is (`gateway/src/roles/network`) -> [`clamp_mss`] ->
//! [`FlowKey::hash`] -> [`FqCodel::push`] -> [`FqCodel::pop`] (with [`mark_congestion`]) -> carrier; [`Segments`] where it
//! carries datagrams, of which [`too_big`] tells the sender what does not fit.
//!
//! From a carrier: [`check`] (plain packets: [`check_plain`] and [`Coalescer`] first) -> whose it is, and where it may go ([`prohibited`] tells the sender) ->
//! device. Nothing reaches the device without a [`Packet`].
//!
//! Read next: `packet.rs`, the gate for what a peer sends; `queue.rs`.

mod checksum;
mod coalesce;
mod ecn;
mod flow;
mod icmp;
mod mss;
#[cfg(any(test, feature = "oracles"))]
pub mod oracle;
mod packet;
mod queue;
mod reason;
mod segment;
mod virtio;

pub use coalesce::{COALESCE_FLOWS_MAX, COALESCE_SEGMENTS_MAX, Coalescer, Emit};
pub use ecn::mark_congestion;
pub use flow::FlowKey;
pub use icmp::{prohibited, too_big};
pub use mss::clamp_mss;
pub use packet::{
    Fragment, GSO_SIZE_MIN_TCP, Gso, Malformed, PACKET_BYTES_MAX, Packet, UDP_SEGMENTS_MAX, check,
    check_plain, from_device,
};
pub use queue::{FqCodel, FqCodelConfig, QueueCounters};
pub use reason::DropReason;
pub use segment::Segments;
pub use virtio::{VIRTIO_HEADER_BYTES, VirtioHeader};

#[cfg(test)]
mod testing;

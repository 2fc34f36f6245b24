//! The pure core of the layer-3 mode: what a packet may be, which packet is next, and how
//! super-packets are split and built.
//!
//! It knows no socket, device, clock, task or lock (`clippy.toml` next to this crate bans them), has
//! no `unsafe`, and does not panic for any input. Bytes and `now` come in as arguments.
//!
//! # Two forms of a packet
//! - *framed*: the 10 bytes of [`VirtioHeader`], then one IP packet. The TUN device reads and writes
//!   this form, and stream carriers carry it.
//! - *plain*: one IP packet alone, complete checksums. QUIC datagrams carry this form.
//!
//! # The way of a packet
//! From the device: [`from_device`] -> [`Networks::check_leaving`] -> [`clamp_mss`] ->
//! [`FlowKey::hash`] -> [`FqCodel::push`] -> [`FqCodel::pop`] (with [`mark_congestion`]) -> carrier;
//! [`Segments`] where the carrier has datagrams.
//!
//! From a carrier: [`check`] (framed) or [`check_plain`] (plain, then [`Coalescer`]) ->
//! [`Networks::check_arriving`] -> [`clamp_mss`] -> device. Nothing reaches the device without a
//! [`Packet`].
//!
//! Read next: `packet.rs`, the gate for what a peer sends; `queue.rs`.

mod address_pool;
mod checksum;
mod coalesce;
mod ecn;
mod flow;
mod icmp;
mod mss;
mod networks;
#[cfg(any(test, feature = "oracles"))]
pub mod oracles;
mod packet;
mod peers;
mod queue;
mod reason;
mod segment;
#[cfg(test)]
mod testing;
mod virtio;

pub use address_pool::{AddressPool, POOL_ADDRESSES_MAX, PoolError};
pub use coalesce::{COALESCE_FLOWS_MAX, COALESCE_SEGMENTS_MAX, Coalescer, Emit};
pub use ecn::mark_congestion;
pub use flow::FlowKey;
pub use icmp::{prohibited, too_big};
pub use mss::clamp_mss;
pub use networks::{NetworkError, Networks};
pub use packet::{
    Fragment, GSO_SIZE_MIN_TCP, Gso, Malformed, PACKET_BYTES_MAX, Packet, UDP_SEGMENTS_MAX, check,
    check_plain, from_device,
};
pub use peers::{PREFIXES_MAX, Peers, PeersError};
pub use queue::{FqCodel, FqCodelConfig, QueueCounters};
pub use reason::DropReason;
pub use segment::Segments;
pub use virtio::{VIRTIO_HEADER_BYTES, VirtioHeader};

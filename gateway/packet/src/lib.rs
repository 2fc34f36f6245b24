//! The sans-IO core of the layer-3 mode: the crate validates, queues and segments packets, and
//! builds ICMP errors.
//!
//! The crate uses no socket, device, clock, task or lock (`clippy.toml` in this crate bans them),
//! has no `unsafe`, and does not panic for any input. Bytes and `now` are arguments.
//!
//! # Two forms of a packet
//! - *framed*: the 10 bytes of [`VirtioHeader`], then one IP packet. The TUN device reads and
//!   writes this form, and stream carriers carry it.
//! - *plain*: one IP packet without a virtio header, with complete checksums. QUIC datagrams carry
//!   this form.
//!
//! # Path of a packet
//! From the device: [`from_device`] -> look-up of the peer (`gateway/src/roles/network`) ->
//! [`clamp_mss`] -> [`FlowKey::hash`] -> [`FqCodel::push`] -> [`FqCodel::pop`] (with
//! [`mark_congestion`]) -> carrier. For a carrier of datagrams, [`Segments`] splits the packet, or
//! [`too_big`] builds an ICMP error for the sender of the packet.
//!
//! From a carrier: [`check`] (for plain packets [`check_plain`] and [`Coalescer`]) -> check of the
//! addresses and the policy ([`prohibited`] builds an ICMP error for the sender) -> device. Only a
//! checked [`Packet`] reaches the device.
//!
//! Read next: `packet.rs`, which validates packets of a peer; `queue.rs`.

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

//! The pure core of the layer-3 mode: what a packet may be, which packet is next, and what its
//! sender is told.
//!
//! It knows no socket, device, clock, task or lock (`clippy.toml` next to this crate bans them), has
//! no `unsafe`, and does not panic for any input. Bytes and `now` come in as arguments.
//!
//! A packet is *framed*: the 10 bytes of [`VirtioHeader`], then one IP packet. The TUN device reads and writes
//! this form, and carriers carry it.
//!
//! # The way of a packet
//! From the device: [`from_device`] -> whose it is (`gateway/src/roles/network`) -> [`clamp_mss`] ->
//! [`FlowKey::hash`] -> [`FqCodel::push`] -> [`FqCodel::pop`] (with [`mark_congestion`]) -> carrier.
//!
//! From a carrier: [`check`] -> whose it is, and where it may go ([`prohibited`] tells the sender) ->
//! device. Nothing reaches the device without a [`Packet`].
//!
//! Read next: `packet.rs`, the gate for what a peer sends; `queue.rs`.

mod checksum;
mod ecn;
mod flow;
mod icmp;
mod mss;
mod packet;
mod queue;
mod reason;
mod virtio;

pub use ecn::mark_congestion;
pub use flow::FlowKey;
pub use icmp::prohibited;
pub use mss::clamp_mss;
pub use packet::{
    Fragment, GSO_SIZE_MIN_TCP, Gso, Malformed, PACKET_BYTES_MAX, Packet, UDP_SEGMENTS_MAX, check,
    from_device,
};
pub use queue::{FqCodel, FqCodelConfig, QueueCounters};
pub use reason::DropReason;
pub use virtio::{VIRTIO_HEADER_BYTES, VirtioHeader};

#[cfg(test)]
mod testing;

//! Sockets: their options, what a carrier runs on, what a client or a target is, and the proof of who is at the other end.

pub(crate) mod carrier;
pub(crate) mod duplex;
pub(crate) mod local_end;
pub(crate) mod local_socket;
pub(crate) mod netlink;
pub(crate) mod proxy_header;
pub(crate) mod quic;
pub mod relay;
pub(crate) mod security;
pub(crate) mod socket;
pub(crate) mod ssh;
pub(crate) mod transport;
pub(crate) mod tun;

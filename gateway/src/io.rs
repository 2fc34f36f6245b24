//! Sockets and their options, the transports of carriers, the local ends of streams, and the proofs
//! of a peer's identity.

pub(crate) mod carrier;
pub(crate) mod duplex;
pub(crate) mod key_refusal;
pub(crate) mod local_end;
pub(crate) mod local_socket;
pub(crate) mod netlink;
pub(crate) mod proof;
pub(crate) mod proxy_header;
pub(crate) mod quic;
pub mod relay;
pub(crate) mod security;
pub(crate) mod socket;
pub(crate) mod ssh;
pub(crate) mod transport;
pub(crate) mod tun;

#[cfg(test)]
mod tests;

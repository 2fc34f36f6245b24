//! The addresses on which the gateway listens and that it dials: ports, names, proxies, and the
//! target policy.

pub(crate) mod bind;
pub(crate) mod datagrams;
pub(crate) mod dial;
pub(crate) mod dns;
pub(crate) mod egress;
pub(crate) mod interface;
pub(crate) mod policy;
pub(crate) mod protected_addresses;
pub(crate) mod shared_ports;

//! The network around the gateway: listening ports, look-ups of names, dials, proxies, the policy
//! for targets, and the TUN interface.

pub(crate) mod bind;
pub(crate) mod datagrams;
pub(crate) mod dial;
pub(crate) mod dns;
pub(crate) mod egress;
pub(crate) mod interface;
pub(crate) mod policy;
pub(crate) mod protected_addresses;
pub(crate) mod race;
pub(crate) mod shared_ports;

#[cfg(test)]
#[path = "../tests/common/rules.rs"]
mod rules;

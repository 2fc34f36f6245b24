//! Clients: the protocols in which they specify their target, and the headers in which a load
//! balancer specifies a client.

pub(crate) mod listener;
pub(crate) mod trusted_proxies;

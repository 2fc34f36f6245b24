//! How clients of an entry say where they want to go, and which client a load balancer stands for.

pub(crate) mod listener;
pub(crate) mod trusted_proxies;

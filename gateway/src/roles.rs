//! The roles of a gateway: entry, exit and rendezvous.

pub(crate) mod entry;
pub(crate) mod exit;
pub(crate) mod network;
pub(crate) mod rendezvous;
pub(crate) mod trust;
pub(crate) mod worker;

//! What a gateway is: an entry, an exit or a rendezvous.

pub(crate) mod entry;
pub(crate) mod exit;
pub(crate) mod network;
pub(crate) mod rendezvous;
pub(crate) mod trust;
pub(crate) mod worker;

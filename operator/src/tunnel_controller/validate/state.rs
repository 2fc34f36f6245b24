//! The state of an object that all specs have in common: its existing objects, its keys and its
//! peers. Pure.

use std::collections::BTreeMap;

use super::peers::{JudgedPeer, judged};
use crate::tunnel_controller::dereference::{Credentials, Dereferenced, Live};
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::object::Object;
use crate::tunnel_controller::problem::Problem;

/// The input of the builders and of later steps, in addition to the [`super::ValidatedObject`]. If
/// the spec is not applied, this state is the only input.
#[derive(Debug)]
pub struct ValidatedState {
    /// The object as the owner of its children.
    pub holder: Holder,
    /// The time of the reconciliation, in seconds since 1970.
    pub now: i64,
    /// The existing children.
    pub live: Live,
    /// The keys and certificates.
    pub credentials: Credentials,
    /// The MuxPeers that name this exit.
    pub peers: Vec<JudgedPeer>,
    /// Why the sandboxes of pods failed, by UID of the pod.
    pub sandboxes: BTreeMap<String, Problem>,
}

/// The state of an object according to the reads at `now`. `peers`: the peers, if they were judged
/// before, because a check of a key is expensive.
pub(in crate::tunnel_controller) fn state(
    (object, holder): (&Object, &Holder),
    named: Dereferenced,
    peers: Option<Vec<JudgedPeer>>,
    now: i64,
) -> ValidatedState {
    ValidatedState {
        holder: holder.clone(),
        now,
        live: named.live,
        peers: peers.unwrap_or_else(|| judged(&named.credentials, object, &holder.namespace)),
        credentials: named.credentials,
        sandboxes: named.sandboxes,
    }
}

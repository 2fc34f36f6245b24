//! The state of an object that all specs have in common: its existing objects, its keys and its
//! peers. Pure.

use std::collections::BTreeMap;

use muxtunnel_gateway_config::Member;

use super::peers::{JudgedPeer, judged};
use crate::tunnel_controller::dereference::{Credentials, Dereferenced, Live};
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::object::{Kind, Object};
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
    /// The members of a rendezvous in the spec, as far as they can be read. The spec may not be applied.
    pub members: Option<Vec<Member>>,
    /// Why the sandboxes of pods failed, by UID of the pod.
    pub sandboxes: BTreeMap<String, Problem>,
    /// Why the volumes of pods with a CSI driver are not mounted, by UID of the pod.
    pub mounts: BTreeMap<String, Problem>,
}

/// The state of an object according to the reads at `now`. `peers`: the peers as judged by the spec, if
/// it is applied.
pub(in crate::tunnel_controller) fn state(
    (object, holder): (&Object, &Holder),
    named: Dereferenced,
    peers: Option<Vec<JudgedPeer>>,
    now: i64,
) -> ValidatedState {
    let peers = peers.unwrap_or_else(|| judged(None, &named, &holder.namespace));
    let members = (holder.kind == Kind::Rendezvous).then(|| object.members().to_vec());
    ValidatedState {
        holder: holder.clone(),
        now,
        live: named.live,
        peers,
        members,
        credentials: named.credentials,
        sandboxes: named.sandboxes,
        mounts: named.mounts,
    }
}

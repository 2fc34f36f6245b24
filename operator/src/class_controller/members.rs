//! The objects of each class, from the caches.

use muxtunnel_codes::Code;
use muxtunnel_crds::condition::{ACCEPTED, STALLED};

use crate::apply::is_owned;
use crate::caches::{Caches, NotKnown};
use crate::conditions::{find, is_true};
use crate::tunnel_controller::object::Object;
use crate::upgrades::{Member, Shown};

/// The objects of `caches`.
pub(super) fn objects(caches: &Caches) -> Result<impl Iterator<Item = Object>, NotKnown> {
    let tunnels = caches.tunnels.all()?.into_iter().map(Object::from);
    let exits = caches.exits.all()?.into_iter().map(Object::from);
    let rendezvous = caches.rendezvous.all()?.into_iter().map(Object::from);
    let all = tunnels.chain(exits).chain(rendezvous);
    // A placeholder does not show its class.
    Ok(all.filter(|object| !object.is_deleted() && object.undecoded().is_none()))
}

/// The object in the roll-out to the revision with the text `present`.
pub(super) fn member(
    caches: &Caches,
    object: &Object,
    present: &str,
) -> Result<Option<Member>, NotKnown> {
    let Some(owner) = object.owner_reference() else {
        return Ok(None);
    };
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let mut deployments = Vec::new();
    for end in object.kind().ends() {
        let child = object.kind().child(*end, &name);
        let live = caches.deployments.get(&namespace, &child)?;
        deployments.extend(live.filter(|live| is_owned(live.as_ref(), &owner)));
    }
    let shown = Shown::of(deployments.iter().map(AsRef::as_ref));
    Ok(Some(Member {
        is_current: shown.is_current(present),
        turn: shown.turn,
        gateways: shown.gateways,
        is_held: object.is_paused() || shown.is_paused || is_refused(object),
        is_stalled: is_true(object.conditions(), STALLED),
    }))
}

/// Whether the operator does not apply the spec.
fn is_refused(object: &Object) -> bool {
    find(object.conditions(), ACCEPTED).is_some_and(|accepted| {
        // Without this target, the others work.
        let is_applied = accepted.reason == Code::TargetNotPermitted.reason();
        accepted.status == "False" && !is_applied
    })
}

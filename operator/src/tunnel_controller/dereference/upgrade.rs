//! The revision that an object is built with.

use muxtunnel_crds::condition::STALLED;

use super::Dereferenced;
use crate::class::Class;
use crate::clock::Now;
use crate::conditions::is_true;
use crate::tunnel_controller::access::Access;
use crate::tunnel_controller::object::Object;
use crate::upgrades::{Basis, Own, Revision, Shown, choose};

/// The class that the object is built with: its class, or an earlier version of its class while the
/// object waits for its turn.
pub(super) fn chosen(
    access: &Access,
    (object, class): (&Object, Class),
    named: &mut Dereferenced,
    now: Now,
) -> Class {
    let present = Revision::of(&class, access.classes.images());
    let text = present.text();
    let shown = Shown::of(named.live.deployments.values().map(AsRef::as_ref));
    let own = Own {
        names_class: object.class_name().is_some(),
        has_changed: object.observed_generation() != object.meta().generation,
        is_permitted: access.turns.permit(&object.id(), &text, now.instant),
        is_stalled: is_true(object.conditions(), STALLED),
    };
    let choice = choose(&present, &shown, own);
    let (class, text) = match &choice.basis {
        Basis::Earlier(earlier) => (class.with(earlier.part.clone()), earlier.text()),
        Basis::Present | Basis::Kept => (class, text),
    };
    named.upgrade = (choice, text);
    class
}

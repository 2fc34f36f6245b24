//! Checks the permissions of the class. Pure.

use muxtunnel_crds::Feature;

use crate::class::Class;
use crate::tunnel_controller::object::Object;

/// The first field that the class does not permit, as a sentence.
pub(super) fn not_permitted(object: &Object, class: &Class) -> Option<String> {
    let mut metadata = object
        .ends()
        .filter_map(|end| object.template(end)?.metadata.as_ref());
    let key = metadata.find_map(|metadata| class.refused_key(metadata));
    let tuning = object.tuning();
    let features = [
        (
            object.wan_emulation().is_some(),
            Feature::WanEmulation,
            "wanEmulation",
        ),
        (object.has_network(), Feature::Network, "network"),
        (
            tuning.is_some_and(|tuning| tuning.allow_unsafe),
            Feature::UnsafeSysctls,
            "tuning.allowUnsafe",
        ),
    ];
    let asked = features.into_iter().filter(|(is_asked, ..)| *is_asked);
    let mut refused = asked.filter_map(|(_, feature, field)| class.refusal(feature, field));
    key.or_else(|| refused.next())
}

//! Labels that identify children.

use std::collections::BTreeMap;

pub use muxtunnel_contract::labels::{COMPONENT, INSTANCE};
use muxtunnel_contract::labels::{MANAGED_BY, NAME, TUNNEL};

/// The component of a benchmark's runner.
pub const RUNNER: &str = "runner";
/// Field manager of every server-side apply, and the value of `app.kubernetes.io/managed-by`.
pub const MANAGER: &str = "muxtunnel-operator";
/// The annotation of a gateway's pod that makes the kubelet refresh the pod's volumes.
pub const REFRESH: &str = "muxtunnel.dev/refresh";

const PRODUCT: &str = "muxtunnel";

/// The labels of a child of `instance`.
#[must_use]
pub fn child(instance: &str, component: &str) -> BTreeMap<String, String> {
    [
        (NAME, PRODUCT),
        (INSTANCE, instance),
        (COMPONENT, component),
        (MANAGED_BY, MANAGER),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// The labels of a Secret with keys of the gateways of `tunnel`.
#[must_use]
pub fn of_key(tunnel: &str, component: &str) -> BTreeMap<String, String> {
    [
        (NAME, PRODUCT),
        (TUNNEL, tunnel),
        (COMPONENT, component),
        (MANAGED_BY, MANAGER),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// The selector of the children of all objects.
#[must_use]
pub fn children() -> String {
    format!("{NAME}={PRODUCT},{MANAGED_BY}={MANAGER}")
}

/// Whether `labels` are the labels of a child of any object.
#[must_use]
pub fn is_child(labels: &BTreeMap<String, String>) -> bool {
    let has = |key: &str, value: &str| labels.get(key).is_some_and(|found| found == value);
    has(NAME, PRODUCT) && has(MANAGED_BY, MANAGER)
}

/// Whether `labels` are the labels of a child of `instance` with one of `components`.
#[must_use]
pub fn is_child_of(labels: &BTreeMap<String, String>, instance: &str, components: &[&str]) -> bool {
    let has =
        |key: &str, is_it: &dyn Fn(&str) -> bool| labels.get(key).is_some_and(|own| is_it(own));
    is_child(labels)
        && has(INSTANCE, &|own| own == instance)
        && has(COMPONENT, &|own| components.contains(&own))
}

//! Labels that identify children.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
pub use muxtunnel_contract::labels::{COMPONENT, OWNER_KIND, OWNER_NAME};
use muxtunnel_contract::labels::{MANAGED_BY, NAME, VERSION};

/// The component of a benchmark's runner.
pub const RUNNER: &str = "runner";
/// Field manager of every server-side apply, and the value of `app.kubernetes.io/managed-by`.
pub const MANAGER: &str = "muxtunnel-operator";
/// The annotation of a gateway's pod that makes the kubelet refresh the pod's volumes.
pub const REFRESH: &str = "muxtunnel.dev/refresh";

const PRODUCT: &str = "muxtunnel";

/// The labels of a child of the object `name` of this kind. A Secret with keys has them, too.
pub fn child(kind: &str, name: &str, component: &str) -> BTreeMap<String, String> {
    let mut labels = selector(kind, name, component);
    let product = [(NAME, PRODUCT), (MANAGED_BY, MANAGER)];
    labels.extend(product.map(|(key, value)| (key.to_owned(), value.to_owned())));
    labels
}

/// The metadata of the object `name` with `labels` and the version of the operator.
pub fn metadata(
    (namespace, name): (&str, String),
    mut labels: BTreeMap<String, String>,
    owner: Option<&OwnerReference>,
) -> ObjectMeta {
    labels.insert(VERSION.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels),
        owner_references: owner.map(|owner| vec![owner.clone()]),
        ..ObjectMeta::default()
    }
}

/// The labels that select the pods of one component of the object `name` of this kind.
pub fn selector(kind: &str, name: &str, component: &str) -> BTreeMap<String, String> {
    [
        (OWNER_KIND, kind),
        (OWNER_NAME, name),
        (COMPONENT, component),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// The selector of objects with all of `labels`.
pub fn having(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector {
        match_labels: (!labels.is_empty()).then_some(labels),
        match_expressions: None,
    }
}

/// The selector of the children of all objects.
pub fn children() -> String {
    format!("{NAME}={PRODUCT},{MANAGED_BY}={MANAGER}")
}

/// Whether `labels` are the labels of a child of any object.
pub fn is_child(labels: &BTreeMap<String, String>) -> bool {
    let has = |key: &str, value: &str| labels.get(key).is_some_and(|found| found == value);
    has(NAME, PRODUCT) && has(MANAGED_BY, MANAGER)
}

/// The kind and the name of the object that a child with these labels belongs to.
pub fn owner(labels: &BTreeMap<String, String>) -> Option<(&str, &str)> {
    let label = |key: &str| labels.get(key).filter(|_| is_child(labels));
    Some((label(OWNER_KIND)?, label(OWNER_NAME)?))
}

/// Whether `labels` are the labels of a child of `owner`, its kind and name, with one of
/// `components`.
pub fn is_child_of(
    labels: &BTreeMap<String, String>,
    owner: (&str, &str),
    components: &[&str],
) -> bool {
    let component = labels.get(COMPONENT);
    self::owner(labels) == Some(owner)
        && component.is_some_and(|own| components.contains(&own.as_str()))
}

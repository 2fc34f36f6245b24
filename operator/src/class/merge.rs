//! The template of an object over the template of its class. Maps and lists with a key have the items
//! of both, and the object's item wins. Other lists, and other fields, of the object replace those of
//! the class.

use std::collections::BTreeMap;

use muxtunnel_crds::{Resources, Template, TemplateContainer, TemplateMetadata, TemplateSpec};

type Map<V> = BTreeMap<String, V>;

/// The template `own` over `class`, with the containers of `own`.
pub(super) fn template<C: Clone + Default>(class: Template, own: &Template<C>) -> Template<C> {
    let metadata = match (class.metadata, &own.metadata) {
        (None, own) => own.clone(),
        (Some(class), own) => {
            let own = own.clone().unwrap_or_default();
            Some(TemplateMetadata {
                labels: over(class.labels, own.labels),
                annotations: over(class.annotations, own.annotations),
            })
        }
    };
    let spec = match (class.spec, &own.spec) {
        (None, own) => own.clone(),
        (Some(class), own) => Some(spec(class, own.clone().unwrap_or_default())),
    };
    Template { metadata, spec }
}

fn spec<C>(class: TemplateSpec, own: TemplateSpec<C>) -> TemplateSpec<C> {
    TemplateSpec {
        node_selector: over(class.node_selector, own.node_selector),
        tolerations: list(class.tolerations, own.tolerations),
        affinity: own.affinity.or(class.affinity),
        topology_spread_constraints: list(
            class.topology_spread_constraints,
            own.topology_spread_constraints,
        ),
        priority_class_name: own.priority_class_name.or(class.priority_class_name),
        runtime_class_name: own.runtime_class_name.or(class.runtime_class_name),
        scheduler_name: own.scheduler_name.or(class.scheduler_name),
        image_pull_secrets: by_key(class.image_pull_secrets, &own.image_pull_secrets, |one| {
            one.name.clone()
        }),
        dns_policy: own.dns_policy.or(class.dns_policy),
        dns_config: own.dns_config.or(class.dns_config),
        host_aliases: by_key(class.host_aliases, &own.host_aliases, |one| one.ip.clone()),
        containers: own.containers,
    }
}

/// The containers of both, with the resources of `own` over those of `class`.
pub(super) fn containers(
    class: Vec<TemplateContainer>,
    own: &[TemplateContainer],
) -> Vec<TemplateContainer> {
    let mut merged = by_key(class.clone(), own, |one| one.name);
    for container in &mut merged {
        let mut below = class.iter().filter(|below| below.name == container.name);
        let below = below.next().and_then(|below| below.resources.clone());
        let above = container.resources.take();
        container.resources = match (below, above) {
            (Some(below), Some(above)) => Some(Resources {
                requests: over(below.requests, above.requests),
                limits: over(below.limits, above.limits),
            }),
            (below, above) => above.or(below),
        };
    }
    merged
}

fn over<V>(mut class: Map<V>, own: Map<V>) -> Map<V> {
    class.extend(own);
    class
}

fn list<T>(class: Vec<T>, own: Vec<T>) -> Vec<T> {
    match own.is_empty() {
        true => class,
        false => own,
    }
}

/// The items of `class` without those that `own` also has, and the items of `own`.
pub(super) fn by_key<T: Clone, K: PartialEq>(
    class: Vec<T>,
    own: &[T],
    key: impl Fn(&T) -> K,
) -> Vec<T> {
    let is_replaced = |item: &T| own.iter().any(|one| key(one) == key(item));
    let class = class.into_iter().filter(|item| !is_replaced(item));
    class.chain(own.iter().cloned()).collect()
}

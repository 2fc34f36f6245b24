//! References of a tunnel to objects of other namespaces. This module is pure.
//!
//! For every field of the spec, this module either collects the objects that the field names, or
//! states why the field cannot name an object of another namespace. The patterns have no `..`, so a
//! new field causes a compile error until the field is handled here. Gateways run in the tunnel's
//! own namespace without permissions. So a user who may create a MuxTunnel reaches no more
//! addresses than a pod of this namespace does. A Service of another namespace is used only if that
//! namespace permits it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use muxtunnel_crds::{
    AddressTarget, Carrier, Forward, ForwardDirection, MuxTunnelSpec, Policy, PolicyRule,
    ServiceTarget, Side, Target,
};
use serde_yaml::Value;

use super::document;
pub use crate::service_name::ServiceName;

/// Longest DNS name, without a dot at its end.
const HOST_BYTES_MAX: usize = 253;

/// The objects that the spec of a tunnel names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Services to look up: targets that are Services, or DNS names of Services.
    pub services: BTreeSet<ServiceName>,
    /// Services of other namespaces, from any field. Each needs a permission there. The name
    /// [`EVERY`] means all Services.
    pub foreign: BTreeSet<ServiceName>,
}

/// Collects all references of `spec`.
#[must_use]
pub fn references(spec: &MuxTunnelSpec, namespace: &str) -> References {
    let MuxTunnelSpec {
        side,
        // The two fields below are settings of Deployments and Services in the tunnel's namespace.
        // They can name only Secrets in the same namespace.
        entry: _,
        exit: _,
        // The rendezvous' Secret is in the tunnel's namespace.
        rendezvous: _,
        forwards,
        carrier,
        policy,
        timeouts: _,
        tuning: _,
        wan: _,
        // The operator creates the Secrets of keys in the tunnel's namespace.
        key: _,
        // The field contains networks and addresses, and no Services.
        network: _,
    } = spec;
    let mut found = References::default();
    for forward in forwards {
        of_forward(forward, *side, namespace, &mut found);
    }
    if let Some(carrier) = carrier {
        of_carrier(carrier);
    }
    if let Some(policy) = policy {
        of_policy(policy, namespace, &mut found);
    }
    found
}

/// Collects the targets that clients may name. Denied targets need no permission.
fn of_policy(policy: &Policy, namespace: &str, found: &mut References) {
    let Policy {
        allow,
        deny: _,
        nat64_prefixes: _,
    } = policy;
    for rule in allow {
        let PolicyRule {
            host,
            // A network names no Service. NetworkPolicies restrict connections to addresses.
            cidr: _,
            port: _,
            end_port: _,
            peer: _,
        } = rule;
        let named = host
            .iter()
            .flat_map(|host| services_of_rule(host, namespace));
        let foreign = named.filter(|named| named.namespace != namespace);
        found.foreign.extend(foreign);
    }
}

fn of_forward(forward: &Forward, side: Side, namespace: &str, found: &mut References) {
    let Forward {
        name: _,
        direction: _,
        listen: _,
        target,
        // The Secret is in the tunnel's namespace.
        auth: _,
        proxy_protocol: _,
        priority: _,
        limits: _,
    } = forward;
    let Some(Target { service, address }) = target else {
        return;
    };
    if let Some(target) = service {
        let named = service_name(target, namespace);
        if named.namespace != namespace {
            found.foreign.insert(named.clone());
        }
        found.services.insert(named);
    }
    if let Some(target) = address
        && is_dialled_here(forward, side)
    {
        let named = services_of_host(target, namespace);
        found.services.extend(service_of_pod(target, namespace));
        let foreign = named.iter().filter(|named| named.namespace != namespace);
        found.foreign.extend(foreign.cloned());
        found.services.extend(named);
    }
}

/// A carrier names no object of another namespace. The address of the other side is literal, and
/// the Secrets are in the tunnel's namespace.
fn of_carrier(carrier: &Carrier) {
    let Carrier {
        protocol: _,
        transport: _,
        address: _,
        rendezvous: _,
        web_socket: _,
        congestion_control: _,
        liveness_seconds: _,
        pool: _,
        resume: _,
        security: _,
        public_keys: _,
    } = carrier;
}

/// Whether streams of the forward begin at the exit.
pub(super) fn is_reverse(forward: &Forward) -> bool {
    forward.direction == Some(ForwardDirection::ExitToEntry)
}

/// Whether gateways of this tunnel dial the forward's target. Otherwise gateways of another cluster
/// dial it, with that cluster's names.
#[must_use]
pub fn is_dialled_here(forward: &Forward, side: Side) -> bool {
    if is_reverse(forward) {
        side.has_entry()
    } else {
        side.has_exit()
    }
}

/// The Service that `target` names, for a tunnel in `namespace`.
#[must_use]
pub fn service_name(target: &ServiceTarget, namespace: &str) -> ServiceName {
    let ServiceTarget {
        name,
        namespace: asked,
        port: _,
    } = target;
    ServiceName {
        namespace: asked.as_deref().unwrap_or(namespace).to_owned(),
        name: name.clone(),
    }
}

/// The Services that the host of `target` may name, if a pod of `namespace` resolves the host. The
/// forms are `NAME`, `NAME.NAMESPACE` of the pod's own namespace, and `NAME.NAMESPACE.svc`. The
/// last two forms may have any prefix, such as a pod's name. The last form may have any suffix: the
/// cluster's domain, which may itself have a label `svc`. Shorter names do not reach Services of
/// other namespaces, because [`canonical_host`] prevents their completion.
#[must_use]
pub fn services_of_host(target: &AddressTarget, namespace: &str) -> BTreeSet<ServiceName> {
    let AddressTarget { host, port: _ } = target;
    if host.parse::<IpAddr>().is_ok() {
        return BTreeSet::new();
    }
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let labels: Vec<&str> = host.split('.').collect();
    let own = match labels[..] {
        [name] => Some((name, namespace)),
        [.., name, of] if of == namespace => Some((name, of)),
        _ => None,
    };
    let before_svc = (0..labels.len()).filter_map(|index| match labels[..=index] {
        [.., name, of, "svc"] => Some((name, of)),
        _ => None,
    });
    own.into_iter()
        .chain(before_svc)
        .filter(|(name, of)| is_name(name) && is_name(of))
        .map(|(name, of)| ServiceName {
            namespace: of.to_owned(),
            name: name.to_owned(),
        })
        .collect()
}

/// The Service of the own namespace, if the host of `target` is the name of a StatefulSet's pod in
/// the form `POD.SERVICE`. A host with a final dot is not completed, so it names no pod.
#[must_use]
pub fn service_of_pod(target: &AddressTarget, namespace: &str) -> Option<ServiceName> {
    let (pod, service) = target.host.split_once('.')?;
    let service = service.to_ascii_lowercase();
    // `NAME.NAMESPACE` of the own namespace names a Service.
    let is_pod = is_name(pod) && is_name(&service) && service != namespace;
    is_pod.then(|| ServiceName {
        namespace: namespace.to_owned(),
        name: service,
    })
}

/// Whether `text` may be the name of a pod, a Service or a namespace.
fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_part)
}

/// As the name of a Service: all Services of the namespace. As a namespace: all namespaces.
pub const EVERY: &str = "*";
/// The cluster's domain in nearly all clusters.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// The Services that the host of a rule of `policy.allow` may name, if a pod of `namespace`
/// resolves a client's target. For a name, returns the result of [`services_of_host`]. For a
/// pattern within the cluster's domain, returns names with [`EVERY`] for all Services that the
/// pattern covers. For `*`, returns nothing: this pattern also covers all addresses, and
/// NetworkPolicies restrict addresses.
#[must_use]
pub fn services_of_rule(host: &str, namespace: &str) -> BTreeSet<ServiceName> {
    let Some(domain) = host.strip_prefix("*.") else {
        let target = AddressTarget {
            host: host.to_owned(),
            // The port does not matter here.
            port: 0,
        };
        return match host {
            EVERY => BTreeSet::new(),
            _ => services_of_host(&target, namespace),
        };
    };
    let domain = domain.trim_end_matches('.').to_ascii_lowercase();
    let labels: Vec<&str> = domain.split('.').collect();
    let service = |of: &str, name: &str| ServiceName {
        namespace: of.to_owned(),
        name: name.to_owned(),
    };
    let is_above = domain == CLUSTER_DOMAIN || CLUSTER_DOMAIN.ends_with(&format!(".{domain}"));
    let before_svc = (0..labels.len()).filter_map(|index| match labels[..=index] {
        ["svc"] => Some(service(EVERY, EVERY)),
        [of, "svc"] => Some(service(of, EVERY)),
        [.., name, of, "svc"] => Some(service(of, name)),
        _ => None,
    });
    let all = is_above.then(|| service(EVERY, EVERY));
    before_svc.chain(all).collect()
}

/// The Services that the document of a configuration names in other namespaces.
pub(super) fn services_of_document(document: &Value, namespace: &str) -> BTreeSet<ServiceName> {
    let hosts = document::hosts(document);
    hosts.flat_map(|host| foreign(host, namespace)).collect()
}

/// The Services that `host` may name in other namespaces.
pub(super) fn foreign(host: &str, namespace: &str) -> BTreeSet<ServiceName> {
    let mut services = services_of_rule(host, namespace);
    services.retain(|service| service.namespace != namespace);
    services
}

/// The canonical form of a rule's host, see [`canonical_host`]. The patterns `*` and `*.svc` stay
/// unchanged, because the resolver completes the names of the Services that they cover.
#[must_use]
pub fn canonical_rule(host: &str, namespace: &str) -> String {
    match host {
        EVERY | "*.svc" => host.to_owned(),
        _ => canonical_host(host, namespace),
    }
}

/// The whole name of a StatefulSet's pod of the own namespace, whose host is `POD.SERVICE`. This
/// name reaches no other namespace. Without the Service, [`canonical_host`] applies.
#[must_use]
pub fn host_of_pod(
    target: &AddressTarget,
    namespace: &str,
    services: &BTreeMap<ServiceName, Service>,
) -> Option<String> {
    let service = services.get(&service_of_pod(target, namespace)?)?;
    let type_ = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    // A Service of type ExternalName has no pods.
    let has_pods = type_ != Some("ExternalName");
    let host = target.host.to_ascii_lowercase();
    let whole = format!("{host}.{namespace}.svc");
    (has_pods && whole.len() <= HOST_BYTES_MAX).then_some(whole)
}

/// The canonical form of a host that pods of `namespace` dial.
///
/// A pod's resolver completes names with few dots, so `web.shop` would reach the Service `web` of
/// namespace `shop`, although the spec does not name it. A dot at the end prevents the completion.
/// Only names of the pod's own namespace, and names that end in `svc`, may still be completed. For
/// the pods of a StatefulSet, see [`host_of_pod`].
#[must_use]
pub fn canonical_host(host: &str, namespace: &str) -> String {
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.to_string();
    }
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let labels: Vec<&str> = host.split('.').collect();
    let is_completed = match labels[..] {
        [_] | [_, _, .., "svc"] => true,
        [.., of] => of == namespace,
        [] => true,
    };
    // A name of the maximum length has no room for the dot.
    match is_completed || host.len() >= HOST_BYTES_MAX {
        true => host,
        false => host + ".",
    }
}

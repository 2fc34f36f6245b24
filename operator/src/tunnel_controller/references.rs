//! References of an object to objects of other namespaces. This module is pure.
//!
//! For every field of a spec, this module either collects the objects that the field names, or
//! states why the field cannot name an object of another namespace. The patterns have no `..`, so a
//! new field causes a compile error until the field is handled here. Gateways run in the object's
//! own namespace without permissions. So a user who may create a MuxTunnel reaches no more
//! addresses than a pod of this namespace does. A Service of another namespace is used only if that
//! namespace permits it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use muxtunnel_crds::{
    Forward, MuxExitSpec, MuxRendezvousSpec, MuxTunnelSpec, Proxy, ReverseForward, Rule,
    ServiceRef, Target,
};
use muxtunnel_gateway_config::HostPattern;
use serde_yaml::Value;

use super::document;
use super::object::Object;
pub use crate::service_name::ServiceName;

/// Longest DNS name, without a dot at its end.
const HOST_BYTES_MAX: usize = 253;

/// The objects that the spec of an object names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Services to look up: targets that are Services, or DNS names of Services.
    pub services: BTreeSet<ServiceName>,
    /// Services of other namespaces, from any field. Each needs a permission there. The name
    /// [`EVERY`] means all Services.
    pub foreign: BTreeSet<ServiceName>,
}

/// Collects all references of the spec of `object`.
#[must_use]
pub fn references(object: &Object, namespace: &str) -> References {
    let mut found = Finder {
        namespace,
        found: References::default(),
    };
    match object {
        Object::Tunnel(tunnel) => found.tunnel(&tunnel.spec),
        Object::Exit(exit) => found.exit(&exit.spec),
        Object::Rendezvous(rendezvous) => of_rendezvous(&rendezvous.spec),
    }
    found.found
}

struct Finder<'a> {
    namespace: &'a str,
    found: References,
}

impl Finder<'_> {
    fn tunnel(&mut self, spec: &MuxTunnelSpec) {
        let MuxTunnelSpec {
            class_name: _,
            paused: _,
            // The addresses of exits are literal, and name no object.
            connect,
            // Settings of Deployments and Services in the object's namespace. They can name only
            // Secrets in the same namespace.
            entry: _,
            exit: _,
            services: _,
            allow,
            // Denied targets need no permission.
            deny: _,
            nat64_prefixes: _,
            forwards,
            reverse_forwards,
            proxies,
            // The field contains networks and addresses, and no Services.
            network: _,
            // The Secrets and the issuer are in the object's namespace, or the issuer belongs to the
            // cluster.
            security: _,
            carrier: _,
            // The operator creates the Secrets of keys in the object's namespace.
            key: _,
            timeouts: _,
            tuning: _,
            wan_emulation: _,
        } = spec;
        // Gateways of another cluster dial the targets, with that cluster's names.
        let is_dialled_here = connect.is_empty();
        for forward in forwards {
            let Forward {
                // The Service of the port is in the object's namespace.
                listen: _,
                targets,
                proxy_protocol: _,
                priority: _,
                limits: _,
            } = forward;
            self.targets(targets, is_dialled_here);
        }
        for forward in reverse_forwards {
            let ReverseForward {
                listen: _,
                targets,
                priority: _,
                limits: _,
            } = forward;
            self.targets(targets, true);
        }
        for proxy in proxies {
            let Proxy {
                listen: _,
                protocol: _,
                // The Secret is in the object's namespace.
                users_secret_ref: _,
                accept_proxy_protocol: _,
                fallback_targets,
                priority: _,
                limits: _,
            } = proxy;
            self.targets(fallback_targets, is_dialled_here);
        }
        self.rules(allow);
    }

    fn exit(&mut self, spec: &MuxExitSpec) {
        let MuxExitSpec {
            class_name: _,
            paused: _,
            // Settings of Deployments and Services in the object's namespace. They can name only
            // Secrets in the same namespace.
            gateway: _,
            service: _,
            services: _,
            reverse_ports: _,
            // The Secret is in the object's namespace.
            ssh: _,
            // The address of a rendezvous is literal, and names no object.
            rendezvous: _,
            from: _,
            advertised_endpoint: _,
            trusted_proxies: _,
            limits: _,
            allow,
            // Denied targets need no permission.
            deny: _,
            nat64_prefixes: _,
            // The field contains networks and addresses, and no Services.
            network: _,
            // The Secret and the issuer are in the object's namespace, or the issuer belongs to the
            // cluster.
            security: _,
            carrier: _,
            // The operator creates the Secrets of keys in the object's namespace.
            key: _,
            timeouts: _,
            tuning: _,
            wan_emulation: _,
        } = spec;
        self.rules(allow);
    }

    fn targets(&mut self, targets: &[Target], is_dialled_here: bool) {
        for target in targets {
            let Target {
                service_ref,
                host,
                port: _,
            } = target;
            if let Some(service) = service_ref {
                let named = service_name(service, self.namespace);
                self.foreign([named.clone()]);
                self.found.services.insert(named);
            }
            if let Some(host) = host.as_ref().filter(|_| is_dialled_here) {
                let named = services_of_host(host, self.namespace);
                self.foreign(named.iter().cloned());
                self.found.services.extend(named);
                let pod = service_of_pod(host, self.namespace);
                self.found.services.extend(pod);
            }
        }
    }

    /// Collects the targets that clients may name.
    fn rules(&mut self, rules: &[Rule]) {
        for rule in rules {
            let Rule {
                host,
                ports: _,
                peer: _,
            } = rule;
            // A network names no Service. NetworkPolicies restrict connections to addresses.
            let named = host.names();
            let named = named.map(|host| services_of_rule(&host, self.namespace));
            self.foreign(named.unwrap_or_default());
        }
    }

    fn foreign(&mut self, named: impl IntoIterator<Item = ServiceName>) {
        let named = named.into_iter();
        let foreign = named.filter(|named| named.namespace != self.namespace);
        self.found.foreign.extend(foreign);
    }
}

/// A rendezvous dials no target.
fn of_rendezvous(spec: &MuxRendezvousSpec) {
    let MuxRendezvousSpec {
        class_name: _,
        paused: _,
        members: _,
        service: _,
        from: _,
        trusted_proxies: _,
        limits: _,
        drain_seconds: _,
        template: _,
        key: _,
    } = spec;
}

/// The Service that `asked` names, for an object in `namespace`.
#[must_use]
pub fn service_name(asked: &ServiceRef, namespace: &str) -> ServiceName {
    let ServiceRef {
        name,
        namespace: of,
    } = asked;
    ServiceName::new(of.as_deref().unwrap_or(namespace), name)
}

/// The Services that `host` may name, if a pod of `namespace` resolves the host. The
/// forms are `NAME`, `NAME.NAMESPACE` of the pod's own namespace, and `NAME.NAMESPACE.svc`. The
/// last two forms may have any prefix, such as a pod's name. The last form may have any suffix: the
/// cluster's domain, which may itself have a label `svc`. Shorter names do not reach Services of
/// other namespaces, because [`canonical_host`] prevents their completion.
#[must_use]
pub fn services_of_host(host: &str, namespace: &str) -> BTreeSet<ServiceName> {
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
        .map(|(name, of)| ServiceName::new(of, name))
        .collect()
}

/// The Service of the own namespace, if `host` is the name of a StatefulSet's pod in
/// the form `POD.SERVICE`. A host with a final dot is not completed, so it names no pod.
#[must_use]
pub fn service_of_pod(host: &str, namespace: &str) -> Option<ServiceName> {
    let (pod, service) = host.split_once('.')?;
    let service = service.to_ascii_lowercase();
    // `NAME.NAMESPACE` of the own namespace names a Service.
    let is_pod = is_name(pod) && is_name(&service) && service != namespace;
    is_pod.then(|| ServiceName::new(namespace, service))
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

/// The Services that the host of a rule of `allow` may name, if a pod of `namespace`
/// resolves a client's target. For a name, returns the result of [`services_of_host`]. For a
/// pattern within the cluster's domain, returns names with [`EVERY`] for all Services that the
/// pattern covers. For `*`, returns nothing: this pattern also covers all addresses, and
/// NetworkPolicies restrict addresses.
#[must_use]
pub fn services_of_rule(host: &str, namespace: &str) -> BTreeSet<ServiceName> {
    let Some(domain) = host.strip_prefix("*.") else {
        return match host {
            EVERY => BTreeSet::new(),
            _ => services_of_host(host, namespace),
        };
    };
    let domain = domain.trim_end_matches('.').to_ascii_lowercase();
    let labels: Vec<&str> = domain.split('.').collect();
    let is_above = domain == CLUSTER_DOMAIN || CLUSTER_DOMAIN.ends_with(&format!(".{domain}"));
    let before_svc = (0..labels.len()).filter_map(|index| match labels[..=index] {
        ["svc"] => Some(ServiceName::new(EVERY, EVERY)),
        [of, "svc"] => Some(ServiceName::new(of, EVERY)),
        [.., name, of, "svc"] => Some(ServiceName::new(of, name)),
        _ => None,
    });
    let all = is_above.then(|| ServiceName::new(EVERY, EVERY));
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

/// The rule with the canonical form of its host, see [`canonical_host`]. The patterns `*` and `*.svc`
/// stay unchanged, because the resolver completes the names of the Services that they cover.
#[must_use]
pub fn canonical_rule(rule: &Rule, namespace: &str) -> Rule {
    let host = match &rule.host {
        HostPattern::Name(name) => HostPattern::Name(canonical_host(name, namespace)),
        HostPattern::Below(domain) if domain != "svc" => {
            let host = canonical_host(&format!("*.{domain}"), namespace);
            HostPattern::Below(host.trim_start_matches("*.").to_owned())
        }
        other => other.clone(),
    };
    Rule {
        host,
        ..rule.clone()
    }
}

/// The whole name of a StatefulSet's pod of the own namespace, whose host is `POD.SERVICE`. This
/// name reaches no other namespace. Without the Service, [`canonical_host`] applies.
#[must_use]
pub fn host_of_pod(
    host: &str,
    namespace: &str,
    services: &BTreeMap<ServiceName, Service>,
) -> Option<String> {
    let service = services.get(&service_of_pod(host, namespace)?)?;
    let type_ = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    // A Service of type ExternalName has no pods.
    let has_pods = type_ != Some("ExternalName");
    let host = host.to_ascii_lowercase();
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

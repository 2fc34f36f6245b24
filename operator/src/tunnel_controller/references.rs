//! What a tunnel refers to in other namespaces. Pure.
//!
//! Every field of the spec that can name an object is looked at here or said to name none of another namespace: the
//! patterns have no rest, so a field that is added does not compile until it is decided. Gateways run in the tunnel's
//! own namespace with no rights, so a user who may create a MuxTunnel reaches what a pod there reaches. A name of another
//! namespace's Service is believed only once that namespace permits it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use muxtunnel_crds::{
    AddressTarget, Carrier, Forward, ForwardDirection, MuxTunnelSpec, Policy, PolicyRule,
    ServiceTarget, Side, Target,
};
use muxtunnel_gateway_config as config;

pub use crate::service_name::ServiceName;

/// Longest DNS name, without a dot at its end.
const HOST_BYTES_MAX: usize = 253;

/// What the spec of a tunnel in `namespace` names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Services that are looked up: targets that are Services, or DNS names of Services.
    pub services: BTreeSet<ServiceName>,
    /// Services of other namespaces, by whatever field: each has to be permitted there. The name [`EVERY`] is that of all.
    pub foreign: BTreeSet<ServiceName>,
}

/// Reads all references out of `spec`.
#[must_use]
pub fn references(spec: &MuxTunnelSpec, namespace: &str) -> References {
    let MuxTunnelSpec {
        side,
        // Settings of Deployments and Services in the tunnel's namespace; their Secrets pull images there, and let users of
        // ssh log in.
        entry: _,
        exit: _,
        // Its Secret is of the tunnel's namespace.
        rendezvous: _,
        forwards,
        carrier,
        policy,
        timeouts: _,
        tuning: _,
        wan: _,
        // Networks and addresses, and no Services.
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

/// What clients may name themselves. What is denied names nothing that would have to be permitted.
fn of_policy(policy: &Policy, namespace: &str, found: &mut References) {
    let Policy {
        allow,
        deny: _,
        nat64_prefixes: _,
    } = policy;
    for rule in allow {
        let PolicyRule {
            host,
            // Raw addresses are the matter of NetworkPolicies.
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
        // A Secret of the tunnel's namespace.
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
        let foreign = named.iter().filter(|named| named.namespace != namespace);
        found.foreign.extend(foreign.cloned());
        found.services.extend(named);
    }
}

/// Nothing of other namespaces: the other side has to be given what it is dialled for, its keys are Secrets of the
/// tunnel's namespace.
fn of_carrier(carrier: &Carrier) {
    let Carrier {
        protocol: _,
        transport: _,
        address: _,
        rendezvous: _,
        web_socket: _,
        congestion_control: _,
        pool: _,
        resume: _,
        security: _,
        join_from: _,
    } = carrier;
}

/// Whether its streams begin at the exit.
pub(super) fn is_reverse(forward: &Forward) -> bool {
    forward.direction == Some(ForwardDirection::ExitToEntry)
}

/// Whether gateways of this very tunnel dial the forward's target; else those of another cluster, by other names.
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

/// The Services that the host of `target` may be the DNS name of, where a pod of `namespace` resolves it: `NAME`,
/// `NAME.NAMESPACE` of the own one, `NAME.NAMESPACE.svc`; whatever is before it (a pod's own name) or behind it (the
/// cluster's domain, which may have a label `svc`, too). Shorter names of other namespaces' Services are none:
/// [`canonical_host`] lets nothing complete them.
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
    let is_name = |text: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !text.is_empty() && text.bytes().all(is_part)
    };
    own.into_iter()
        .chain(before_svc)
        .filter(|(name, of)| is_name(name) && is_name(of))
        .map(|(name, of)| ServiceName {
            namespace: of.to_owned(),
            name: name.to_owned(),
        })
        .collect()
}

/// The name that stands for all Services of a namespace, or for all namespaces.
pub const EVERY: &str = "*";
/// The domain of the cluster, as nearly all have it.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// The Services that the host of a rule of `policy.allow` may be the name of, where a pod of `namespace` resolves what a
/// client names: as [`services_of_host`]; of a pattern within the cluster's domain [`EVERY`] Service that it covers. The
/// pattern `*` has every address, too, which is the matter of NetworkPolicies, so it names none.
#[must_use]
pub fn services_of_rule(host: &str, namespace: &str) -> BTreeSet<ServiceName> {
    let Some(domain) = host.strip_prefix("*.") else {
        let target = AddressTarget {
            host: host.to_owned(),
            // It is not looked at.
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

/// The Services of other namespaces that a configuration names.
pub(super) fn services_of_config(
    config: &config::Config,
    namespace: &str,
) -> BTreeSet<ServiceName> {
    let targets = config
        .forwards
        .iter()
        .filter_map(|forward| host_of_target(forward.target.as_ref()?))
        .map(str::to_owned);
    let allowed = config
        .policy
        .allow
        .iter()
        .filter_map(|rule| host_of_rule(&rule.host));
    let hosts = targets.chain(allowed);
    hosts.flat_map(|host| foreign(&host, namespace)).collect()
}

/// The host that a target of a configuration is dialled by.
pub(super) fn host_of_target(target: &config::Target) -> Option<&str> {
    match target {
        config::Target::Tcp { host, .. } => Some(host),
        config::Target::Unix(_) => None,
    }
}

/// The name or the pattern of names in a rule of a configuration.
pub(super) fn host_of_rule(host: &config::HostPattern) -> Option<String> {
    match host {
        config::HostPattern::Name(name) => Some(name.clone()),
        config::HostPattern::Below(domain) => Some(format!("*.{domain}")),
        _ => None,
    }
}

/// The Services of other namespaces that `host` may be the name of.
pub(super) fn foreign(host: &str, namespace: &str) -> BTreeSet<ServiceName> {
    let mut services = services_of_rule(host, namespace);
    services.retain(|service| service.namespace != namespace);
    services
}

/// The one spelling of the host of a rule, as [`canonical_host`]. The patterns `*` and `*.svc` stay as they are: the names
/// of Services that they cover are completed.
#[must_use]
pub fn canonical_rule(host: &str, namespace: &str) -> String {
    match host {
        EVERY | "*.svc" => host.to_owned(),
        _ => canonical_host(host, namespace),
    }
}

/// The one spelling of a host that is dialled by pods of `namespace`.
///
/// A resolver of a pod completes names with few dots, and so `web.shop` would be the Service `web` of the namespace
/// `shop`, which nobody has asked for. A dot at the end keeps it from doing so; names that it has to complete are those
/// of the own namespace, and those that end in `svc`.
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
    // Nothing can be put behind one of the greatest length.
    match is_completed || host.len() >= HOST_BYTES_MAX {
        true => host,
        false => host + ".",
    }
}

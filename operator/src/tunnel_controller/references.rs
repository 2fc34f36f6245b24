//! What a tunnel refers to in other namespaces. Pure.
//!
//! Every field of the spec that can name an object is looked at here or said to name none of another namespace: the
//! patterns have no rest, so a field that is added does not compile until it is decided. Gateways run in the tunnel's
//! own namespace with no rights, so whoever may create a MuxTunnel reaches what a pod there reaches; a name of another
//! namespace's Service is believed only once that namespace permits it.

use std::collections::BTreeSet;

use muxtunnel_crds::{AddressTarget, Carrier, Forward, MuxTunnelSpec, ServiceTarget, Side, Target};

use super::validate::is_reverse;

/// A Service by its namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// What the spec of a tunnel in `namespace` names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Services whose ports are looked up: targets that are Services.
    pub services: BTreeSet<ServiceName>,
    /// Services of other namespaces, by whatever field: each has to be permitted there.
    pub foreign: BTreeSet<ServiceName>,
}

/// Reads all references out of `spec`.
#[must_use]
pub fn references(spec: &MuxTunnelSpec, namespace: &str) -> References {
    let MuxTunnelSpec {
        side,
        // Settings of Deployments and Services in the tunnel's namespace; their Secrets pull images there.
        entry: _,
        exit: _,
        // Its Secret is of the tunnel's namespace.
        rendezvous: _,
        forwards,
        carrier,
        // Which of the addresses that clients name may be dialled: networks and patterns, no objects.
        policy: _,
        timeouts: _,
        tuning: _,
        wan: _,
    } = spec;
    let mut found = References::default();
    for forward in forwards {
        of_forward(forward, *side, namespace, &mut found);
    }
    if let Some(carrier) = carrier {
        of_carrier(carrier);
    }
    found
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
        found.foreign.extend(foreign_service(target, namespace));
    }
}

/// Nothing of other namespaces: the other side has to be given what it is dialled for, its keys are Secrets of the
/// tunnel's namespace.
fn of_carrier(carrier: &Carrier) {
    let Carrier {
        protocol: _,
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

/// Whether gateways of this very tunnel dial the forward's target; else those of another cluster, by other names.
fn is_dialled_here(forward: &Forward, side: Side) -> bool {
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

/// The Service of another namespace that the host of `target` is the DNS name of: `NAME.NAMESPACE.svc`, whatever is
/// before it (a pod's own name) or behind it (the cluster's domain).
#[must_use]
pub fn foreign_service(target: &AddressTarget, namespace: &str) -> Option<ServiceName> {
    let AddressTarget { host, port: _ } = target;
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let labels: Vec<&str> = host.split('.').collect();
    let svc = labels.iter().position(|label| *label == "svc")?;
    let [.., name, of] = labels.get(..svc)? else {
        return None;
    };
    (*of != namespace).then(|| ServiceName {
        namespace: (*of).to_owned(),
        name: (*name).to_owned(),
    })
}

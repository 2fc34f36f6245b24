//! Step 1: reads all that a reconciliation decides by: what the watches brought, what the operator remembers, and, of the
//! API server, what no watch may bring.
//!
//! In: the tunnel. Out: [`Dereferenced`]: the Services that its forwards name, as far as they exist, those that their
//! namespace does not permit it to name, the Jobs that tried sysctls for it ([`probes`]), what there is of its gateways
//! ([`Live`]), and what certificates follow from ([`CertificateFacts`]). What is not permitted is not looked up, so
//! nothing that is said of it tells whether it exists. Must not judge: a missing Service is a finding of
//! [`super::validate`]. What cannot be read is a [`Hindrance`], and what was read besides counts all the same.

mod certificates;
mod join;
mod live;
mod probes;

pub use certificates::{CertificateFacts, KnownSeed};
pub use join::Joined;
pub(super) use join::{KEPT_KEY, kept_in};
pub use live::{Live, LiveConfig};
pub use probes::{ProbeOutcome, REFUSED, SeenProbe};

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use muxtunnel_crds::MuxTunnel;

use super::access::Access;
use super::end::End;
use super::error::DereferenceError;
use super::hindrance::Hindrance;
use super::holder::Holder;
use super::problem::Problem;
use super::references::{ServiceName, references};
use super::rollouts::Refusal;
use crate::caches::Endpoints;

/// Annotation: `"true"` leaves everything as it is, whatever the spec says; but what another namespace permits no more
/// goes, and certificates are renewed.
pub const PAUSED: &str = "muxtunnel.dev/paused";

/// What was read.
#[derive(Debug)]
pub struct Found {
    /// As far as it was.
    pub named: Dereferenced,
    /// Why not all of it was.
    pub hindrance: Option<Hindrance>,
    /// The watches that bring nothing.
    pub stale: Vec<String>,
}

/// What the spec names, and what is there of the tunnel.
#[derive(Debug, Default)]
pub struct Dereferenced {
    /// The target Services that exist and may be named. At most one a forward.
    pub services: BTreeMap<ServiceName, Service>,
    /// What is behind them, as far as it can be known.
    pub endpoints: BTreeMap<ServiceName, Endpoints>,
    /// The Services of other namespaces that do not permit this tunnel to name them.
    pub forbidden: BTreeSet<ServiceName>,
    /// Where the API server is, which exits are kept from.
    pub api_server: Vec<IpAddr>,
    /// What the tunnel joins by, or why it cannot; `None`: it names no bundle.
    pub join: Option<Result<Joined, Problem>>,
    /// The Jobs that tried, or try, sysctls.
    pub probes: Vec<SeenProbe>,
    /// What there is of its gateways.
    pub live: Live,
    /// What is remembered of ends that were refused.
    pub refusals: BTreeMap<End, Refusal>,
    /// What certificates follow from.
    pub certificates: CertificateFacts,
}

/// Whether everything is to stay as it is.
pub(super) fn is_paused(tunnel: &MuxTunnel) -> bool {
    let paused = tunnel.annotations().get(PAUSED);
    paused.is_some_and(|paused| paused == "true")
}

/// Reads what `tunnel` names, each object once, and what there is of it. Of a paused one only the latter.
pub async fn dereference(access: &Access, tunnel: &MuxTunnel, holder: &Holder) -> Found {
    let mut named = Dereferenced {
        certificates: CertificateFacts::remembered(&access.certifier, tunnel),
        ..Dereferenced::default()
    };
    let read = read(access, tunnel, holder, &mut named).await;
    Found {
        named,
        hindrance: read.err(),
        stale: access.watches.stale(&holder.namespace),
    }
}

async fn read(
    access: &Access,
    tunnel: &MuxTunnel,
    holder: &Holder,
    named: &mut Dereferenced,
) -> Result<(), Hindrance> {
    let live = live::live(access, holder);
    // Gateways that run need certificates, whatever else is not known.
    let certificates = certificates::read(access, tunnel, holder, live.as_ref().ok(), named).await;
    named.live = live?;
    certificates?;
    if is_paused(tunnel) {
        return Err(Hindrance::Paused);
    }
    let (uid, now) = (&holder.owner.uid, named.certificates.now);
    named.refusals = access.rollouts.refusals(uid, now);
    if named.refusals.values().any(|refusal| refusal.rests) {
        named.live.replica_sets = live::replica_sets(access, holder)?;
    }
    named.api_server = access.api_server.addresses();
    let probes = probes::probes(&access.cluster, holder).await;
    named.probes = probes.map_err(DereferenceError::from)?;
    Ok(services(access, tunnel, holder, named)?)
}

fn services(
    Access {
        targets, grants, ..
    }: &Access,
    tunnel: &MuxTunnel,
    Holder { namespace, .. }: &Holder,
    found: &mut Dereferenced,
) -> Result<(), DereferenceError> {
    let named = references(&tunnel.spec, namespace);
    for service in named.foreign {
        if !grants.permit(namespace, &service)? {
            found.forbidden.insert(service);
        }
    }
    for named in named.services {
        if found.forbidden.contains(&named) {
            continue;
        }
        if let Some(service) = targets.get(&named.namespace, &named.name)? {
            if let Some(endpoints) = targets.endpoints(&named.namespace, &named.name) {
                found.endpoints.insert(named.clone(), endpoints);
            }
            found.services.insert(named, Arc::unwrap_or_clone(service));
        }
    }
    Ok(())
}

//! Step 1: reads all inputs of a reconciliation. The inputs come from the caches of the watches and
//! from the operator's memory. If the operator has no permission to watch a kind, the step reads
//! its objects by requests to the API server.
//!
//! Input: the tunnel. Output: [`Dereferenced`], which contains the existing Services that the
//! forwards name, and the Services that their namespace does not permit. It also contains the Jobs
//! that test sysctls ([`probes`]), the state of the gateways ([`Live`]), and the keys and
//! certificates ([`Credentials`]). A Service without permission is not looked up, so no
//! message reveals whether it exists. This step does not report faults of the spec:
//! [`super::validate`] reports a missing Service. A failed read is a [`Hindrance`], and the other
//! results remain valid.

mod credentials;
mod live;
mod probes;

pub use credentials::Credentials;
pub(super) use credentials::mode;
pub use live::{Live, LiveConfig};
pub use probes::{ProbeOutcome, REFUSED, RESOURCES_HASH, SeenProbe};

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::{MuxTunnel, MuxTunnelSpec};

use super::access::Access;
use super::end::End;
use super::error::DereferenceError;
use super::hindrance::Hindrance;
use super::holder::Holder;
use super::problem::Problem;
use super::references::{ServiceName, references};
use super::rollouts::Refusal;
use super::sandbox;
use crate::caches::Endpoints;
use crate::clock::Now;
use crate::{grants, undecoded};

/// Annotation. With the value `"true"`, the operator does not apply the spec. The operator still
/// withdraws targets whose permission was revoked.
pub const PAUSED: &str = "muxtunnel.dev/paused";

/// The result of the reads.
#[derive(Debug)]
pub struct Found {
    /// The results of the successful reads.
    pub named: Dereferenced,
    /// The reason if a result is missing.
    pub hindrance: Option<Hindrance>,
    /// The paths of the stale watches.
    pub stale: Vec<String>,
}

/// The objects that the spec names, and the objects of the tunnel.
#[derive(Debug, Default)]
pub struct Dereferenced {
    /// The existing target Services that the tunnel may name.
    pub services: BTreeMap<ServiceName, Service>,
    /// The known endpoints of these Services.
    pub endpoints: BTreeMap<ServiceName, Endpoints>,
    /// The Services in other namespaces whose namespace does not permit this tunnel to use them.
    pub forbidden: BTreeSet<ServiceName>,
    /// The API server's addresses. Gateways dial them for clients only if a rule names them
    /// literally.
    pub api_server: Vec<IpAddr>,
    /// The Jobs that test sysctls, running and ended.
    pub probes: Vec<SeenProbe>,
    /// The state of the tunnel's gateways.
    pub live: Live,
    /// The remembered refusals of the tunnel's ends.
    pub refusals: BTreeMap<End, Refusal>,
    /// The keys and certificates, and the peers of an exit.
    pub credentials: Credentials,
    /// Why the sandboxes of pods failed, by UID of the pod. A pod whose sandbox did not fail, or
    /// whose Events do not name the failure, is missing.
    pub sandboxes: BTreeMap<String, Problem>,
}

/// The spec that the operator applies, or why it applies none. Only this function decides it.
pub(super) fn spec(tunnel: &MuxTunnel) -> Result<&MuxTunnelSpec, Hindrance> {
    let paused = tunnel.annotations().get(PAUSED);
    if paused.is_some_and(|paused| paused == "true") {
        return Err(Hindrance::Paused);
    }
    match undecoded::reason(tunnel) {
        Some(reason) => Err(Hindrance::Undecoded(reason.to_owned())),
        None => Ok(&tunnel.spec),
    }
}

/// The tunnel of a placeholder, as far as this version can decode it. `None` if the tunnel no
/// longer exists.
///
/// # Errors
/// [`DereferenceError`].
pub(super) async fn decodable(
    access: &Access,
    tunnel: &MuxTunnel,
) -> Result<Option<MuxTunnel>, DereferenceError> {
    Ok(undecoded::read(&access.reader, tunnel).await?)
}

/// Reads the objects that `tunnel` names, each once, and the state of the tunnel. Without a spec to
/// apply, reads only the state of the tunnel. `now`: the time of the reconciliation.
pub async fn dereference(access: &Access, tunnel: &MuxTunnel, holder: &Holder, now: Now) -> Found {
    let mut named = Dereferenced::default();
    let read = read(access, tunnel, holder, &mut named, now).await;
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
    now: Now,
) -> Result<(), Hindrance> {
    let (live, spec) = (live::live(access, holder), spec(tunnel));
    named.live = live?;
    // A peer that is removed loses its carriers even if the spec is not applied.
    let peers = credentials::peers(access, holder).map_err(DereferenceError::from)?;
    named.credentials.peers = peers;
    let spec = spec?;
    credentials::read(access, (tunnel, spec), holder, named, now.seconds()).await?;
    let uid = &holder.owner.uid;
    named.refusals = access.memory.rollouts.refusals(uid, now.seconds());
    let replica_sets = live::replica_sets(access, holder);
    named.live.replica_sets = match named.refusals.values().any(|refusal| refusal.rests) {
        // An end returns to the template of a ReplicaSet.
        true => Some(replica_sets?),
        false => replica_sets.ok(),
    };
    named.api_server = access.api_server.addresses();
    let jobs = probes::jobs(&access.caches, holder).map_err(DereferenceError::from)?;
    services(access, spec, holder, named)?;
    let gateways = named.live.pods.iter().flatten().map(AsRef::as_ref);
    let tuned = gateways.filter(|pod| sandbox::is_tuned(pod));
    let pods = tuned.chain(jobs.open_pods());
    named.sandboxes = sandbox::failures(&access.reader, &holder.namespace, pods).await;
    named.probes = jobs.seen(&access.reader, &named.sandboxes, now).await;
    Ok(())
}

fn services(
    Access {
        targets, grants, ..
    }: &Access,
    spec: &MuxTunnelSpec,
    Holder { namespace, .. }: &Holder,
    found: &mut Dereferenced,
) -> Result<(), Hindrance> {
    let named = references(spec, namespace);
    for service in named.foreign {
        match grants.permit(namespace, &service) {
            Ok(true) => {}
            Ok(false) => {
                found.forbidden.insert(service);
            }
            Err(error @ grants::NotKnown::Unlisted) => {
                return Err(DereferenceError::from(error).into());
            }
            Err(grants::NotKnown::Undecoded) => {
                return Err(Hindrance::Blocked(undecoded_grant(&service)));
            }
        }
    }
    for named in named.services {
        if found.forbidden.contains(&named) {
            continue;
        }
        let service = targets.get(&named.namespace, &named.name);
        if let Some(service) = service.map_err(DereferenceError::from)? {
            if let Some(endpoints) = targets.endpoints(&named.namespace, &named.name) {
                found.endpoints.insert(named.clone(), endpoints);
            }
            found.services.insert(named, Arc::unwrap_or_clone(service));
        }
    }
    Ok(())
}

fn undecoded_grant(ServiceName { namespace, name }: &ServiceName) -> Problem {
    Problem {
        code: Code::UnknownValue,
        detail: format!(
            "a grant in namespace {namespace} cannot be decoded, so the operator cannot determine whether the grant \
             permits the Service {name}; the operator's log names the grant"
        ),
    }
}

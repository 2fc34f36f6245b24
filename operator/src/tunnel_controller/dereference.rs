//! Step 1: reads all inputs of a reconciliation. The inputs come from the caches of the watches and
//! from the operator's memory. If the operator has no permission to watch a kind, the step reads
//! its objects by requests to the API server.
//!
//! Input: the object. Output: [`Dereferenced`], which contains the existing Services that the
//! forwards name, and the Services that their namespace does not permit. It also contains the Jobs
//! that test sysctls ([`probes`]), the state of the gateways ([`Live`]), and the keys and
//! certificates ([`Credentials`]). A Service without permission is not looked up, so no
//! message reveals whether it exists. This step does not report faults of the spec:
//! [`super::validate`] reports a missing Service. A failed read is a [`Hindrance`], and the other
//! results remain valid.

mod credentials;
mod live;
mod probes;
mod upgrade;

pub use credentials::Credentials;
pub use live::{Live, LiveConfig, own};
pub use probes::{Next, ProbeOutcome, REFUSED, RESOURCES_HASH, SeenProbe, running};

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use muxtunnel_codes::Code;

use super::access::Access;
use super::end::End;
use super::error::Error;
use super::hindrance::Hindrance;
use super::holder::Holder;
use super::object::{Object, of_each};
use super::problem::Problem;
use super::references::{ServiceName, references};
use super::rollouts::{Refusal, Untuned};
use super::sandbox::{self, Step};
use crate::caches::Endpoints;
use crate::class::Class;
use crate::classes::NoClass;
use crate::clock::Now;
use crate::upgrades::Choice;
use crate::{grants, undecoded};

/// The result of the reads.
#[derive(Debug)]
pub struct Found {
    /// The results of the successful reads.
    pub named: Dereferenced,
    /// The class of the object, or the reason if a result is missing.
    pub class: Result<Class, Hindrance>,
    /// The paths of the stale watches.
    pub stale: Vec<String>,
}

/// The objects that the spec names, and the children of the object.
#[derive(Debug, Default)]
pub struct Dereferenced {
    /// The existing target Services that the object may name.
    pub services: BTreeMap<ServiceName, Service>,
    /// The known endpoints of these Services.
    pub endpoints: BTreeMap<ServiceName, Endpoints>,
    /// The Services in other namespaces whose namespace does not permit this object to use them.
    pub forbidden: BTreeSet<ServiceName>,
    /// The API server's addresses. Gateways dial them for clients only if a rule names them
    /// literally.
    pub api_server: Vec<IpAddr>,
    /// The Jobs that test sysctls, running and ended.
    pub probes: Vec<SeenProbe>,
    /// The state of the object's gateways.
    pub live: Live,
    /// The roll-out of the object, and the text of the revision that it is built with.
    pub upgrade: (Choice, String),
    /// The remembered refusals of the object's ends.
    pub refusals: BTreeMap<End, Refusal>,
    /// The refusals of the sysctls of profile `Auto` that no annotation stores yet.
    pub untuned: BTreeMap<End, Untuned>,
    /// The refusals of these sysctls in the namespace, by the hash of the requests.
    pub answers: BTreeMap<String, String>,
    /// The keys and certificates, and the peers of an exit.
    pub credentials: Credentials,
    /// Why the sandboxes of pods failed, by UID of the pod. A pod whose sandbox did not fail, or
    /// whose Events do not name the failure, is missing.
    pub sandboxes: BTreeMap<String, Problem>,
    /// Why the volumes of pods with a CSI driver are not mounted, by UID of the pod.
    pub mounts: BTreeMap<String, Problem>,
}

/// Why the operator does not apply the spec. Only this function decides it.
pub(super) fn unapplied(object: &Object) -> Option<Hindrance> {
    if let Some(reason) = object.undecoded() {
        return Some(Hindrance::Undecoded(reason.to_owned()));
    }
    object.is_paused().then_some(Hindrance::Paused)
}

/// The class of the object. `None` if another operator serves the object.
///
/// # Errors
/// Why the object has no class.
pub(super) async fn class(access: &Access, object: &Object) -> Result<Option<Class>, Hindrance> {
    access.classes.first_list().await;
    let namespace = object.namespace().unwrap_or_default();
    match access.classes.find(&namespace, object.class_name()) {
        Ok(class) => Ok(Some(class)),
        Err(NoClass::Foreign) => Ok(None),
        Err(NoClass::Refused(code, detail)) => Err(Hindrance::Blocked(Problem { code, detail })),
        Err(NoClass::NotKnown(error)) => Err(error.into()),
    }
}

/// The object of a placeholder, as far as this version can decode it. `None` if the object no longer
/// exists.
///
/// # Errors
/// [`Error::Object`].
pub(super) async fn decodable(access: &Access, object: &Object) -> Result<Option<Object>, Error> {
    let reader = &access.reader;
    of_each!(object, own => {
        let found = undecoded::read(reader, &**own).await;
        Ok(found.map_err(Error::Object)?.map(Object::from))
    })
}

/// Reads the objects that `object` names, each once, and its state. Without a spec to apply, reads
/// only its state. `now`: the time of the reconciliation.
pub async fn dereference(
    access: &Access,
    (object, class): (&Object, Result<Class, Hindrance>),
    holder: &Holder,
    now: Now,
) -> Found {
    let mut named = Dereferenced::default();
    let class = read(access, (object, class), holder, &mut named, now).await;
    Found {
        named,
        class,
        stale: access.watches.stale(&holder.namespace),
    }
}

async fn read(
    access: &Access,
    (object, class): (&Object, Result<Class, Hindrance>),
    holder: &Holder,
    named: &mut Dereferenced,
    now: Now,
) -> Result<Class, Hindrance> {
    named.live = live::live(access, holder)?;
    // A peer that is removed loses its carriers even if the spec is not applied.
    named.credentials.peers = credentials::peers(access, holder)?;
    if let Some(hindrance) = unapplied(object) {
        return Err(hindrance);
    }
    let class = upgrade::chosen(access, (object, class?), named, now);
    credentials::read(access, object, holder, named, now.seconds()).await?;
    let uid = &holder.owner.uid;
    let rollouts = &access.memory.rollouts;
    named.refusals = rollouts.refusals(uid, now.seconds());
    named.untuned = rollouts.untuned(uid);
    named.answers = rollouts.answers(&holder.namespace, now.seconds());
    let replica_sets = live::replica_sets(access, holder);
    named.live.replica_sets = match named.refusals.values().any(|refusal| refusal.rests) {
        // An end returns to the template of a ReplicaSet.
        true => Some(replica_sets?),
        false => replica_sets.ok(),
    };
    named.api_server = access.api_server.addresses();
    let jobs = probes::jobs(&access.caches, holder)?;
    services(access, object, holder, named)?;
    let gateways = named.live.pods.iter().flatten().map(AsRef::as_ref);
    let tuned = gateways.filter(|pod| sandbox::is_tuned(pod));
    let pods = tuned.chain(jobs.open_pods());
    let (reader, namespace) = (&access.reader, &holder.namespace);
    named.sandboxes = sandbox::failures(reader, namespace, Step::Sandbox, pods).await;
    let gateways = named.live.pods.iter().flatten().map(AsRef::as_ref);
    let with_driver = gateways.filter(|pod| sandbox::has_driver(pod));
    named.mounts = sandbox::failures(reader, namespace, Step::Mount, with_driver).await;
    let seen = jobs.seen((reader, namespace), &named.sandboxes, now);
    named.probes = seen.await;
    Ok(class)
}

fn services(
    Access {
        targets, grants, ..
    }: &Access,
    object: &Object,
    Holder { namespace, .. }: &Holder,
    found: &mut Dereferenced,
) -> Result<(), Hindrance> {
    let named = references(object, namespace);
    let owner = (object.kind().name(), &**namespace);
    for service in named.foreign {
        match grants.permit(owner, &service) {
            Ok(true) => {}
            Ok(false) => {
                found.forbidden.insert(service);
            }
            Err(error @ grants::NotKnown::Unlisted) => return Err(error.into()),
            Err(grants::NotKnown::Undecoded) => {
                return Err(Hindrance::Blocked(undecoded_grant(&service)));
            }
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

fn undecoded_grant(ServiceName { namespace, name }: &ServiceName) -> Problem {
    let detail = format!(
        "a grant in namespace {namespace} cannot be decoded, so the operator cannot determine whether the grant \
         permits the Service {name}; the operator's log names the grant"
    );
    Problem::new(Code::UnknownValue, detail)
}

//! Step 2: turns the spec into an object that can be built. Pure, no client.
//!
//! Input: the object and the results of the reads. Output: a [`ValidatedObject`] with all defaults
//! set, or the [`Hindrance`] that prevents building, and a [`ValidatedState`]. Both outputs are the
//! only inputs of the builders. The schema rejects most faults when an object is written. The
//! gateway's own check of its configuration finds those that the schema misses, in the next step. If
//! a target is not usable, this step reports it, and omits it except in one case: its Service is
//! missing. All other targets still work.

mod benchmark;
mod certificates;
mod connect;
mod findings;
mod gateways;
mod network;
mod peers;
mod pods;
mod problem;
mod replicas;
mod rollouts;
mod rules;
mod security;
mod services;
mod state;
mod streams;
mod target;
mod upgrade;

pub use benchmark::OwningBenchmark;
pub use certificates::ValidatedCertificates;
pub(super) use connect::HEADLESS;
pub use findings::{DeniedTarget, Finding, Findings};
pub(super) use gateways::resources_of;
pub use gateways::{CarrierPort, ValidatedGateway};
pub(super) use network::NOBODY;
pub use network::ValidatedNetwork;
pub use peers::JudgedPeer;
#[cfg(test)]
pub(super) use peers::size as size_of_peer;
pub use pods::ValidatedPods;
pub use replicas::Replicas;
pub(super) use rollouts::{asked, newest_set};
pub use security::{CertificateVolume, ValidatedSecurity};
pub(super) use services::SSH;
pub use services::ValidatedService;
pub use state::ValidatedState;
pub(super) use state::state;
pub use streams::{Streams, UsersFile};
pub(super) use streams::{USERS_FOLDER, all_addresses};
pub use upgrade::{KeptPods, ValidatedUpgrade};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use muxtunnel_codes::Code;
use muxtunnel_crds::{Carrier, ListenPort};
use muxtunnel_gateway_config::{Connect, MeetingPlace, Member};

use super::dereference::Dereferenced;
use super::end::End;
use super::hindrance::Hindrance;
use super::holder::Holder;
use super::object::{Kind, Object};
use super::problem::Problem;
use crate::class::Class;

/// An object that can be built, with all defaults set.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedObject {
    /// The object as the owner of its children.
    pub holder: Holder,
    /// The class of the object.
    pub class: Class,
    /// The gateways of each end that the object has.
    pub gateways: BTreeMap<End, ValidatedGateway>,
    /// The streams between clients and targets.
    pub streams: Streams,
    /// The Services with the ports of clients, without the port for users of ssh.
    pub services: Vec<ValidatedService>,
    /// The settings of carriers.
    pub carrier: Carrier,
    /// The exits that entries dial, in the order of their use.
    pub connect: Vec<Connect>,
    /// Where exits wait for entries instead of a port of their own.
    pub meetings: Vec<MeetingPlace>,
    /// The members of a rendezvous.
    pub members: Vec<Member>,
    /// The source of the gateways' certificates.
    pub certificates: ValidatedCertificates,
    /// The MuxPeers of an exit, oldest first.
    pub peers: Vec<JudgedPeer>,
    /// The settings for IP packets between the networks of both ends.
    pub network: Option<ValidatedNetwork>,
    /// The settings of the pods of all ends.
    pub pods: ValidatedPods,
    /// The problems of targets.
    pub findings: Findings,
    /// The MuxBenchmark that created this object as an environment.
    pub benchmark: Option<OwningBenchmark>,
    /// How the gateways follow a change of the class or of the operator.
    pub upgrade: ValidatedUpgrade,
}

impl ValidatedObject {
    /// The kind of the object.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.holder.kind
    }

    /// The name of all children of `end`.
    #[must_use]
    pub fn child(&self, end: End) -> String {
        self.kind().child(end, &self.holder.name)
    }

    /// The gateways of `end`, if the object has this end.
    #[must_use]
    pub fn gateway(&self, end: End) -> Option<&ValidatedGateway> {
        self.gateways.get(&end)
    }

    /// Whether the object has gateways of `end`.
    #[must_use]
    pub fn has(&self, end: End) -> bool {
        self.gateways.contains_key(&end)
    }

    /// Whether both ends of the carriers belong to the object.
    #[must_use]
    pub fn has_both_ends(&self) -> bool {
        self.has(End::Entry) && self.has(End::Exit)
    }

    /// The ports on which `end` accepts connections of clients.
    pub fn listen_ports(&self, end: End) -> impl Iterator<Item = &ListenPort> {
        let services = self.services.iter();
        let own = services.filter(move |service| service.end == end);
        own.flat_map(|service| &service.ports)
    }

    /// The files with users that the gateways of `end` mount.
    pub fn users(&self, end: End) -> impl Iterator<Item = &UsersFile> {
        self.streams.users.iter().filter(move |_| end == End::Entry)
    }

    /// The Secrets that the pods of `end` need to start. The operator may not check whether the
    /// Secrets exist.
    #[must_use]
    pub fn secrets(&self, end: End) -> BTreeSet<&str> {
        let gateway = self.gateway(end);
        let keys = gateway.map(|own| own.security.secrets());
        let ssh = gateway.and_then(|own| own.ssh.as_ref());
        keys.into_iter()
            .flatten()
            .chain(self.users(end).map(|file| file.secret.as_str()))
            .chain(ssh.map(|ssh| ssh.secret_ref.name.as_str()))
            .collect()
    }
}

/// Validates an object with the results of the reads.
///
/// # Errors
/// The [`Hindrance`] that prevents building the object.
pub fn validate(
    object: &Object,
    named: &Dereferenced,
    class: Class,
) -> Result<Box<ValidatedObject>, Hindrance> {
    let holder = Holder::of(object)?;
    if let Some(detail) = problem::not_permitted(object, &class) {
        let problem = Problem::new(Code::ClassNotPermitted, detail);
        return Err(Hindrance::Blocked(problem));
    }
    let valid = valid(object, holder, named, class);
    valid.map(Box::new).map_err(Hindrance::Invalid)
}

fn valid(
    object: &Object,
    holder: Holder,
    named: &Dereferenced,
    class: Class,
) -> Result<ValidatedObject, String> {
    let (streams, findings) = streams::resolved(object, &holder.namespace, named);
    let carrier = object.carrier();
    let certificates = ValidatedCertificates::of(object, &holder, class.trust_domain());
    let exit = object.exit().map(|exit| &exit.spec);
    let peers = peers::judged(exit, named, &holder.namespace);
    let security = security::Source {
        object,
        holder: &holder,
        class: &class,
        certificates: &certificates,
        credentials: &named.credentials,
    };
    let gateways = gateways::of(&security, &named.live)?;
    let pods = ValidatedPods::of(object, named, &gateways, &class);
    let mut valid = ValidatedObject {
        services: services::of(object, &holder, &gateways)?,
        connect: connect::of(object, &holder),
        meetings: connect::meetings(object),
        members: object.members().to_vec(),
        network: ValidatedNetwork::of(object, carrier.connection.protocol(), &peers)?,
        benchmark: OwningBenchmark::of(object),
        holder,
        class,
        gateways,
        streams,
        carrier,
        certificates,
        peers,
        pods,
        findings,
        upgrade: ValidatedUpgrade::default(),
    };
    valid.upgrade = ValidatedUpgrade::of(&valid, named);
    Ok(valid)
}

/// What `read` reads from each item of the list `field`, or the problem of an item with its index.
fn each<T, U, E: Display>(
    field: &str,
    asked: &[T],
    read: impl Fn(&T) -> Result<U, E>,
) -> Result<Vec<U>, String> {
    let numbered = asked.iter().enumerate();
    let all = numbered
        .map(|(index, item)| read(item).map_err(|problem| format!("{field}[{index}]: {problem}")));
    all.collect()
}

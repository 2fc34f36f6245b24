//! The state of a tunnel that all specs have in common: its existing objects, and the input of its
//! certificates. Pure.

use std::collections::BTreeMap;

use muxtunnel_crds::MuxTunnel;

use crate::certificates::authority::Subject;
use crate::settings::Settings;
use crate::tunnel_controller::dereference::{CertificateFacts, Dereferenced, Joined, Live};
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::problem::Problem;

/// The input of the builders and of later steps, in addition to the [`super::ValidatedTunnel`]. If
/// the spec is not applied, this state is the only input.
#[derive(Debug)]
pub struct ValidatedState {
    /// The tunnel as the owner of its children.
    pub holder: Holder,
    /// The existing children.
    pub live: Live,
    /// The input of certificates.
    pub certificates: CertificateFacts,
    /// The join bundle, or why it cannot be used. `None` if the spec names no bundle.
    pub join: Option<Result<Joined, Problem>>,
    /// The subject of the authorities of running gateways.
    pub subject: Subject,
    /// Why the sandboxes of pods failed, by UID of the pod.
    pub sandboxes: BTreeMap<String, Problem>,
}

impl ValidatedState {
    /// The usable join bundle.
    pub(in crate::tunnel_controller) fn joined(&self) -> Option<&Joined> {
        self.join.as_ref().and_then(|join| join.as_ref().ok())
    }
}

/// The state of `tunnel` according to the reads.
pub(in crate::tunnel_controller) fn state(
    tunnel: &MuxTunnel,
    holder: &Holder,
    named: Dereferenced,
    settings: &Settings,
) -> ValidatedState {
    let generation = named.certificates.known.least_generation();
    let generation = u32::try_from(generation).unwrap_or_default();
    ValidatedState {
        holder: holder.clone(),
        live: named.live,
        join: named.join,
        subject: Subject::of(tunnel, generation, settings),
        certificates: named.certificates,
        sandboxes: named.sandboxes,
    }
}

//! How the gateways of an object follow a change of the class or of the operator. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::ResourceExt;

use super::ValidatedObject;
use crate::tunnel_controller::dereference::Dereferenced;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::rollouts::UNTUNED;
use crate::upgrades::{Basis, REVISION, Turn};

/// How the gateways of an object follow a change of the class or of the operator.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ValidatedUpgrade {
    /// The text of the revision that the object is built with.
    pub revision: String,
    /// The turn of the object, if the object rolls by a turn.
    pub turn: Option<Turn>,
    /// The pods of an earlier version of the operator, which stay until the turn of the object.
    pub kept: BTreeMap<End, KeptPods>,
}

/// The pods of an end that stay as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptPods {
    /// Their template.
    pub template: PodTemplateSpec,
    /// The text of their revision.
    pub revision: String,
    /// The annotation [`UNTUNED`] of their Deployment.
    pub untuned: Option<String>,
}

impl ValidatedUpgrade {
    pub(super) fn of(object: &ValidatedObject, named: &Dereferenced) -> Self {
        let (choice, revision) = &named.upgrade;
        let upgrade = Self {
            revision: revision.clone(),
            turn: choice.turn,
            kept: BTreeMap::new(),
        };
        if choice.basis != Basis::Kept {
            return upgrade;
        }
        let live = named.live.deployments.iter();
        let kept = live.filter_map(|(end, live)| {
            let kept = KeptPods {
                template: live.spec.as_ref()?.template.clone(),
                revision: live.annotations().get(REVISION)?.clone(),
                untuned: live.annotations().get(UNTUNED).cloned(),
            };
            Some((*end, kept))
        });
        let kept: BTreeMap<_, _> = kept.collect();
        // Without these Secrets, for example after the loss of a key pair, the pods could not start.
        let has_secrets = |end: &End| {
            let kept = kept.get(end).map(|kept| secrets(&kept.template));
            kept.is_some_and(|kept| object.secrets(*end).iter().all(|name| kept.contains(name)))
        };
        match object.gateways.keys().all(has_secrets) {
            true => Self { kept, ..upgrade },
            false => upgrade,
        }
    }
}

/// The Secrets that pods with this template mount.
fn secrets(template: &PodTemplateSpec) -> BTreeSet<&str> {
    let volumes = template.spec.iter().flat_map(|pod| &pod.volumes).flatten();
    let mut names = BTreeSet::new();
    for volume in volumes {
        let secret = volume.secret.as_ref();
        names.extend(secret.and_then(|secret| secret.secret_name.as_deref()));
        let projected = volume.projected.iter();
        let sources = projected.flat_map(|projected| &projected.sources).flatten();
        let secrets = sources.filter_map(|source| source.secret.as_ref());
        names.extend(secrets.map(|secret| secret.name.as_str()));
    }
    names
}

//! Step 3: renders the children of an object, and the requests to cert-manager ([`certificates`]).
//! For the case that the children cannot be applied, the step also renders replacements of existing
//! ConfigMaps ([`Kept`]). This step is pure.
//!
//! Input: a [`ValidatedObject`], a [`ValidatedState`] and the [`Settings`]. Output: [`Resources`]
//! and [`Built`]. Each kind has its own file. Forwards are only in ConfigMaps and Services, so a
//! change of forwards does not restart pods. There is one exception: if a proxy names a file of users
//! that no earlier proxy named, the pods restart to mount this file.

pub mod certificates;
mod config;
pub mod config_map;
pub mod deployment;
mod horizontal_pod_autoscaler;
mod network;
pub mod network_policy;
mod pod_disruption_budget;
pub mod probe;
pub mod quantity;
pub mod reduce;
pub mod service;
pub mod service_account;
mod sizing;
mod volumes;
mod wan;
mod withdraw;

pub use certificates::{Certificates, Certified};
pub use withdraw::Kept;
pub(super) use withdraw::bare;

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::ObjectMeta;

use super::end::End;
use super::error::BuildError;
use super::validate::{ValidatedObject, ValidatedState};
use crate::grants;
use crate::labels;
use crate::settings::Settings;

/// All children of an object.
#[derive(Debug, Default)]
pub struct Resources {
    /// One object per end.
    pub service_accounts: Vec<ServiceAccount>,
    /// One object per end.
    pub config_maps: Vec<ConfigMap>,
    /// Descriptions of configurations that pods may still mount, and for which a ConfigMap has no
    /// room.
    pub dropped: Vec<String>,
    /// The Services for the ports of clients, of carriers and of users of ssh. Exits that entries of
    /// the same object dial also have a headless Service.
    pub services: Vec<Service>,
    /// One object per end, if the installation enables network policies.
    pub network_policies: Vec<NetworkPolicy>,
    /// One object per end.
    pub deployments: Vec<Deployment>,
    /// One object per end that has, or may get, several pods.
    pub pod_disruption_budgets: Vec<PodDisruptionBudget>,
    /// One object per end with autoscaling.
    pub autoscalers: Vec<HorizontalPodAutoscaler>,
    /// The Jobs that test the sysctls of the spec.
    pub probe_jobs: Vec<Job>,
    /// Whether the test of the sysctls has not passed yet. In this case, Deployments and the
    /// objects that belong to them stay unchanged.
    pub is_held: bool,
}

/// The objects to apply in every state of the object.
pub struct Built {
    /// The requests to cert-manager.
    pub certificates: Certificates,
    /// Replacements of existing configurations if the children cannot be applied, see [`Kept`]. If
    /// empty, the existing configurations stay.
    pub withdrawn: Result<Vec<Kept>, grants::NotKnown>,
}

/// Renders the other objects. `object`: `None` if the spec is not applied.
pub(super) fn build_others(object: Option<&ValidatedObject>, state: &ValidatedState) -> Built {
    Built {
        certificates: Certificates::of(object, state),
        withdrawn: withdraw::withdrawn(state),
    }
}

/// Renders the children of an object.
///
/// # Errors
/// [`BuildError`] if the gateway's check rejects the configuration.
pub fn build(object: &ValidatedObject, settings: &Settings) -> Result<Resources, BuildError> {
    let mut resources = Resources {
        probe_jobs: probe::jobs(object),
        is_held: probe::problem(object).is_some(),
        services: service::all(object),
        ..Resources::default()
    };
    for end in End::ALL {
        let Some(gateway) = object.gateway(end) else {
            continue;
        };
        let component = end.component();
        let failed = |source| BuildError { component, source };
        let config = config::config(object, end, gateway).map_err(failed)?;
        let deployment = deployment::build(object, end, gateway, &config).map_err(failed)?;
        let account = service_account::build(object, end);
        resources.service_accounts.push(account);
        let (config_map, dropped) = config_map::build(object, end, &config).map_err(failed)?;
        resources.config_maps.push(config_map);
        resources.dropped.extend(dropped);
        let policy = settings.network_policy.as_ref();
        let policy = policy.map(|peers| network_policy::build(object, end, gateway, peers));
        resources.network_policies.extend(policy);
        let Some(deployment) = deployment.filter(|_| !resources.is_held) else {
            continue;
        };
        resources.deployments.push(deployment);
        let budget = pod_disruption_budget::build(object, end, gateway);
        resources.pod_disruption_budgets.extend(budget);
        let autoscaler = horizontal_pod_autoscaler::build(object, end, gateway);
        resources.autoscalers.extend(autoscaler);
    }
    Ok(resources)
}

/// Name, labels and owner of a child.
fn metadata(object: &ValidatedObject, end: End) -> ObjectMeta {
    named(object, object.child(end), end.component())
}

/// The metadata of the child `name` with this component.
fn named(object: &ValidatedObject, name: String, component: &str) -> ObjectMeta {
    let (holder, labels) = (&object.holder, pod_labels(object, component));
    labels::metadata((&holder.namespace, name), labels, Some(&holder.owner))
}

/// The labels of the pods of this component. The version is not one of them: an upgrade of the
/// operator alone must not roll out the pods.
fn pod_labels(object: &ValidatedObject, component: &str) -> BTreeMap<String, String> {
    let (kind, name) = object.holder.labelled();
    labels::child(kind, name, component)
}

/// The labels that select the pods of `end`.
fn selector(object: &ValidatedObject, end: End) -> BTreeMap<String, String> {
    let (kind, name) = object.holder.labelled();
    labels::selector(kind, name, end.component())
}

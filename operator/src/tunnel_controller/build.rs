//! Step 3: renders the children of a tunnel, and the requests to cert-manager ([`certificates`]).
//! For the case that the children cannot be applied, the step also renders replacements of existing
//! ConfigMaps ([`Kept`]). This step is pure.
//!
//! Input: a [`ValidatedTunnel`], a [`ValidatedState`] and the [`Settings`]. Output: [`Resources`]
//! and [`Built`]. Each kind has its own file. Forwards are only in ConfigMaps and Services, so a change of forwards does not restart
//! pods. There is one exception: if a forward names a file of users that no earlier forward named,
//! the pods restart to mount this file.

pub mod certificates;
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
mod wan;
mod withdraw;

pub use certificates::{Certificates, Certified};
pub use withdraw::Kept;
pub(super) use withdraw::bare;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::ObjectMeta;

use super::end::End;
pub use super::error::BuildError;
use super::error::Error;
use super::validate::{ValidatedState, ValidatedTunnel};
use crate::grants;
use crate::labels;
use crate::settings::Settings;

/// All children of a tunnel.
#[derive(Debug, Default)]
pub struct Resources {
    /// One object per end.
    pub service_accounts: Vec<ServiceAccount>,
    /// One object per end.
    pub config_maps: Vec<ConfigMap>,
    /// Descriptions of configurations that pods may still mount, and for which a ConfigMap has no
    /// room.
    pub dropped: Vec<String>,
    /// One Service per end that has ports for clients or carriers, one for the ports that exits
    /// listen on, and one for users of ssh. Exits that entries of this tunnel dial also have a
    /// headless Service.
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

/// The objects to apply in every state of the tunnel.
pub struct Built {
    /// The requests to cert-manager.
    pub certificates: Certificates,
    /// Replacements of existing configurations if the children cannot be applied, see [`Kept`]. If
    /// empty, the existing configurations stay.
    pub withdrawn: Result<Vec<Kept>, grants::NotKnown>,
}

/// Renders the children of `tunnel`, and the other objects.
pub(super) fn build_all(
    tunnel: &ValidatedTunnel,
    state: &ValidatedState,
    settings: &Settings,
) -> (Result<Resources, Error>, Built) {
    let built = Built {
        certificates: Certificates::of(tunnel, state),
        ..build_withdrawals(state)
    };
    (build(tunnel, settings).map_err(Error::from), built)
}

/// Renders the objects of a tunnel whose spec is not applied.
pub(super) fn build_withdrawals(state: &ValidatedState) -> Built {
    Built {
        certificates: Certificates::known(state),
        withdrawn: withdraw::withdrawn(state),
    }
}

/// Renders the children of a tunnel.
///
/// # Errors
/// [`BuildError`] if the gateway's check rejects a configuration that validation accepted. This
/// error is a bug of the operator, not a fault of the object.
pub fn build(tunnel: &ValidatedTunnel, settings: &Settings) -> Result<Resources, BuildError> {
    let mut resources = Resources {
        probe_jobs: probe::jobs(tunnel, settings),
        is_held: probe::verdict(tunnel) != probe::Verdict::Passed,
        ..Resources::default()
    };
    for end in End::ALL {
        let Some(gateway) = end.gateway(tunnel) else {
            continue;
        };
        let config = config_map::config(tunnel, end, gateway)?;
        let deployment = deployment::build(tunnel, end, gateway, &config, settings)?;
        resources
            .service_accounts
            .push(service_account::build(tunnel, end));
        let (config_map, dropped) = config_map::build(tunnel, end, &config, settings)?;
        resources.config_maps.push(config_map);
        resources.dropped.extend(dropped);
        resources
            .services
            .extend(service::build(tunnel, end, gateway));
        let policy = settings.network_policy.as_ref();
        resources
            .network_policies
            .extend(policy.map(|peers| network_policy::build(tunnel, end, peers)));
        if end == End::Exit {
            resources.services.extend(service::reverse(tunnel, gateway));
            resources.services.extend(service::ssh(tunnel));
            let is_found = tunnel.connect_fallback.is_some();
            let headless = is_found.then(|| service::headless(tunnel, gateway));
            resources.services.extend(headless.flatten());
        }
        if resources.is_held {
            continue;
        }
        let held = tunnel
            .rollout(end)
            .and_then(|rollout| rollout.held.as_ref());
        let deployment = match held {
            Some(held) => deployment::held(deployment, held),
            None => Some(deployment),
        };
        let Some(deployment) = deployment else {
            continue;
        };
        resources.deployments.push(deployment);
        resources
            .pod_disruption_budgets
            .extend(pod_disruption_budget::build(tunnel, end, gateway));
        resources
            .autoscalers
            .extend(horizontal_pod_autoscaler::build(tunnel, end, gateway));
    }
    Ok(resources)
}

/// Name of the container for WAN emulation, as in the status of pods.
#[must_use]
pub const fn wan_container_name() -> &'static str {
    wan::CONTAINER
}

/// Name, labels and owner of a child.
fn metadata(tunnel: &ValidatedTunnel, end: End) -> ObjectMeta {
    ObjectMeta {
        name: Some(end.child_name(tunnel)),
        namespace: Some(tunnel.namespace.clone()),
        labels: Some(labels::child(&tunnel.name, end.component())),
        owner_references: Some(vec![tunnel.owner.clone()]),
        ..ObjectMeta::default()
    }
}

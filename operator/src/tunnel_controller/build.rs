//! Step 3: renders the children of a tunnel. Pure, no client.
//!
//! In: a [`ValidatedTunnel`] and the [`Settings`]. Out: [`Resources`], one file a kind. Forwards go
//! into the ConfigMaps and the Services alone, never into a pod's template, so that a change of forwards
//! restarts nothing; only a file of users that no forward named before has to be mounted.

pub mod config_map;
pub mod deployment;
mod horizontal_pod_autoscaler;
pub mod network_policy;
mod pod_disruption_budget;
pub mod probe;
pub mod quantity;
pub mod service;
pub mod service_account;
mod sizing;
mod wan;

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::ObjectMeta;
use muxtunnel_gateway_config::ConfigError;

use super::validate::{UsersFile, ValidatedGateway, ValidatedTunnel};
use crate::labels;
use crate::settings::Settings;

/// The component label of what tries sysctls.
pub const PROBE: &str = "sysctl-probe";

/// A child could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The gateway would refuse its configuration.
    #[error("cannot render the configuration of the {component}: {source}")]
    Config {
        /// `entry`, `exit` or `rendezvous`.
        component: &'static str,
        /// What is wrong.
        source: ConfigError,
    },
}

/// One end of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Where streams enter.
    Entry,
    /// Where targets are dialled.
    Exit,
    /// Where those two meet that are elsewhere.
    Rendezvous,
}

impl End {
    /// All, the exit before the entry: it is dialled.
    pub const ALL: [Self; 3] = [Self::Rendezvous, Self::Exit, Self::Entry];

    /// The value of the component label, and the suffix of names.
    #[must_use]
    pub const fn component(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Exit => "exit",
            Self::Rendezvous => "rendezvous",
        }
    }

    /// The settings of this end, where it is ours.
    #[must_use]
    pub fn gateway(self, tunnel: &ValidatedTunnel) -> Option<&ValidatedGateway> {
        match self {
            Self::Entry => tunnel.entry.as_ref(),
            Self::Exit => tunnel.exit.as_ref(),
            Self::Rendezvous => tunnel.rendezvous.as_ref().map(|own| &own.gateway),
        }
    }

    /// Whether others dial it: all but an entry, and an exit that is met at a rendezvous.
    #[must_use]
    pub const fn is_dialled(self, tunnel: &ValidatedTunnel) -> bool {
        match self {
            Self::Entry => false,
            Self::Exit => tunnel.leaf.is_none(),
            Self::Rendezvous => true,
        }
    }

    /// The Secret with what its gateways show at a rendezvous, or know there.
    #[must_use]
    pub fn meeting_secret(self, tunnel: &ValidatedTunnel) -> Option<&str> {
        match self {
            Self::Rendezvous => tunnel.rendezvous.as_ref().map(|own| own.secret.as_str()),
            Self::Entry | Self::Exit => tunnel.leaf.as_ref().map(|leaf| leaf.secret.as_str()),
        }
    }

    /// The files of users that its gateways ask for, each once.
    #[must_use]
    pub fn users(self, tunnel: &ValidatedTunnel) -> BTreeSet<&UsersFile> {
        let asking = tunnel.forwards.iter().filter(|_| self == Self::Entry);
        asking
            .filter_map(|forward| forward.users.as_ref())
            .collect()
    }

    /// The Secrets that its pods do not start without. The operator cannot look whether they are there.
    #[must_use]
    pub fn secrets(self, tunnel: &ValidatedTunnel) -> BTreeSet<&str> {
        let keys = self.gateway(tunnel).and_then(|own| own.security.secret());
        let users = self.users(tunnel).into_iter();
        let users = users.map(|file| file.secret.as_str());
        keys.into_iter()
            .chain(self.meeting_secret(tunnel))
            .chain(users)
            .collect()
    }

    /// The name of all children of this end.
    #[must_use]
    pub fn child_name(self, tunnel: &ValidatedTunnel) -> String {
        format!("{}-{}", tunnel.name, self.component())
    }
}

/// All children of a tunnel.
#[derive(Debug, Default)]
pub struct Resources {
    /// One an end.
    pub service_accounts: Vec<ServiceAccount>,
    /// One an end.
    pub config_maps: Vec<ConfigMap>,
    /// One an end, one of the ports that exits listen on, and a headless one of the exits that our own entries dial.
    pub services: Vec<Service>,
    /// One an end, unless the installation has none.
    pub network_policies: Vec<NetworkPolicy>,
    /// One an end.
    pub deployments: Vec<Deployment>,
    /// One for each end that has several pods.
    pub pod_disruption_budgets: Vec<PodDisruptionBudget>,
    /// One for each end whose number of pods follows their CPU time.
    pub autoscalers: Vec<HorizontalPodAutoscaler>,
    /// What tries the sysctls that the spec names.
    pub probe_jobs: Vec<Job>,
    /// The sysctls have not passed: Deployments, and what goes with them, stay as they are.
    pub is_held: bool,
}

/// Renders the children.
///
/// # Errors
/// [`BuildError`] where the gateway's own check refuses what validation let through: a fault here, not
/// in the object.
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
        resources
            .config_maps
            .push(config_map::build(tunnel, end, &config)?);
        resources
            .services
            .extend(service::build(tunnel, end, gateway));
        let policy = settings.network_policy.as_ref();
        resources
            .network_policies
            .extend(policy.map(|peers| network_policy::build(tunnel, end, peers)));
        if end == End::Exit {
            resources.services.extend(service::reverse(tunnel, gateway));
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

/// Name of the container that emulates the network, in the status of pods.
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

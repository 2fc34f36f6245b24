//! Step 3: renders the children of a tunnel. Pure, no client.
//!
//! In: a [`ValidatedTunnel`] and the [`Settings`]. Out: [`Resources`], one file a kind. Forwards go
//! into the ConfigMaps and the entry's Service alone, never into a pod's template, so that a change of
//! forwards restarts nothing.

pub mod config_map;
pub mod deployment;
pub mod quantity;
pub mod service;
pub mod service_account;
mod sizing;
mod wan;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use kube::core::ObjectMeta;
use muxtunnel_gateway_config::ConfigError;

use super::validate::{ValidatedGateway, ValidatedTunnel};
use crate::labels;
use crate::settings::Settings;

/// A child could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The gateway would refuse its configuration.
    #[error("cannot render the configuration of the {component}: {source}")]
    Config {
        /// `entry` or `exit`.
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
}

impl End {
    /// Both, the exit first: it is dialled.
    pub const ALL: [Self; 2] = [Self::Exit, Self::Entry];

    /// The value of the component label, and the suffix of names.
    #[must_use]
    pub const fn component(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Exit => "exit",
        }
    }

    /// The settings of this end, where it is ours.
    #[must_use]
    pub const fn gateway(self, tunnel: &ValidatedTunnel) -> Option<&ValidatedGateway> {
        match self {
            Self::Entry => tunnel.entry.as_ref(),
            Self::Exit => tunnel.exit.as_ref(),
        }
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
    /// One an end.
    pub services: Vec<Service>,
    /// One an end.
    pub deployments: Vec<Deployment>,
}

/// Renders the children.
///
/// # Errors
/// [`BuildError`] where the gateway's own check refuses what validation let through: a fault here, not
/// in the object.
pub fn build(tunnel: &ValidatedTunnel, settings: &Settings) -> Result<Resources, BuildError> {
    let mut resources = Resources::default();
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
            .push(service::build(tunnel, end, gateway));
        // Without its Deployment the failed pods go, and no more are made.
        if tunnel.sysctl_forbidden.is_none() {
            resources.deployments.push(deployment);
        }
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

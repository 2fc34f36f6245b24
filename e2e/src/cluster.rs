//! The two clusters, and the node of each: a docker container, since they are kind's.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node as KubernetesNode;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};

use crate::tools;

/// One of the clusters that `e2e/cluster/cluster up` and `up second` bring up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    /// The one that `KUBECONFIG` names.
    First,
    /// The one beside it, for what crosses clusters.
    Second,
}

/// A cluster's only node.
pub struct Node {
    /// Its name, which is that of its container.
    pub name: String,
    /// Its address on the network that the nodes of both clusters share.
    pub address: String,
}

impl Cluster {
    /// The file that says how to reach it.
    ///
    /// # Errors
    /// If `KUBECONFIG` is not set.
    pub fn kubeconfig(self) -> Result<PathBuf> {
        let first = env::var("KUBECONFIG");
        let first = first.context(
            "KUBECONFIG is not set: run `make install` and `eval \"$(e2e/cluster/cluster env)\"`",
        )?;
        Ok(match self {
            Self::First => first.into(),
            Self::Second => format!("{first}-second").into(),
        })
    }

    /// A client of it.
    ///
    /// # Errors
    /// If it is not there.
    pub async fn client(self) -> Result<Client> {
        self.client_by(true).await
    }

    /// A client of it that asks once, where [`Self::client`] asks again after 429, 503 and 504: for tests of a refusal
    /// that is for the moment alone, such as that of an eviction.
    ///
    /// # Errors
    /// If it is not there.
    pub async fn client_that_asks_once(self) -> Result<Client> {
        self.client_by(false).await
    }

    /// A client in the name of another user, whom the API server takes an administrator to be.
    ///
    /// # Errors
    /// If it is not there.
    pub async fn client_as(self, user: &str, groups: &[&str]) -> Result<Client> {
        let mut config = self.config().await?;
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups =
            Some(groups.iter().map(|group| (*group).to_owned()).collect());
        Ok(Client::try_from(config)?)
    }

    async fn client_by(self, asks_again: bool) -> Result<Client> {
        let mut config = self.config().await?;
        config.default_retry = asks_again;
        Ok(Client::try_from(config)?)
    }

    async fn config(self) -> Result<Config> {
        let how = match self {
            Self::First => "run `make install`",
            Self::Second => "run `make second`",
        };
        let file = self.kubeconfig()?;
        let connect = async {
            let config = Kubeconfig::read_from(&file)?;
            let options = KubeConfigOptions::default();
            anyhow::Ok(Config::from_custom_kubeconfig(config, &options).await?)
        };
        connect
            .await
            .with_context(|| format!("no cluster by {}: {how}", file.display()))
    }

    /// Runs a program that talks to it (kubectl, helm), and returns what it printed.
    ///
    /// # Errors
    /// If it fails.
    pub async fn run(self, program: &str, arguments: &[&str]) -> Result<String> {
        let file = self.kubeconfig()?;
        let file = file.to_string_lossy();
        tools::run_with(&[("KUBECONFIG", &file)], program, arguments).await
    }

    /// Gives the chart that is installed in it another value, such as `certificates.life="3m"` (JSON), and waits until
    /// the operator runs with it.
    ///
    /// # Errors
    /// If helm fails.
    pub async fn set_value(self, value: &str) -> Result<()> {
        let upgrade = [
            "upgrade",
            "muxtunnel",
            "charts/muxtunnel",
            "--namespace=muxtunnel-system",
            "--reuse-values",
            "--set-json",
            value,
            "--wait",
            "--timeout=180s",
            "--force-conflicts",
        ];
        self.run("helm", &upgrade).await?;
        Ok(())
    }

    /// Installs today's chart in it, whatever was there before.
    ///
    /// # Errors
    /// If the operator does not become ready.
    pub async fn install(self) -> Result<()> {
        let script = tools::checkout().join("e2e/install");
        let which: &[&str] = match self {
            Self::First => &[],
            Self::Second => &["second"],
        };
        tools::run(script, which).await?;
        Ok(())
    }

    /// Its node.
    ///
    /// # Errors
    /// If it cannot be asked for, or has no address.
    pub async fn node(self) -> Result<Node> {
        let nodes: Api<KubernetesNode> = Api::all(self.client().await?);
        let node = nodes.list(&ListParams::default()).await?.items.pop();
        let node = node.context("the cluster has no node")?;
        let addresses = node.status.iter().flat_map(|status| &status.addresses);
        let address = addresses
            .flatten()
            .find(|address| address.type_ == "InternalIP")
            .map(|address| address.address.clone());
        Ok(Node {
            name: node.name_any(),
            address: address.context("the node has no address")?,
        })
    }
}

impl Node {
    /// Runs a script of bash on the node, as root, and returns what it printed.
    ///
    /// # Errors
    /// If it fails.
    pub async fn run(&self, script: &str) -> Result<String> {
        tools::run("docker", &["exec", &self.name, "bash", "-euc", script]).await
    }
}

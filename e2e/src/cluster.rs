//! The two kind clusters, and the node of each, which is a docker container.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node as KubernetesNode;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};

use crate::tools;

/// A cluster that `e2e/cluster/cluster up` or `e2e/cluster/cluster up second` creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    /// The cluster that `KUBECONFIG` names.
    First,
    /// The second cluster, for tests across clusters.
    Second,
}

/// A cluster's only node.
pub struct Node {
    /// The node's name, which is the name of its container.
    pub name: String,
    /// The node's address on the network that the nodes of both clusters share.
    pub address: String,
}

impl Cluster {
    /// The kubeconfig of the cluster.
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

    /// A client of the cluster.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub async fn client(self) -> Result<Client> {
        self.client_by(true).await
    }

    /// A client without retries, for tests of temporary refusals, such as the refusal of an
    /// eviction. [`Self::client`] would retry after the HTTP status codes 429, 503 and 504.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub async fn client_that_asks_once(self) -> Result<Client> {
        self.client_by(false).await
    }

    /// A client that impersonates another user. Administrators have this right.
    ///
    /// # Errors
    /// If the cluster does not answer.
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
            .with_context(|| format!("cannot reach the cluster of {}: {how}", file.display()))
    }

    /// Runs a program with the cluster's kubeconfig (kubectl, helm). Returns its output.
    ///
    /// # Errors
    /// If the program fails.
    pub async fn run(self, program: &str, arguments: &[&str]) -> Result<String> {
        let file = self.kubeconfig()?;
        let file = file.to_string_lossy();
        tools::run_with(&[("KUBECONFIG", &file)], program, arguments).await
    }

    /// Changes a value of the installed chart, such as `class.images.gateway=""` (JSON). Waits until
    /// the operator runs with the new value.
    ///
    /// # Errors
    /// If helm fails.
    pub async fn set_value(self, value: &str) -> Result<()> {
        let upgrade = [
            "upgrade",
            "muxtunnel",
            "charts/muxtunnel",
            "--namespace=muxtunnel-system",
            "--reset-then-reuse-values",
            "--set-json",
            value,
            "--wait",
            "--timeout=180s",
            "--force-conflicts",
        ];
        self.run("helm", &upgrade).await?;
        Ok(())
    }

    /// Installs the current chart, whether or not an installation exists.
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

    /// The node of the cluster.
    ///
    /// # Errors
    /// If the node cannot be read, or has no address.
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
    /// Runs a bash script on the node, as root. Returns its output.
    ///
    /// # Errors
    /// If the program fails.
    pub async fn run(&self, script: &str) -> Result<String> {
        tools::run("docker", &["exec", &self.name, "bash", "-euc", script]).await
    }
}

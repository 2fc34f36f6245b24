//! `peer`: the MuxPeers of exits. [`change`] writes them, [`list`] shows them. Other commands use
//! [`exit`], [`Wanted`] and [`PeerView`].

mod add;
mod change;
mod list;
mod view;

use anyhow::anyhow;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use muxtunnel_crds::{MuxPeer, Rule};
use muxtunnel_gateway_config::GatewayKey;
use serde_json::{Value, json};

use crate::args::{ClusterArgs, PeerCommand};
use crate::cluster::{Cluster, failed, failed_with_hint, refusal};
use crate::end::{Ended, Failure};
use crate::object::{self, Change, Gateways, Kind, Peer};
use crate::output::Terminal;
pub(crate) use view::{HEAD, PeerView};

/// Runs a subcommand of `peer`.
pub(crate) async fn run(
    command: &PeerCommand,
    to: &ClusterArgs,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    match command {
        PeerCommand::Add(args) => add::run(args, to, terminal).await,
        PeerCommand::List(args) => list::run(args, to, terminal).await,
        PeerCommand::Suspend(args) => {
            change::run(args, change::Action::Suspend, to, terminal).await
        }
        PeerCommand::Resume(args) => change::run(args, change::Action::Resume, to, terminal).await,
        PeerCommand::Remove(args) => change::run(args, change::Action::Remove, to, terminal).await,
    }
}

/// Reads a MuxExit that can have peers with public keys.
pub(crate) async fn exit(cluster: &Cluster, name: &str) -> Result<Gateways, Failure> {
    let exit = object::get(cluster, Kind::Exit, name).await?;
    match problem_of_exit(&exit) {
        Some(problem) => Err(Failure::Failed(anyhow!(
            "the MuxExit {}/{name} {problem}",
            cluster.namespace
        ))),
        None => Ok(exit),
    }
}

/// Why a MuxExit has no peers with public keys.
pub(crate) fn problem_of_exit(exit: &Gateways) -> Option<String> {
    let mode = object::security_mode(exit);
    (mode != "PublicKeys").then(|| {
        format!("has the security mode {mode}, and public keys need the mode PublicKeys: remove spec.security")
    })
}

/// The reverse ports of an exit, with their names.
pub(crate) fn reverse_ports(exit: &Gateways) -> Vec<(&str, u64)> {
    let ports = exit.spec["reversePorts"].as_array().into_iter().flatten();
    ports
        .filter_map(|one| Some((one["name"].as_str()?, one["port"].as_u64()?)))
        .collect()
}

/// The reverse ports of an exit, for an error text.
pub(crate) fn reverse_ports_text(exit: &Gateways) -> String {
    let ports: Vec<_> = reverse_ports(exit)
        .iter()
        .map(|(name, port)| format!("{name} (port {port})"))
        .collect();
    match ports.as_slice() {
        [] => "add one to its spec.reversePorts first".to_owned(),
        ports => format!("its reverse ports are {}", ports.join(", ")),
    }
}

/// A MuxPeer to apply.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) exit: String,
    pub(crate) keys: Vec<GatewayKey>,
    pub(crate) expires: Option<Timestamp>,
    pub(crate) ttl_seconds: Option<u64>,
    pub(crate) allow: Vec<Rule>,
    pub(crate) reverse_ports: Vec<String>,
}

impl Wanted {
    /// The manifest, with only the fields that are set.
    pub(crate) fn manifest(&self) -> Value {
        let keys: Vec<_> = self.keys.iter().map(ToString::to_string).collect();
        let mut spec = json!({"exitRef": {"name": self.exit}, "publicKeys": keys});
        if let Some(expires) = self.expires {
            spec["expirationTime"] = json!(expires.to_string());
        }
        if let Some(seconds) = self.ttl_seconds {
            spec["ttlSecondsAfterExpiration"] = json!(seconds);
        }
        if !self.allow.is_empty() {
            spec["allow"] = json!(self.allow);
        }
        if !self.reverse_ports.is_empty() {
            spec["reversePorts"] = json!(self.reverse_ports);
        }
        json!({
            "apiVersion": MuxPeer::api_version(&()), "kind": MuxPeer::kind(&()),
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": spec,
        })
    }

    /// Why an existing MuxPeer cannot become this one.
    pub(crate) fn problem_of(&self, existing: &Peer) -> Option<String> {
        let exit = existing.spec["exitRef"]["name"]
            .as_str()
            .unwrap_or_default();
        (exit != self.exit).then(|| {
            format!(
                "the MuxPeer {}/{} exists, and belongs to the exit {exit}: choose another name",
                self.namespace, self.name
            )
        })
    }

    /// Applies the MuxPeer.
    pub(crate) async fn apply(&self, cluster: &Cluster) -> Result<(Peer, Change), Failure> {
        let existing = read(cluster, &self.namespace, &self.name).await?;
        if let Some(problem) = existing.as_ref().and_then(|peer| self.problem_of(peer)) {
            return Err(Failure::Failed(anyhow!(problem)));
        }
        let api = object::peers_api(&cluster.client, Some(&self.namespace));
        let applied = object::apply(&api, &self.manifest()).await;
        let applied = applied.map_err(|error| self.not_applied(error))?;
        let change = Change::between(existing.as_ref(), &applied);
        Ok((applied, change))
    }

    /// The error for a MuxPeer that could not be applied.
    pub(crate) fn not_applied(&self, error: kube::Error) -> anyhow::Error {
        let hint = match refusal(&error) {
            Some(409) => {
                "; another tool manages the MuxPeer: change it there, or choose another name"
            }
            _ => "",
        };
        let doing = format!(
            "cannot apply the MuxPeer {} in namespace {}",
            self.name, self.namespace
        );
        failed_with_hint(&doing, error, hint)
    }
}

/// Reads a MuxPeer, if it exists.
pub(crate) async fn read(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> Result<Option<Peer>, Failure> {
    let api = object::peers_api(&cluster.client, Some(namespace));
    let doing = format!("cannot read the MuxPeer {name} in namespace {namespace}");
    let peer = api.get_opt(name).await;
    Ok(peer.map_err(|error| failed(&doing, error))?)
}

/// The time in whole seconds, as the API server stores it.
pub(crate) fn in_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

//! `peer suspend`, `peer resume` and `peer remove`.

use anyhow::anyhow;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde::Serialize;
use serde_json::json;

use super::read;
use super::view::exit_of;
use crate::args::{ClusterArgs, PeerNameArgs};
use crate::cluster::{self, failed};
use crate::end::{Ended, Failure};
use crate::object::{self, MANAGER, Peer};
use crate::output::{Document, Style, Terminal};

/// What to do with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Action {
    Suspend,
    Resume,
    Remove,
}

impl Action {
    fn verb(self) -> &'static str {
        match self {
            Self::Suspend => "suspend",
            Self::Resume => "resume",
            Self::Remove => "remove",
        }
    }

    /// What the exit's gateways do after they have read the change.
    fn effect(self) -> &'static str {
        match self {
            Self::Suspend => {
                "suspended. The exit refuses the peer, and ends its carriers and streams"
            }
            Self::Resume => "resumed. The exit accepts the peer again",
            Self::Remove => "removed. The exit ends the carriers and the streams of the peer",
        }
    }
}

pub(super) async fn run(
    args: &PeerNameArgs,
    action: Action,
    to: &ClusterArgs,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    let cluster = cluster::connect(to).await?;
    let (namespace, name) = (cluster.namespace.as_str(), args.name.as_str());
    let Some(peer) = read(&cluster, namespace, name).await? else {
        return Err(Failure::Failed(anyhow!(
            "there is no MuxPeer {name} in namespace {namespace}; `peer list -A` lists all peers"
        )));
    };
    let api = object::peers_api(&cluster.client, Some(namespace));
    let done = match action {
        Action::Suspend | Action::Resume if is_suspended(&peer) == (action == Action::Suspend) => {
            Ok(())
        }
        // An apply of this field would remove the other fields that this program has applied.
        Action::Suspend | Action::Resume => {
            let how = PatchParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let patch = json!({"spec": {"suspend": action == Action::Suspend}});
            api.patch(name, &how, &Patch::Merge(&patch)).await.map(drop)
        }
        Action::Remove => api.delete(name, &DeleteParams::default()).await.map(drop),
    };
    let doing = format!("cannot {} the MuxPeer {namespace}/{name}", action.verb());
    done.map_err(|error| failed(&doing, error))?;
    let changed = PeerChanged {
        action,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        exit: exit_of(&peer).to_owned(),
    };
    terminal.print(&changed, args.output)?;
    Ok(Ended::Good)
}

fn is_suspended(peer: &Peer) -> bool {
    peer.spec["suspend"].as_bool().unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerChanged {
    action: Action,
    namespace: String,
    name: String,
    exit: String,
}

impl Document for PeerChanged {
    const KIND: &'static str = "PeerChanged";

    fn text(&self, _: Style) -> String {
        format!(
            "peer {}/{} of the exit {}: {} when its gateways have read the change",
            self.namespace,
            self.name,
            self.exit,
            self.action.effect()
        )
    }
}

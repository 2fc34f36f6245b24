//! `status`: what there is to know of tunnels, of both sides in one view.
//!
//! Reads objects and Events; [`mod@view`] makes documents of them and [`text`] what people read, both pure.
//! [`wait`] is `--wait`.

mod text;
mod view;
mod wait;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::args::{ClusterArgs, StatusArgs, WaitFor};
use crate::cluster::{self, Cluster, failed, in_words};
use crate::end::{Ended, Failure};
use crate::object::{self, Tunnel};
use crate::output::Terminal;
use view::{TunnelList, TunnelStatus, TunnelView};

/// Shows one tunnel, or all.
pub(crate) async fn run(
    args: &StatusArgs,
    to: &ClusterArgs,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    let Some(name) = &args.name else {
        if args.wait != WaitFor::None {
            return Err(Failure::Usage("--wait needs the NAME of a tunnel".into()));
        }
        return list(args, to, terminal).await;
    };
    let peer = peer(args, name)?;
    let near = cluster::connect(to).await?;
    let tunnel = wait::read(&near, name, args.wait, args.timeout).await?;
    let mut status = TunnelStatus::new(view(&near, &tunnel).await, Timestamp::now());
    if let Some(peer) = peer {
        let far = cluster::connect(&ClusterArgs {
            namespace: peer.namespace.or_else(|| tunnel.namespace()),
            context: peer.context.or_else(|| to.context.clone()),
            kubeconfig: to.kubeconfig.clone(),
        })
        .await?;
        let tunnel = wait::read(&far, &peer.name, WaitFor::None, args.timeout).await?;
        status.peer = Some(view(&far, &tunnel).await);
    }
    terminal.print(&status, args.format.format)?;
    Ok(Ended::Good)
}

/// The other side's object.
struct Peer {
    /// `None`: the context of this side.
    context: Option<String>,
    /// `None`: the namespace of this side.
    namespace: Option<String>,
    name: String,
}

/// The other side, if it was asked for; `name` is this side's.
fn peer(args: &StatusArgs, name: &str) -> Result<Option<Peer>, Failure> {
    let context = args.peer_context.clone();
    let Some(peer) = &args.peer else {
        return Ok(context.map(|context| Peer {
            context: Some(context),
            namespace: None,
            name: name.to_owned(),
        }));
    };
    let (namespace, name) = match peer.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, peer.as_str()),
    };
    if name.is_empty() || name.contains('/') || namespace.is_some_and(str::is_empty) {
        let message = format!("--peer {peer:?} is neither NAME nor NAMESPACE/NAME");
        return Err(Failure::Usage(message));
    }
    Ok(Some(Peer {
        context,
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
    }))
}

async fn list(args: &StatusArgs, to: &ClusterArgs, terminal: &Terminal) -> Result<Ended, Failure> {
    let cluster = cluster::connect(to).await?;
    let namespace = (!args.all_namespaces).then_some(cluster.namespace.as_str());
    let tunnels = object::tunnels(&cluster.client, namespace)
        .await
        .map_err(|error| failed("cannot list MuxTunnels", error))?;
    if tunnels.is_empty() {
        eprintln!(
            "there is no MuxTunnel in {}",
            namespace.map_or("any namespace".to_owned(), |name| format!(
                "namespace {name}"
            ))
        );
    }
    let list = TunnelList::new(&tunnels, args.all_namespaces, Timestamp::now());
    terminal.print(&list, args.format.format)?;
    Ok(Ended::Good)
}

/// A tunnel with its last Events. A user who may not read Events gets a note and the rest.
async fn view(cluster: &Cluster, tunnel: &Tunnel) -> TunnelView {
    let events = object::events(&cluster.client, tunnel).await;
    let events = events.unwrap_or_else(|error| {
        eprintln!("Events are not shown: {}", in_words(&error));
        Vec::new()
    });
    TunnelView::new(tunnel, &events, cluster.context.as_deref())
}

#[cfg(test)]
mod tests;

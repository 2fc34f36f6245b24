//! `status`: shows tunnels, and both sides of a tunnel in one view.
//!
//! This file reads objects and Events. [`mod@view`] turns them into documents, and [`text`] turns
//! documents into text. Both are pure. [`wait`] implements `--wait`, and [`mod@watch`] implements
//! `--watch`.

mod connect;
mod text;
mod view;
mod wait;
mod watch;

use std::cell::RefCell;
use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::args::{ClusterArgs, StatusArgs, WaitFor};
use crate::cluster::{self, Cluster, failed, in_words};
use crate::end::{Ended, Failure};
use crate::object::{self, Tunnel};
use crate::output::{Document, Terminal};
use crate::peer::PeerView;
use view::{TunnelList, TunnelStatus, TunnelView};

/// Shows one tunnel, or all tunnels.
pub(crate) async fn run(
    args: &StatusArgs,
    to: &ClusterArgs,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    let terminal = &terminal.with_headers(!args.no_headers);
    let notes = Notes::default();
    let Some(name) = &args.name else {
        if args.wait != WaitFor::None {
            return Err(Failure::Usage("--wait needs the NAME of a tunnel".into()));
        }
        let cluster = cluster::connect(to).await?;
        let read = async || list(args, &cluster, &notes).await;
        return show(args, terminal, read).await;
    };
    let peer = peer(args, name)?;
    let near = cluster::connect(to).await?;
    let tunnel = wait::read(&near, name, args.wait, args.timeout).await?;
    let far = match peer {
        Some(peer) => {
            let far = ClusterArgs {
                namespace: peer.namespace.or_else(|| tunnel.namespace()),
                context: peer.context.or_else(|| to.context.clone()),
                kubeconfig: to.kubeconfig.clone(),
            };
            Some((cluster::connect(&far).await?, peer.name))
        }
        None => None,
    };
    let mut waited_for = Some(tunnel);
    let read = async || {
        let tunnel = match waited_for.take() {
            Some(tunnel) => tunnel,
            None => wait::read(&near, name, WaitFor::None, args.timeout).await?,
        };
        let view = view(&near, &tunnel, &notes).await;
        let mut status = TunnelStatus::new(view, Timestamp::now());
        if let Some((far, name)) = &far {
            let tunnel = wait::read(far, name, WaitFor::None, args.timeout).await?;
            status.peer = Some(self::view(far, &tunnel, &notes).await);
        }
        Ok(status)
    };
    show(args, terminal, read).await
}

/// Reads a document and prints it, once or at each change.
async fn show<D: Document>(
    args: &StatusArgs,
    terminal: &Terminal,
    mut read: impl AsyncFnMut() -> Result<D, Failure>,
) -> Result<Ended, Failure> {
    if args.watch {
        return watch::watch(terminal, args.output, read).await;
    }
    terminal.print(&read().await?, args.output)?;
    Ok(Ended::Good)
}

/// Prints notes to standard error, each note once.
#[derive(Default)]
struct Notes(RefCell<BTreeSet<String>>);

impl Notes {
    fn tell(&self, note: String) {
        if !self.0.borrow().contains(&note) {
            eprintln!("{note}");
            self.0.borrow_mut().insert(note);
        }
    }
}

/// The other side's object.
struct Peer {
    /// The context of the other side. `None`: the context of this side.
    context: Option<String>,
    /// The namespace of the other side. `None`: the namespace of this side.
    namespace: Option<String>,
    name: String,
}

/// The other side, if the flags name it. `name` is the name of this side.
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

/// The tunnels of the namespace, or of all namespaces.
async fn list(args: &StatusArgs, cluster: &Cluster, notes: &Notes) -> Result<TunnelList, Failure> {
    let namespace = (!args.all_namespaces).then_some(cluster.namespace.as_str());
    let tunnels = object::tunnels(&cluster.client, namespace)
        .await
        .map_err(|error| failed("cannot list MuxTunnels", error))?;
    if tunnels.is_empty() {
        let place = namespace.map_or("any namespace".to_owned(), |name| {
            format!("namespace {name}")
        });
        notes.tell(format!("there are no MuxTunnels in {place}"));
    }
    tunnels
        .iter()
        .filter_map(object::unreadable)
        .for_each(|note| notes.tell(note));
    Ok(TunnelList::new(
        &tunnels,
        args.all_namespaces,
        Timestamp::now(),
    ))
}

/// A tunnel with its last Events and its peers. If Events cannot be read, prints a note and returns
/// the tunnel without Events.
async fn view(cluster: &Cluster, tunnel: &Tunnel, notes: &Notes) -> TunnelView {
    if let Some(note) = object::unreadable(tunnel) {
        notes.tell(note);
    }
    let events = object::events(&cluster.client, tunnel).await;
    let events = events.unwrap_or_else(|error| {
        notes.tell(format!("Events are not shown: {}", in_words(&error)));
        Vec::new()
    });
    let mut view = TunnelView::new(tunnel, &events, cluster.context.as_deref());
    if object::side(tunnel) == "Exit" && object::has_public_keys(tunnel) {
        view.peers = peers(cluster, tunnel, notes).await;
    }
    view
}

/// The peers of an exit. If peers cannot be read, prints a note.
async fn peers(cluster: &Cluster, exit: &Tunnel, notes: &Notes) -> Vec<PeerView> {
    let namespace = exit.namespace();
    let peers = object::peers(&cluster.client, namespace.as_deref()).await;
    let peers = peers.unwrap_or_else(|error| {
        notes.tell(format!("Peers are not shown: {}", in_words(&error)));
        Vec::new()
    });
    let views = peers.iter().map(PeerView::new);
    views.filter(|peer| peer.exit == exit.name_any()).collect()
}

#[cfg(test)]
mod tests;

//! `status`: shows tunnels, exits and rendezvous, and a tunnel with its exit in one view.
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

use crate::args::{ClusterArgs, ObjectName, StatusArgs, WaitFor};
use crate::cluster::{self, Cluster, failed, in_words, refusal};
use crate::end::{Ended, Failure};
use crate::object::{self, Gateways, Kind};
use crate::output::{Document, Terminal};
use crate::peer::PeerView;
use view::{StatusDocument, StatusList, View};

/// Shows one object, or all objects.
pub(crate) async fn run(
    args: &StatusArgs,
    to: &ClusterArgs,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    let terminal = &terminal.with_headers(!args.no_headers);
    let notes = Notes::default();
    let Some(object) = &args.object else {
        if args.wait != WaitFor::None {
            return Err(Failure::Usage("--wait needs the NAME of an object".into()));
        }
        let cluster = cluster::connect(to).await?;
        let read = async || list(args, &cluster, &notes).await;
        return show(args, terminal, read).await;
    };
    let exit = exit(args, object)?;
    let near = cluster::connect(to).await?;
    let first = wait::read(&near, object, args.wait, args.timeout).await?;
    let far = match exit {
        Some((namespace, exit)) => {
            let far = ClusterArgs {
                namespace: namespace.or_else(|| first.namespace()),
                context: args.exit_context.clone().or_else(|| to.context.clone()),
                kubeconfig: to.kubeconfig.clone(),
            };
            Some((cluster::connect(&far).await?, exit))
        }
        None => None,
    };
    let mut waited_for = Some(first);
    let read = async || {
        let now = match waited_for.take() {
            Some(object) => object,
            None => object::get(&near, object.kind, &object.name).await?,
        };
        let view = view(&near, object.kind, &now, &notes).await;
        let exit = match &far {
            Some((far, name)) => {
                let exit = object::get(far, Kind::Exit, name).await?;
                Some(self::view(far, Kind::Exit, &exit, &notes).await)
            }
            None => None,
        };
        Ok(StatusDocument {
            object: view,
            exit,
            now: Timestamp::now(),
        })
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

/// The namespace and the name of the MuxExit to show, if the flags request one.
fn exit(
    args: &StatusArgs,
    object: &ObjectName,
) -> Result<Option<(Option<String>, String)>, Failure> {
    if args.exit.is_none() && args.exit_context.is_none() {
        return Ok(None);
    }
    if object.kind != Kind::Tunnel {
        let message = "--exit and --exit-context need the NAME of a MuxTunnel";
        return Err(Failure::Usage(message.to_owned()));
    }
    let exit = args.exit.as_ref().unwrap_or(&object.name);
    let (namespace, name) = match exit.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, exit.as_str()),
    };
    if name.is_empty() || name.contains('/') || namespace.is_some_and(str::is_empty) {
        let message = format!("--exit {exit:?} is neither NAME nor NAMESPACE/NAME");
        return Err(Failure::Usage(message));
    }
    Ok(Some((namespace.map(str::to_owned), name.to_owned())))
}

/// The objects of the namespace, or of all namespaces.
async fn list(args: &StatusArgs, cluster: &Cluster, notes: &Notes) -> Result<StatusList, Failure> {
    let namespace = (!args.all_namespaces).then_some(cluster.namespace.as_str());
    let mut items = Vec::new();
    for kind in Kind::ALL {
        let objects = object::all(&object::api(&cluster.client, kind, namespace)).await;
        let objects = match objects {
            // Who may not read one kind may read another one.
            Err(error) if kind != Kind::Tunnel && refusal(&error) == Some(403) => {
                let (kind, why) = (kind.name(), in_words(&error));
                notes.tell(format!("objects of the kind {kind} are not shown: {why}"));
                continue;
            }
            objects => {
                objects.map_err(|error| failed(&format!("cannot list {}", kind.plural()), error))?
            }
        };
        let unreadable = objects.iter().filter_map(object::unreadable);
        unreadable.for_each(|note| notes.tell(note));
        items.extend(
            objects
                .iter()
                .map(|object| View::new(kind, object, &[], None)),
        );
    }
    if items.is_empty() {
        let place = cluster::place(namespace);
        notes.tell(format!(
            "there are no tunnels, exits and rendezvous in {place}"
        ));
    }
    Ok(StatusList {
        items,
        with_namespaces: args.all_namespaces,
        now: Timestamp::now(),
    })
}

/// An object with its last Events and its peers. If Events cannot be read, prints a note and returns
/// the object without Events.
async fn view(cluster: &Cluster, kind: Kind, object: &Gateways, notes: &Notes) -> View {
    if let Some(note) = object::unreadable(object) {
        notes.tell(note);
    }
    let events = object::events(&cluster.client, object).await;
    let events = events.unwrap_or_else(|error| {
        notes.tell(format!("Events are not shown: {}", in_words(&error)));
        Vec::new()
    });
    let mut view = View::new(kind, object, &events, cluster.context.as_deref());
    if kind == Kind::Exit && object::security_mode(object) != "None" {
        view.peers = peers(cluster, object, notes).await;
    }
    view
}

/// The peers of an exit. If peers cannot be read, prints a note.
async fn peers(cluster: &Cluster, exit: &Gateways, notes: &Notes) -> Vec<PeerView> {
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

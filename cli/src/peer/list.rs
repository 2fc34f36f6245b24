//! `peer list`.

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::view::{HEAD, PeerView, exit_of};
use crate::args::{ClusterArgs, PeerListArgs};
use crate::cluster::{self, failed};
use crate::end::{Ended, Failure};
use crate::object;
use crate::output::{Document, Style, Terminal};
use crate::table::draw;

pub(super) async fn run(
    args: &PeerListArgs,
    to: &ClusterArgs,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    let cluster = cluster::connect(to).await?;
    let namespace = (!args.all_namespaces).then_some(cluster.namespace.as_str());
    let mut peers = object::peers(&cluster.client, namespace)
        .await
        .map_err(|error| failed("cannot list MuxPeers", error))?;
    let exit = args.exit.as_deref();
    peers.retain(|peer| exit.is_none_or(|exit| exit == exit_of(peer)));
    if peers.is_empty() {
        let place = cluster::place(namespace);
        let of = exit.map_or_else(String::new, |exit| format!(" of the exit {exit}"));
        eprintln!("there are no MuxPeers{of} in {place}");
    }
    for note in peers.iter().filter_map(object::unreadable) {
        eprintln!("{note}");
    }
    let list = PeerList {
        items: peers.iter().map(PeerView::new).collect(),
        with_namespaces: args.all_namespaces,
        now: Timestamp::now(),
    };
    terminal
        .with_headers(!args.no_headers)
        .print(&list, args.output)?;
    Ok(Ended::Good)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerList {
    items: Vec<PeerView>,
    #[serde(skip)]
    with_namespaces: bool,
    #[serde(skip)]
    now: Timestamp,
}

impl Document for PeerList {
    const KIND: &'static str = "PeerList";

    fn text(&self, style: Style) -> String {
        let mut head = HEAD.to_vec();
        let mut rows: Vec<_> = self
            .items
            .iter()
            .map(|peer| peer.row(self.now, style.wide))
            .collect();
        if self.with_namespaces {
            head.insert(0, "NAMESPACE");
            for (row, peer) in rows.iter_mut().zip(&self.items) {
                row.insert(0, peer.namespace.clone());
            }
        }
        draw(&head, rows, style)
    }

    fn names(&self) -> Vec<String> {
        let name = |peer: &PeerView| format!("muxpeer.muxtunnel.dev/{}", peer.name);
        self.items.iter().map(name).collect()
    }
}

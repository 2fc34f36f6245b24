//! The labels of namespaces: from a watch if the operator serves all namespaces, else from reads of
//! the served namespaces, because a role in a namespace permits no watch.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tracing::warn;

use super::Classes;
use crate::watch_clock::WatchClock;
use crate::watches::WATCH_SECONDS;

/// Pause between two reads of a namespace.
const READ_AFTER: Duration = Duration::from_secs(30);

/// Watches all namespaces.
pub(super) async fn follow(classes: Classes, client: Client, clock: Arc<WatchClock>) {
    let api: Api<Namespace> = Api::all(client);
    clock.expect(api.resource_url());
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(one)) => {
                listed.push(one.name_any());
                label(&classes, one);
            }
            Ok(Event::InitDone) => {
                let mut known = classes.0.namespaces.lock();
                known.retain(|name, _| listed.contains(name));
                listed.clear();
            }
            Ok(Event::Apply(one)) => label(&classes, one),
            Ok(Event::Delete(one)) => classes.label(&one.name_any(), None),
            Err(error) => warn!(%error, "the watch of namespaces failed and restarts"),
        }
    }
}

/// Reads one namespace again and again.
pub(super) async fn poll(classes: Classes, client: Client, name: String) {
    let api: Api<Namespace> = Api::all(client);
    loop {
        match api.get_opt(&name).await {
            Ok(Some(one)) => label(&classes, one),
            Ok(None) => classes.label(&name, None),
            Err(error) => warn!(name, %error, "cannot read the labels of a namespace"),
        }
        tokio::time::sleep(READ_AFTER).await;
    }
}

fn label(classes: &Classes, mut namespace: Namespace) {
    let labels = std::mem::take(namespace.labels_mut());
    classes.label(&namespace.name_any(), Some(labels));
}

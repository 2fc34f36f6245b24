//! The labels of namespaces: from a watch if the operator serves all namespaces, else from reads of
//! the served namespaces, because a role in a namespace permits no watch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tracing::warn;

use super::Classes;
use crate::class::Labels;
use crate::watch_clock::WatchClock;
use crate::watches::WATCH_SECONDS;

/// Pause between two reads of a namespace.
const READ_AFTER: Duration = Duration::from_secs(30);

/// The labels of the known namespaces.
#[derive(Debug, Default)]
pub(super) struct Namespaces(BTreeMap<String, Labels>);

impl Namespaces {
    pub(super) fn labels(&self, name: &str) -> Option<&Labels> {
        self.0.get(name)
    }

    /// Sets the labels. Returns whether they have changed.
    pub(super) fn set(&mut self, name: &str, labels: Option<Labels>) -> bool {
        let Some(labels) = labels else {
            self.0.remove(name);
            return false;
        };
        if self.0.get(name) == Some(&labels) {
            return false;
        }
        self.0.insert(name.to_owned(), labels);
        true
    }

    /// Forgets the namespaces that are not in `names`.
    fn retain(&mut self, names: &[String]) {
        self.0.retain(|name, _| names.contains(name));
    }
}

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
                classes.0.namespaces.lock().retain(&listed);
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

//! Grants: permissions for references from other namespaces, in MuxGrants and, where the Gateway
//! API is installed, in ReferenceGrants.
//!
//! Watches fill one cache per kind and watched namespace. [`Grants::permit`] reads the caches
//! without a request. Both kinds have the same effect, because the creator of either kind needs
//! permissions in the target's namespace. A MuxGrant stays in force when the Gateway API is
//! installed. Until all watches have listed their objects, the answer for a reference that no known
//! grant permits is [`NotKnown`], not a refusal. A restart of the operator therefore does not
//! remove forwards temporarily. The caches keep only the parts of grants about MuxTunnels and
//! Services, and at most [`GRANTS_MAX`] grants of a kind per namespace. This limit prevents an
//! account that creates grants from filling the operator's memory.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future;
use futures::stream::{self, Stream, StreamExt};
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::discovery::pinned_kind;
use kube::error::DiscoveryError;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use muxtunnel_crds::{MuxGrant, MuxGrantSpec};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::service_name::ServiceName;
use crate::watch_clock::WatchClock;
use crate::watches::WATCH_SECONDS;

/// The API group of ReferenceGrants.
const GATEWAY_API: &str = "gateway.networking.k8s.io";
/// The versions of the group that contain ReferenceGrants, the newest first.
const GATEWAY_API_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// Maximum number of grants of a kind per namespace. The schemas limit each grant to 16 x 16
/// entries.
const GRANTS_MAX: usize = 256;
/// How often the operator checks whether ReferenceGrants are installed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// Pause before the next check or watch, if the API server gave no answer or a watch ended.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Why it is not known whether a reference is permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotKnown {
    /// The API server has not listed the grants yet.
    #[error(
        "the API server has not listed the grants of other namespaces yet: search the operator's log for a failed \
         watch of grants"
    )]
    Unlisted,
    /// This version of the operator cannot decode a grant of the namespace.
    #[error("a grant cannot be decoded: the operator's log names the grant")]
    Undecoded,
}

/// The grants. Clones share one state.
#[derive(Clone)]
pub struct Grants(Arc<Shared>);

struct Shared {
    sources: Mutex<Vec<Source>>,
    changed: watch::Sender<()>,
}

/// Specs of grants, by namespace and name. `None` if the grant cannot be decoded.
type Known = BTreeMap<(String, String), Option<MuxGrantSpec>>;

/// One kind in one watched namespace, or in all namespaces.
#[derive(Debug, Default)]
struct Source {
    /// `None` until the watch has listed the objects.
    known: Option<Known>,
    /// Objects of the list that is in progress.
    listed: Known,
}

impl Grants {
    /// Watches grants in `scopes` (`None`: all namespaces). The future keeps the grants up to date
    /// while it is polled.
    pub fn watch(
        client: &Client,
        scopes: &[Option<String>],
        clock: &Arc<WatchClock>,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let grants = Self::of_sources(2 * scopes.len());
        let mut watches = Vec::new();
        for (index, scope) in scopes.iter().enumerate() {
            let watch = Watch {
                client: client.clone(),
                namespace: scope.clone(),
                clock: clock.clone(),
                grants: grants.clone(),
            };
            watches.push(future::Either::Left(watch.clone().mux_grants(2 * index)));
            watches.push(future::Either::Right(watch.reference_grants(2 * index + 1)));
        }
        let run = async {
            future::join_all(watches).await;
        };
        (grants, run)
    }

    /// Grants without watches. Only [`Self::handle`] fills them.
    pub(crate) fn of_sources(count: usize) -> Self {
        let sources = (0..count).map(|_| Source::default()).collect();
        Self(Arc::new(Shared {
            sources: Mutex::new(sources),
            changed: watch::Sender::new(()),
        }))
    }

    /// Whether the Service's namespace permits objects of `kind` in `namespace` to refer to the
    /// Service.
    ///
    /// # Errors
    /// [`NotKnown`] if no known grant permits the reference, and either a list is missing or a
    /// grant of the Service's namespace cannot be decoded.
    pub fn permit(
        &self,
        (kind, namespace): (&str, &str),
        service: &ServiceName,
    ) -> Result<bool, NotKnown> {
        let sources = self.0.sources.lock();
        let known = sources.iter().filter_map(|source| source.known.as_ref());
        let mut is_undecoded = false;
        for spec in known.flat_map(|known| of_namespace(known, &service.namespace)) {
            match spec {
                Some(spec) if spec.permits(kind, namespace, &service.name) => return Ok(true),
                Some(_) => {}
                None => is_undecoded = true,
            }
        }
        if sources.iter().any(|source| source.known.is_none()) {
            return Err(NotKnown::Unlisted);
        }
        match is_undecoded {
            true => Err(NotKnown::Undecoded),
            false => Ok(false),
        }
    }

    /// Yields an item after each change. One item may represent several changes.
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        stream::unfold(self.0.changed.subscribe(), |mut changed| async move {
            changed.changed().await.ok()?;
            Some(((), changed))
        })
    }

    /// Applies one event of a watch.
    pub(crate) fn handle(&self, source: usize, event: Event<DynamicObject>) {
        let mut sources = self.0.sources.lock();
        let Some(source) = sources.get_mut(source) else {
            return;
        };
        match event {
            Event::Init => return source.listed.clear(),
            Event::InitApply(object) => return put(&mut source.listed, &object),
            Event::InitDone => {
                let listed = Some(std::mem::take(&mut source.listed));
                if source.known == listed {
                    return;
                }
                source.known = listed;
            }
            Event::Apply(object) => put(source.known.get_or_insert_default(), &object),
            Event::Delete(object) => {
                source.known.get_or_insert_default().remove(&key(&object));
            }
        }
        drop(sources);
        self.0.changed.send_replace(());
    }

    /// Handles the case that the kind is not installed.
    fn handle_absent(&self, source: usize) {
        self.handle(source, Event::Init);
        self.handle(source, Event::InitDone);
    }
}

/// The grants of a namespace.
fn of_namespace<'a>(
    known: &'a Known,
    namespace: &'a str,
) -> impl Iterator<Item = &'a Option<MuxGrantSpec>> {
    let first = (namespace.to_owned(), String::new());
    let own = known
        .range(first..)
        .take_while(move |((of, _), _)| of == namespace);
    own.map(|(_, spec)| spec)
}

fn key(object: &DynamicObject) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The part of a grant about objects of this operator and Services. `None` if this part is empty.
fn of_muxtunnel(object: &DynamicObject) -> Result<Option<MuxGrantSpec>, String> {
    let mut spec = object.data.get("spec").cloned().unwrap_or_default();
    // Only the entries about these kinds have to be decoded.
    for (list, group, kinds) in [
        ("from", "muxtunnel.dev", &["MuxTunnel", "MuxExit"][..]),
        ("to", "", &["Service"][..]),
    ] {
        let is_one_of = |field: &Value, known: &[&str]| {
            field.as_str().is_none_or(|field| known.contains(&field))
        };
        let is_own =
            |one: &Value| is_one_of(&one["group"], &[group]) && is_one_of(&one["kind"], kinds);
        if let Some(Value::Array(entries)) = spec.get_mut(list) {
            entries.retain(is_own);
        }
    }
    let spec: MuxGrantSpec =
        serde_path_to_error::deserialize(&spec).map_err(|error| error.to_string())?;
    Ok(Some(spec).filter(|spec| !spec.from.is_empty() && !spec.to.is_empty()))
}

/// Stores a grant. A grant that is being deleted or that concerns other kinds gives no permission.
fn put(known: &mut Known, object: &DynamicObject) {
    let key = key(object);
    let spec = match of_muxtunnel(object) {
        Ok(spec) => spec.map(Some),
        Err(error) => {
            warn!(namespace = key.0, name = key.1, %error, "a grant cannot be decoded");
            Some(None)
        }
    };
    let Some(spec) = spec.filter(|_| object.metadata.deletion_timestamp.is_none()) else {
        known.remove(&key);
        return;
    };
    if of_namespace(known, &key.0).count() >= GRANTS_MAX && !known.contains_key(&key) {
        warn!(
            namespace = key.0,
            name = key.1,
            "a grant is ignored, because its namespace has {GRANTS_MAX} other grants of this kind; merge grants"
        );
        return;
    }
    known.insert(key, spec);
}

/// The parameters of a watch of grants.
#[derive(Clone)]
struct Watch {
    client: Client,
    namespace: Option<String>,
    clock: Arc<WatchClock>,
    grants: Grants,
}

impl Watch {
    async fn mux_grants(self, source: usize) {
        let api = self.api(&ApiResource::erase::<MuxGrant>(&()));
        self.clock.expect(api.resource_url());
        loop {
            self.follow(source, &api).await;
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Follows ReferenceGrants. The Gateway API may be installed or removed while the operator
    /// runs.
    async fn reference_grants(self, source: usize) {
        loop {
            let pause = match served(&self.client).await {
                Ok(Some(resource)) => {
                    info!(
                        version = resource.version,
                        "ReferenceGrants are installed; the operator reads them"
                    );
                    let api = self.api(&resource);
                    self.clock.expect(api.resource_url());
                    self.follow(source, &api).await;
                    self.clock.forget(api.resource_url());
                    RETRY_PAUSE
                }
                Ok(None) => {
                    self.grants.handle_absent(source);
                    REFRESH_INTERVAL
                }
                Err(error) => {
                    warn!(%error, "cannot find out whether ReferenceGrants are installed; the operator tries again");
                    RETRY_PAUSE
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }

    /// Returns when a watch reports that the kind is not installed. The next check has to confirm
    /// the report.
    async fn follow(&self, source: usize, api: &Api<DynamicObject>) {
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        let mut events = watcher(api.clone(), config).default_backoff().boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.grants.handle(source, event),
                Err(error) => {
                    let path = api.resource_url();
                    warn!(path, %error, "a watch of grants failed and restarts");
                    if is_gone(&error) {
                        return;
                    }
                }
            }
        }
    }
}

/// Returns the version in which the API server serves ReferenceGrants, or `None` if they are not
/// installed.
async fn served(client: &Client) -> Result<Option<ApiResource>, kube::Error> {
    for version in GATEWAY_API_VERSIONS {
        let kind = GroupVersionKind::gvk(GATEWAY_API, version, "ReferenceGrant");
        match pinned_kind(client, &kind).await {
            Ok((resource, _)) => return Ok(Some(resource)),
            // The group does not have the kind in this version.
            Err(kube::Error::Discovery(DiscoveryError::MissingKind(_))) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn is_gone(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.code == 404,
        _ => false,
    }
}

#[cfg(test)]
pub(crate) mod tests;

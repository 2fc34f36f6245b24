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
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use muxtunnel_crds::{MuxGrant, MuxGrantSpec};
use parking_lot::{Mutex, MutexGuard};
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
const REFERENCE_GRANT: (&str, &str) = ("ReferenceGrant", "referencegrants");
/// How often the operator checks whether ReferenceGrants are installed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// Pause before the next check or watch, if the API server gave no answer or a watch ended.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The API server has not listed the grants yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the API server has not listed the grants of other namespaces yet: search the operator's log for a failed watch of \
     grants"
)]
pub struct NotKnown;

/// The grants. Clones share one state.
#[derive(Clone)]
pub struct Grants(Arc<Shared>);

struct Shared {
    sources: Mutex<Vec<Source>>,
    changed: watch::Sender<()>,
}

/// Specs of grants, by namespace and name.
type Known = BTreeMap<(String, String), MuxGrantSpec>;

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

    /// Whether the Service's namespace permits MuxTunnels of `namespace` to refer to the Service.
    ///
    /// # Errors
    /// [`NotKnown`] if no known grant permits the reference and a list is missing.
    pub fn permit(&self, namespace: &str, service: &ServiceName) -> Result<bool, NotKnown> {
        let sources = self.lock();
        let permits = |((of, _), spec): (&(String, String), &MuxGrantSpec)| {
            *of == service.namespace && spec.permits(namespace, &service.name)
        };
        let mut known = sources.iter().filter_map(|source| source.known.as_ref());
        if known.any(|known| known.iter().any(permits)) {
            return Ok(true);
        }
        match sources.iter().all(|source| source.known.is_some()) {
            true => Ok(false),
            false => Err(NotKnown),
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
        let mut sources = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, Vec<Source>> {
        let sources = &self.0.sources;
        sources.lock()
    }
}

fn key(object: &DynamicObject) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Stores a grant. A grant that is being deleted or that concerns other kinds gives no permission.
fn put(known: &mut Known, object: &DynamicObject) {
    let key = key(object);
    let spec = object.data.get("spec").cloned().unwrap_or_default();
    let spec = match serde_json::from_value::<MuxGrantSpec>(spec) {
        Ok(spec) => spec.of_tunnels(),
        Err(error) => {
            warn!(namespace = key.0, name = key.1, %error, "a grant is invalid and is ignored");
            None
        }
    };
    let Some(spec) = spec.filter(|_| object.metadata.deletion_timestamp.is_none()) else {
        known.remove(&key);
        return;
    };
    let first = (key.0.clone(), String::new());
    let of_namespace = known.range(first..).take_while(|((of, _), _)| *of == key.0);
    if of_namespace.count() >= GRANTS_MAX && !known.contains_key(&key) {
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
    let (kind, plural) = REFERENCE_GRANT;
    for version in GATEWAY_API_VERSIONS {
        let group_version = format!("{GATEWAY_API}/{version}");
        match client.list_api_group_resources(&group_version).await {
            Ok(list) if list.resources.iter().any(|found| found.name == plural) => {
                let kind = GroupVersionKind::gvk(GATEWAY_API, version, kind);
                return Ok(Some(ApiResource::from_gvk_with_plural(&kind, plural)));
            }
            Ok(_) => {}
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
pub(crate) mod tests {
    use super::*;
    use crate::testing::FakeApi;
    use futures::FutureExt;
    use serde_json::json;

    fn service(namespace: &str, name: &str) -> ServiceName {
        ServiceName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// A grant for MuxTunnels of `from` to the Service `name` of `namespace`.
    pub(crate) fn grant(namespace: &str, from: &str, name: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "muxtunnel.dev/v1alpha1",
            "kind": "MuxGrant",
            "metadata": {"name": "g", "namespace": namespace},
            "spec": {
                "from": [{"group": "muxtunnel.dev", "kind": "MuxTunnel", "namespace": from}],
                "to": [{"group": "", "kind": "Service", "name": name}],
            },
        }))
        .unwrap()
    }

    /// Grants whose watches have listed `objects`.
    pub(crate) fn known(objects: impl IntoIterator<Item = DynamicObject>) -> Grants {
        let grants = Grants::of_sources(1);
        grants.handle(0, Event::Init);
        for object in objects {
            grants.handle(0, Event::InitApply(object));
        }
        grants.handle(0, Event::InitDone);
        grants
    }

    #[test]
    fn a_grant_speaks_of_its_own_namespace_alone() {
        let grants = known([grant("shops", "site", "shop")]);
        assert_eq!(grants.permit("site", &service("shops", "shop")), Ok(true));
        assert_eq!(grants.permit("site", &service("vaults", "shop")), Ok(false));
        assert_eq!(grants.permit("site", &service("shops", "till")), Ok(false));
        assert_eq!(grants.permit("other", &service("shops", "shop")), Ok(false));
    }

    #[test]
    fn what_was_not_heard_yet_is_neither_permitted_nor_refused() {
        let grants = Grants::of_sources(2);
        let shop = service("shops", "shop");
        grants.handle(0, Event::Init);
        grants.handle(0, Event::InitApply(grant("shops", "site", "shop")));
        assert_eq!(grants.permit("site", &shop), Err(NotKnown));
        grants.handle(0, Event::InitDone);
        assert_eq!(grants.permit("site", &shop), Ok(true));
        assert_eq!(grants.permit("other", &shop), Err(NotKnown));
        grants.handle_absent(1);
        assert_eq!(grants.permit("other", &shop), Ok(false));
    }

    #[test]
    fn a_grant_that_goes_or_is_on_its_way_out_permits_nothing_any_more() {
        let shop = service("shops", "shop");
        let made = grant("shops", "site", "shop");
        for event in [
            Event::Delete(made.clone()),
            Event::Apply(grant("shops", "site", "till")),
            Event::Apply({
                let mut leaving = made.clone();
                leaving.metadata.deletion_timestamp =
                    serde_json::from_value(json!("2030-01-01T00:00:00Z")).unwrap();
                leaving
            }),
            Event::Apply({
                let mut garbled = made.clone();
                garbled.data["spec"]["from"] = json!("anybody");
                garbled
            }),
        ] {
            let grants = known([made.clone()]);
            grants.handle(0, event);
            assert_eq!(grants.permit("site", &shop), Ok(false));
        }
        // After an interrupted watch, the new list no longer contains a grant that was deleted
        // meanwhile.
        let grants = known([made]);
        grants.handle_absent(0);
        assert_eq!(grants.permit("site", &shop), Ok(false));
    }

    #[test]
    fn what_is_kept_of_a_namespace_is_bounded_and_about_tunnels() {
        let mut about_routes = grant("shops", "site", "shop");
        about_routes.data["spec"]["from"][0]["kind"] = json!("HTTPRoute");
        let mut about_both = grant("shops", "site", "shop");
        about_both.metadata.name = Some("both".to_owned());
        let route = about_routes.data["spec"]["from"][0].clone();
        about_both.data["spec"]["from"]
            .as_array_mut()
            .unwrap()
            .push(route);
        let grants = known([about_routes, about_both]);
        {
            let sources = grants.lock();
            let known: Vec<_> = sources[0].known.iter().flatten().collect();
            let [((_, name), spec)] = known[..] else {
                panic!("{known:?}");
            };
            assert_eq!((name.as_str(), spec.from.len()), ("both", 1));
        }
        let numbered = |number: usize| {
            let mut object = grant("shops", "site", &format!("shop-{number}"));
            object.metadata.name = Some(format!("g{number:04}"));
            object
        };
        let mut all: Vec<_> = (0..GRANTS_MAX + 10).map(numbered).collect();
        all.push(grant("vaults", "site", "vault"));
        let grants = known(all);
        let permits = |number: usize| {
            let service = service("shops", &format!("shop-{number}"));
            grants.permit("site", &service).unwrap()
        };
        assert!(permits(0) && permits(GRANTS_MAX - 1) && !permits(GRANTS_MAX));
        assert_eq!(grants.permit("site", &service("vaults", "vault")), Ok(true));
        // A full cache accepts changes of known grants, and a new grant after a deletion.
        let mut changed = numbered(0);
        changed.data["spec"]["to"][0]["name"] = json!("till");
        grants.handle(0, Event::Apply(changed));
        assert_eq!(grants.permit("site", &service("shops", "till")), Ok(true));
        grants.handle(0, Event::Delete(numbered(1)));
        grants.handle(0, Event::Apply(numbered(GRANTS_MAX)));
        assert!(permits(GRANTS_MAX));
    }

    #[tokio::test]
    async fn a_change_is_told_and_a_list_of_the_same_is_none() {
        let grants = known([grant("shops", "site", "shop")]);
        let mut changes = Box::pin(grants.changes());
        let next =
            |changes: &mut std::pin::Pin<Box<_>>| StreamExt::next(changes).now_or_never().flatten();
        grants.handle(0, Event::Delete(grant("shops", "site", "shop")));
        assert_eq!(next(&mut changes), Some(()));
        grants.handle_absent(0);
        assert_eq!(next(&mut changes), None);
    }

    #[tokio::test]
    async fn reference_grants_are_read_in_the_newest_version_that_has_them() {
        let api = FakeApi::default();
        assert!(served(&api.client()).await.unwrap().is_none());
        let list = |resources: &[&str]| {
            let resources = resources.iter();
            let resources = resources.map(|name| {
                json!({"name": name, "singularName": "", "namespaced": true, "kind": "K", "verbs": []})
            });
            json!({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "",
                "metadata": {}, "resources": resources.collect::<Vec<_>>(),
            })
        };
        api.put("/apis/gateway.networking.k8s.io/v1", list(&["httproutes"]));
        assert!(served(&api.client()).await.unwrap().is_none());
        let both = ["httproutes", "referencegrants"];
        api.put("/apis/gateway.networking.k8s.io/v1beta1", list(&both));
        let found = served(&api.client()).await.unwrap().unwrap();
        assert_eq!(found.api_version, "gateway.networking.k8s.io/v1beta1");
        api.put("/apis/gateway.networking.k8s.io/v1", list(&both));
        let found = served(&api.client()).await.unwrap().unwrap();
        assert_eq!(found.api_version, "gateway.networking.k8s.io/v1");
        assert_eq!(
            (found.kind.as_str(), found.plural.as_str()),
            REFERENCE_GRANT
        );
    }
}

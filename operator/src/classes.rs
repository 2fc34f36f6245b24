//! The MuxClasses of the cluster, and the labels of namespaces, from watches.
//!
//! All controllers share one cache of classes, because a class has no namespace. A change of a class
//! or of the labels of a namespace is a [`Change`], which wakes the objects that it concerns. Bounds:
//! [`CLASSES_MAX`] classes, the labels of one entry per namespace, and [`CHANGES_MAX`] changes that a
//! controller has not taken yet. If a controller misses changes, all its objects are concerned.

mod namespaces;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use futures::future::{self, FutureExt};
use futures::stream::{self, Stream, StreamExt};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::{MuxClass, MuxClassSpec, NamespacesFrom};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use crate::caches::{Cache, FIRST_LISTS, Feed, NotKnown};
use crate::class::{self, Class, Labels, resolve};
use crate::settings::Images;
use crate::undecoded;
use crate::watch_clock::WatchClock;
use crate::watches::{WATCH_SECONDS, is_asked_alike};

/// Maximum number of classes. Further classes are ignored.
const CLASSES_MAX: usize = 256;
/// Maximum number of changes that wait for a controller.
const CHANGES_MAX: usize = 64;

/// The classes. Clones share one state.
#[derive(Clone)]
pub struct Classes(Arc<Shared>);

struct Shared {
    controller: String,
    images: Images,
    cache: Cache<MuxClass>,
    /// The labels of the known namespaces.
    namespaces: Mutex<BTreeMap<String, Labels>>,
    changed: broadcast::Sender<Change>,
    first_wait: OnceLock<Instant>,
}

/// What has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Any class may have changed.
    All,
    /// The class with this name.
    Class(String),
    /// The labels of this namespace.
    Namespace(String),
}

impl Change {
    /// Whether the change concerns an object of this namespace with this `className`. The name is
    /// `None` for an object without one. A change of any class may change which one is the default.
    pub fn concerns(&self, namespace: &str, class: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Class(name) => class.is_none_or(|class| class == name),
            Self::Namespace(name) => name == namespace,
        }
    }
}

/// Why an object has no class. Until the watches are answered, the reason is [`NotKnown`].
pub type NoClass = class::NoClass<NotKnown>;

impl Classes {
    /// Watches the classes, and the namespaces of `scopes` (`None`: all namespaces). The operator
    /// serves the classes of `controller`. The future keeps the state up to date while it is polled.
    pub fn watch(
        client: &Client,
        (controller, images): (String, Images),
        scopes: &[Option<String>],
        clock: &Arc<WatchClock>,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let feed = Feed::default();
        let classes = Self::new(controller, images, &feed);
        let (client, clock) = (client.clone(), clock.clone());
        let (own, scopes) = (classes.clone(), scopes.to_vec());
        let run = async move {
            let namespaces = scopes.into_iter().map(|scope| {
                let (classes, client) = (own.clone(), client.clone());
                match scope {
                    None => namespaces::follow(classes, client, clock.clone()).left_future(),
                    Some(name) => namespaces::poll(classes, client, name).right_future(),
                }
            });
            let namespaces = future::join_all(namespaces);
            let classes = own.clone().follow(client.clone(), feed, &clock);
            future::join(classes, namespaces).await;
        };
        (classes, run)
    }

    /// Classes without watches, which `feed` fills.
    pub(crate) fn new(controller: String, images: Images, feed: &Feed<MuxClass>) -> Self {
        Self(Arc::new(Shared {
            controller,
            images,
            cache: feed.cache(),
            namespaces: Mutex::default(),
            changed: broadcast::Sender::new(CHANGES_MAX),
            first_wait: OnceLock::new(),
        }))
    }

    /// The cache of all classes, also those of other operators.
    pub fn cache(&self) -> &Cache<MuxClass> {
        &self.0.cache
    }

    /// The images of the operator's own version.
    pub fn images(&self) -> &Images {
        &self.0.images
    }

    /// Whether this operator serves `class`.
    pub fn is_own(&self, class: &MuxClass) -> bool {
        class.spec.controller_name == self.0.controller
    }

    /// The class of an object of `namespace` with the `className` `asked`.
    pub fn find(&self, namespace: &str, asked: Option<&str>) -> Result<Class, NoClass> {
        let classes = self.0.cache.all().map_err(NoClass::NotKnown)?;
        let namespaces = self.0.namespaces.lock();
        let labels = namespaces.get(namespace);
        let labels = labels.ok_or_else(|| NotKnown::Unanswered {
            kind: "Namespace".to_owned(),
        });
        let class = resolve(asked, &classes, &self.0.controller, labels)?;
        if let Some(reason) = undecoded::reason(class) {
            let name = class.name_any();
            let detail = format!("MuxClass {name} cannot be decoded: {reason}");
            return Err(NoClass::Refused(Code::UnknownValue, detail));
        }
        Ok(Class::of(class, &self.0.images))
    }

    /// Waits for the first list, up to [`FIRST_LISTS`] after the first call.
    pub async fn first_list(&self) {
        let end = *self.0.first_wait.get_or_init(Instant::now) + FIRST_LISTS;
        let _unknown_yet = timeout_at(end, self.0.cache.first_list()).await;
    }

    /// Yields each change.
    pub fn changes(&self) -> impl Stream<Item = Change> + Send + use<> {
        stream::unfold(self.0.changed.subscribe(), |mut changed| async move {
            match changed.recv().await {
                Ok(change) => Some((change, changed)),
                Err(RecvError::Lagged(_)) => Some((Change::All, changed)),
                Err(RecvError::Closed) => None,
            }
        })
    }

    fn tell(&self, change: Change) {
        // Without a controller, nobody has to know.
        let _controllers = self.0.changed.send(change);
    }

    /// Sets the labels of a namespace. `None`: the namespace was deleted.
    fn label(&self, name: &str, labels: Option<Labels>) {
        let mut namespaces = self.0.namespaces.lock();
        let Some(labels) = labels else {
            namespaces.remove(name);
            return;
        };
        let old = namespaces.insert(name.to_owned(), labels.clone());
        drop(namespaces);
        if old != Some(labels) && self.selects_namespaces() {
            self.tell(Change::Namespace(name.to_owned()));
        }
    }

    fn selects_namespaces(&self) -> bool {
        let selects = |class: &Arc<MuxClass>| {
            let asked = class.spec.namespaces.as_ref();
            asked.is_some_and(|asked| asked.from == NamespacesFrom::Selector)
        };
        // Before the list, no object has a class.
        self.0.cache.all().is_ok_and(|all| all.iter().any(selects))
    }

    async fn follow(self, client: Client, mut feed: Feed<MuxClass>, clock: &WatchClock) {
        // A class of another operator may have values that this version cannot decode.
        let resource = ApiResource::erase::<MuxClass>(&());
        let api: Api<DynamicObject> = Api::all_with(client, &resource);
        clock.expect(api.resource_url());
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        let mut events = watcher(api, config).default_backoff().boxed();
        let mut listed = 0;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.take(&mut feed, &mut listed, event),
                Err(error) => warn!(%error, "the watch of MuxClasses failed and restarts"),
            }
        }
    }

    /// Applies one event of the watch. `listed`: the number of classes in a list in progress.
    pub(crate) fn take(
        &self,
        feed: &mut Feed<MuxClass>,
        listed: &mut usize,
        event: Event<DynamicObject>,
    ) {
        let Some(event) = undecoded::map(event, |object| Some(decoded(object))) else {
            return;
        };
        let known = self.0.cache.all().map_or(0, |all| all.len());
        let of = |class: &MuxClass| Some(Change::Class(class.name_any()));
        // The number of classes, and the change.
        let (count, change) = match &event {
            Event::Init => (0, None),
            Event::InitApply(_) => (*listed + 1, None),
            Event::InitDone => (0, Some(Change::All)),
            Event::Apply(class) => match feed.known(class) {
                Some(old) if is_asked_alike(old.as_ref(), class) => (known, None),
                Some(_) => (known, of(class)),
                None => (known + 1, of(class)),
            },
            Event::Delete(class) => (0, of(class)),
        };
        if let (true, Event::Apply(class) | Event::InitApply(class)) = (count > CLASSES_MAX, &event)
        {
            let name = class.name_any();
            warn!(
                name,
                "a MuxClass is ignored, because {CLASSES_MAX} others exist"
            );
            return;
        }
        *listed = count;
        feed.take(event);
        if let Some(change) = change {
            self.tell(change);
        }
    }
}

/// The class, or a placeholder with the fields that decide which operator serves it.
fn decoded(object: DynamicObject) -> MuxClass {
    let name = object.name_any();
    let controller = object.data["spec"]["controllerName"]
        .as_str()
        .unwrap_or_default();
    let spec = json!({
        "controllerName": controller,
        "default": object.data["spec"]["default"] == true,
    });
    let meta = object.meta().clone();
    let value = serde_json::to_value(object).unwrap_or_default();
    match serde_path_to_error::deserialize(value) {
        Ok(class) => class,
        Err(error) => {
            warn!(name, %error, "a MuxClass cannot be decoded");
            let placeholder = undecoded::placeholder(meta, &error.to_string(), (spec, json!({})));
            // No operator serves a class without a controller.
            placeholder.unwrap_or_else(|_| MuxClass::new(&name, MuxClassSpec::default()))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

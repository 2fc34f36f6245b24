//! One object, the API server in memory, and an operator.

use std::cell::RefCell;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use serde_json::json;

use super::*;
use crate::api_server::ApiServer;
use crate::apply::Settled;
use crate::caches::{Cached, Cluster, Targets};
use crate::class_controller::Planner;
use crate::classes::tests::{Known, known as known_classes};
use crate::clock::Clock;
use crate::events::Events;
use crate::grants::Grants;
use crate::grants::tests::known;
use crate::metrics::classes::Figures;
use crate::metrics::tunnels::Tunnels;
use crate::testing::kubelet::{Healthy, kind_named, plural};
use crate::testing::tunnel::date;
use crate::testing::watching::Watches;
use crate::tunnel_controller::access::{Access, Memory, Outputs};
use crate::tunnel_controller::object::{Kind, Object};
use crate::tunnel_controller::{Context, Error, reconcile};
use crate::upgrades::turns::Turns;

pub(super) const TUNNEL: &str = "muxtunnels/office";

/// Creation time of all objects, in seconds since 1970, and the default of the operators' clocks.
pub(super) const MADE: i64 = 1_893_499_200;

/// The endpoints of the Service.
pub(super) fn slice_json(ready: bool) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "shop-1", "namespace": "site",
            "labels": {"kubernetes.io/service-name": "shop"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.9.9"], "conditions": {"ready": ready}}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

/// One object, the API server, and an operator.
pub(super) struct Bench {
    pub(super) api: FakeApi,
    pub(super) watches: RefCell<Watches>,
    pub(super) context: Arc<Context<Healthy>>,
    pub(super) grants: Grants,
    pub(super) classes: RefCell<Known>,
    pub(super) planner: Planner,
    pub(super) clock: Clock,
    kind: Kind,
}

/// A clock that shows these seconds since 1970.
pub(super) fn clock(seconds: impl Fn() -> i64 + Send + Sync + 'static) -> Clock {
    Clock::of(move || Timestamp::from_second(seconds()).unwrap())
}

/// A process of the operator that starts with empty caches.
pub(super) fn operator(
    api: &FakeApi,
    (grants, classes): (&Grants, &RefCell<Known>),
    clock: &Clock,
) -> (RefCell<Watches>, Arc<Context<Healthy>>, Planner) {
    let (watches, client) = (Watches::new(), api.client());
    let caches = watches.caches();
    let planner = Planner {
        client: client.clone(),
        scopes: vec![caches.clone()],
        classes: classes.borrow().classes.clone(),
        turns: Turns::default(),
        figures: Figures::default(),
        clock: clock.clone(),
    };
    let targets = Targets::new([(None, caches.clone())]);
    let cluster = Cluster {
        client: client.clone(),
        caches,
        settled: Settled::default(),
    };
    let memory = Memory::new(client.clone());
    let access = Access {
        caches: cluster.caches.clone(),
        reader: cluster.reader(),
        targets,
        grants: grants.clone(),
        classes: classes.borrow().classes.clone(),
        turns: planner.turns.clone(),
        api_server: ApiServer::default(),
        memory: memory.clone(),
        watches: Arc::default(),
        settings: Arc::new(settings()),
    };
    let outputs = Outputs {
        cluster,
        memory,
        figures: Tunnels::default(),
        refreshes_volumes: settings().refresh_volumes,
    };
    let events = Events::new(client, clock.clone());
    let steps = (access, outputs);
    let context = Context::new(steps, Healthy(api.clone()), events, clock.clone());
    (RefCell::new(watches), Arc::new(context), planner)
}

impl Bench {
    pub(super) fn new(spec: &str) -> Self {
        Self::with_grants(spec, known([]))
    }

    pub(super) fn with_grants(spec: &str, grants: Grants) -> Self {
        Self::with(spec, grants, clock(|| MADE))
    }

    pub(super) fn with(spec: &str, grants: Grants, clock: Clock) -> Self {
        let api = FakeApi::default();
        api.put("services/shop", shop_json());
        api.put("endpointslices/shop-1", slice_json(true));
        let mut object = object_json(spec);
        object["metadata"]["creationTimestamp"] = json!(date(MADE));
        let kind = kind_named(object["kind"].as_str().unwrap());
        api.put(&path(kind), object);
        Self::on(api, grants, clock, kind)
    }

    /// Another process of the operator with empty caches, at the same API server.
    pub(super) fn restarted(&self, grants: Grants) -> Self {
        Self::on(self.api.clone(), grants, self.clock.clone(), self.kind)
    }

    fn on(api: FakeApi, grants: Grants, clock: Clock, kind: Kind) -> Self {
        let classes = RefCell::new(known_classes([class_json()]));
        let (watches, context, planner) = operator(&api, (&grants, &classes), &clock);
        Self {
            api,
            watches,
            context,
            grants,
            classes,
            planner,
            clock,
            kind,
        }
    }

    /// Starts another process of the operator with empty caches. All requests succeed again.
    pub(super) fn restart(&mut self) {
        self.api.heal();
        (self.watches, self.context, self.planner) =
            operator(&self.api, (&self.grants, &self.classes), &self.clock);
    }

    /// The path of the object.
    pub(super) fn path(&self) -> String {
        path(self.kind)
    }

    pub(super) fn object(&self) -> Value {
        self.api.get(&self.path()).unwrap()
    }

    pub(super) fn status(&self) -> Value {
        self.object()["status"].clone()
    }

    /// Changes the spec, as a person does.
    pub(super) fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut object = self.object();
        change(&mut object["spec"]);
        let generation = object["metadata"]["generation"].as_i64().unwrap();
        object["metadata"]["generation"] = json!(generation + 1);
        self.api.put(&self.path(), object);
    }

    /// Replaces the spec. A paused object stays paused.
    pub(super) fn edit(&self, spec: &str) {
        self.change(|old| {
            let paused = old["paused"].take();
            *old = object_json(spec)["spec"].clone();
            if paused == true {
                old["paused"] = paused;
            }
        });
    }

    /// Changes the spec of the class.
    pub(super) fn classify(&self, change: impl FnOnce(&mut Value)) {
        let mut class = class_json();
        change(&mut class["spec"]);
        self.classes.borrow_mut().put(class);
    }

    pub(super) fn pause(&self, paused: bool) {
        self.change(|spec| spec["paused"] = json!(paused));
    }

    /// A reconciliation with current caches.
    pub(super) async fn reconcile(&self) -> Result<(), Error> {
        self.watches.borrow_mut().deliver(&self.api);
        self.planner.plan(self.clock.now()).unwrap();
        self.reconcile_known().await
    }

    /// A reconciliation with the caches that the watches have filled so far.
    pub(super) async fn reconcile_known(&self) -> Result<(), Error> {
        reconcile(self.known(), self.context.clone())
            .await
            .map(drop)
    }

    /// The object in the operator's cache.
    pub(super) fn known(&self) -> Object {
        match self.kind {
            Kind::Tunnel => Object::Tunnel(self.newest()),
            Kind::Exit => Object::Exit(self.newest()),
            Kind::Rendezvous => Object::Rendezvous(self.newest()),
        }
    }

    /// The tunnel in the operator's cache.
    pub(super) fn tunnel(&self) -> Arc<muxtunnel_crds::MuxTunnel> {
        self.newest()
    }

    fn newest<K: Cached>(&self) -> Arc<K> {
        let cache = K::of(&self.context.access.caches);
        let office = ObjectRef::new("office").within("site");
        cache.newest(cache.store().get(&office).unwrap())
    }

    /// Other controllers and the kubelets act, and the operator follows.
    pub(super) async fn run(&self) {
        for _ in 0..4 {
            self.reconcile().await.unwrap();
            self.api.run_jobs();
            self.api.run_autoscalers();
            self.api.run_pods();
        }
        self.reconcile().await.unwrap();
    }

    pub(super) fn condition(&self, type_: &str) -> Value {
        let found = condition(&self.api, &self.path(), type_);
        found.unwrap_or_else(|| panic!("no condition {type_}"))
    }
}

/// The path of the object `office` of this kind.
fn path(kind: Kind) -> String {
    format!("{}/office", plural(kind))
}

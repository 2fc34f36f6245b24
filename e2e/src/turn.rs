//! Which tests run side by side. Each test takes a turn first, so the number of test threads changes how long all of them
//! take, and not what they find.
//!
//! Most tests wait: for the kubelet, for drains, for pods. Those are in the first cluster, some at a time ([`beside`]).
//! What takes the operator or the definitions away has the second cluster to itself ([`alone`]). What crosses clusters
//! needs the second one whole, and shares it ([`across`]). A fault under load needs all of the machine, and short lives of
//! certificates change the authorities of every tunnel: these tests have both clusters ([`both`]), and come first.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::ListParams;
use tokio::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit,
};

use crate::cluster::Cluster;
use crate::{operator, wait};

/// Tests of the first cluster at a time.
const PLACES: usize = 2;
/// After this long the tests that have both clusters are in the queue, and the others follow. A test that has both waits
/// until all others have ended, so these tests run in a row.
const BOTH_FIRST: Duration = Duration::from_secs(3);
/// After this long the tests that share the second cluster are in the queue, and those that have it to themselves follow.
const SHARED_FIRST: Duration = Duration::from_secs(3);
/// Within this a cluster is whole again after the test before.
const WHOLE_WITHIN: Duration = Duration::from_secs(180);

/// A test that leaves room for others holds it shared, one that has both clusters holds it alone. First come, first served.
static BOTH: RwLock<()> = RwLock::const_new(());
static FIRST: Semaphore = Semaphore::const_new(PLACES);
static SECOND: RwLock<()> = RwLock::const_new(());
static INSTALLATION: Mutex<()> = Mutex::const_new(());

/// A test's turn, until it is dropped: then it says what the test took.
pub struct Turn<Held> {
    _held: Held,
    began: Instant,
}

impl<Held> Turn<Held> {
    fn of(held: Held) -> Self {
        Self {
            _held: held,
            began: Instant::now(),
        }
    }
}

impl<Held> Drop for Turn<Held> {
    fn drop(&mut self) {
        let thread = thread::current();
        let test = thread.name().unwrap_or_default();
        let seconds = self.began.elapsed().as_secs();
        // Not by a printing macro: the test runner captures what these print until the test ends.
        let _ = writeln!(std::io::stderr(), "{seconds:4} s {test}");
    }
}

/// For a test in the first cluster that leaves the operator and the cluster as they are for others.
///
/// # Errors
/// None: the places are never closed.
pub async fn beside() -> Result<Turn<(Shared, SemaphorePermit<'static>)>> {
    let shared = shared().await;
    Ok(Turn::of((shared, FIRST.acquire().await?)))
}

/// For a test that crosses clusters.
pub async fn across() -> Turn<(Shared, Shared)> {
    let shared = shared().await;
    Turn::of((shared, SECOND.read().await))
}

/// For a test that takes the operator or the definitions of the second cluster away. That cluster is whole when this
/// returns.
///
/// # Errors
/// If the cluster does not recover from the test before.
pub async fn alone() -> Result<Turn<(Shared, RwLockWriteGuard<'static, ()>)>> {
    let shared = shared().await;
    tokio::time::sleep(SHARED_FIRST).await;
    let held = SECOND.write().await;
    whole(Cluster::Second).await?;
    Ok(Turn::of((shared, held)))
}

/// A part of what others have a part of, too.
pub type Shared = RwLockReadGuard<'static, ()>;

/// Both clusters.
pub type Both = RwLockWriteGuard<'static, ()>;

async fn shared() -> Shared {
    tokio::time::sleep(BOTH_FIRST).await;
    BOTH.read().await
}

/// For a test that needs the whole machine, or changes what the tunnels of others depend on. Both clusters are whole when
/// this returns.
///
/// # Errors
/// If a cluster does not recover from the test before.
pub async fn both() -> Result<Turn<Both>> {
    let held = BOTH.write().await;
    tokio::try_join!(whole(Cluster::First), whole(Cluster::Second))?;
    Ok(Turn::of(held))
}

/// While it is held nobody else changes the first cluster's installation: for what looks at it, and for what changes it.
/// A tunnel's tests do not need it.
pub async fn installation() -> MutexGuard<'static, ()> {
    INSTALLATION.lock().await
}

/// Waits until each Deployment of the cluster and of the installation has all of its pods.
async fn whole(cluster: Cluster) -> Result<()> {
    let what = format!("the {cluster:?} cluster is whole");
    wait::until(&what, WHOLE_WITHIN, async || {
        let Ok(client) = cluster.client().await else {
            return Ok(None);
        };
        for namespace in ["kube-system", operator::NAMESPACE] {
            let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
            let Ok(list) = deployments.list(&ListParams::default()).await else {
                return Ok(None);
            };
            if list.items.is_empty() || !list.items.iter().all(has_its_pods) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .await
}

fn has_its_pods(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas);
    let status = deployment.status.as_ref();
    status.is_some_and(|status| {
        status.observed_generation == deployment.metadata.generation
            && status.updated_replicas == wanted
            && status.available_replicas == wanted
    })
}

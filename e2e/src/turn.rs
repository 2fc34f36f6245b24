//! Turns decide which tests run in parallel. Each test first waits for its turn. Therefore the
//! number of test threads changes only the duration of the tests, not their results.
//!
//! Most tests spend their time waiting for the kubelet, drains and pods. These tests run in the
//! first cluster, and a few of them run in parallel ([`beside`]). Tests that remove the operator or
//! the definitions use the second cluster exclusively ([`alone`]). Tests across clusters need an
//! intact second cluster, and a few of them share it ([`across`]). Faults under load need the whole
//! machine, and some tests remove the operators of both clusters. These tests use both clusters
//! exclusively ([`both`]), and run first.

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

/// Number of tests that run in the first cluster at the same time.
const PLACES: usize = 2;
/// Number of tests across clusters that run at the same time. More of them starve the nodes of a
/// slow machine.
const ACROSS: usize = 2;
/// Delay of all tests that do not need both clusters. In this time all tests that need both
/// clusters join the queue. So the tests that need both clusters run first, one after the other.
const BOTH_FIRST: Duration = Duration::from_secs(3);
/// Delay of tests that use the second cluster exclusively. In this time all tests that share the
/// second cluster join the queue. So the tests that share the cluster run first.
const SHARED_FIRST: Duration = Duration::from_secs(3);
/// Time-out for a cluster to recover from the previous test.
const WHOLE_WITHIN: Duration = Duration::from_secs(180);

/// A test that uses both clusters holds this lock exclusively. All other tests share the lock.
/// Tests get the lock in the order of their requests.
static BOTH: RwLock<()> = RwLock::const_new(());
static FIRST: Semaphore = Semaphore::const_new(PLACES);
static SECOND: RwLock<()> = RwLock::const_new(());
static BETWEEN: Semaphore = Semaphore::const_new(ACROSS);
static INSTALLATION: Mutex<()> = Mutex::const_new(());

/// A test's turn. When the turn is dropped, it prints the duration of the test.
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
        // Writes to standard error directly, because the test runner captures the output of
        // printing macros until the test ends.
        let _ = writeln!(std::io::stderr(), "{seconds:4} s {test}");
    }
}

/// Waits for the turn of a test in the first cluster that does not disturb the operator or other
/// tests.
///
/// # Errors
/// Never, because the semaphore is not closed.
pub async fn beside() -> Result<Turn<(Shared, SemaphorePermit<'static>)>> {
    let shared = shared().await;
    Ok(Turn::of((shared, FIRST.acquire().await?)))
}

/// Waits for the turn of a test across clusters.
///
/// # Errors
/// Never, because the semaphore is not closed.
pub async fn across() -> Result<Turn<(Shared, Shared, SemaphorePermit<'static>)>> {
    let shared = shared().await;
    // The lock comes first, so that tests that use the second cluster exclusively run afterwards.
    let second = SECOND.read().await;
    Ok(Turn::of((shared, second, BETWEEN.acquire().await?)))
}

/// Waits for the turn of a test that removes the operator or the definitions of the second cluster.
/// The second cluster is intact when this function returns.
///
/// # Errors
/// If the cluster does not recover from the previous test.
pub async fn alone() -> Result<Turn<(Shared, RwLockWriteGuard<'static, ()>)>> {
    let shared = shared().await;
    tokio::time::sleep(SHARED_FIRST).await;
    let held = SECOND.write().await;
    whole(Cluster::Second).await?;
    Ok(Turn::of((shared, held)))
}

/// Shared use of a cluster.
pub type Shared = RwLockReadGuard<'static, ()>;

/// Exclusive use of both clusters.
pub type Both = RwLockWriteGuard<'static, ()>;

async fn shared() -> Shared {
    tokio::time::sleep(BOTH_FIRST).await;
    BOTH.read().await
}

/// Waits for the turn of a test that needs the whole machine, or changes settings that the tunnels
/// of other tests depend on. Both clusters are intact when this function returns.
///
/// # Errors
/// If a cluster does not recover from the previous test.
pub async fn both() -> Result<Turn<Both>> {
    let held = BOTH.write().await;
    tokio::try_join!(whole(Cluster::First), whole(Cluster::Second))?;
    Ok(Turn::of(held))
}

/// A lock for tests that read or change the installation of the first cluster. Tests of tunnels do
/// not need it.
pub async fn installation() -> MutexGuard<'static, ()> {
    INSTALLATION.lock().await
}

/// Waits until each Deployment of the cluster and of the installation has all of its pods.
async fn whole(cluster: Cluster) -> Result<()> {
    let what = format!("all Deployments of the {cluster:?} cluster have their pods");
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

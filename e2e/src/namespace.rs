//! A separate namespace for each test.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures::FutureExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, Resource};

use crate::cluster::Cluster;
use crate::{definitions, operator, wait};

/// Time-out for the deletion of earlier tests' namespaces, including namespaces with hundreds of
/// tunnels.
const DELETED_WITHIN: Duration = Duration::from_secs(600);

/// The Pod Security level that a test's namespace enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodSecurity {
    /// The level that most tests need.
    Restricted,
    /// The level for WAN emulation and networks, whose containers have NET_ADMIN, and for unsafe
    /// sysctls.
    Privileged,
}

/// A test's namespace.
#[derive(Clone)]
pub struct TestNamespace {
    /// The cluster of the namespace.
    pub cluster: Cluster,
    /// The client of the cluster.
    pub client: Client,
    /// The name of the namespace.
    pub name: String,
}

impl TestNamespace {
    /// The objects of one kind in the namespace.
    #[must_use]
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Runs kubectl in the namespace. Returns its output.
    ///
    /// # Errors
    /// If kubectl fails.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let arguments = [&["--namespace", &self.name], arguments].concat();
        self.cluster.run("kubectl", &arguments).await
    }
}

/// Runs `test` in a fresh namespace, which is deleted at the end. If the test fails or panics, the
/// state of the namespace (pods, events, resources, logs) is printed first.
///
/// # Errors
/// If the cluster cannot be reached, or the test fails.
pub async fn with_temp_ns<T>(
    prefix: &str,
    level: PodSecurity,
    test: impl AsyncFnOnce(&TestNamespace) -> Result<T>,
) -> Result<T> {
    with_temp_ns_in(Cluster::First, prefix, level, test).await
}

/// Runs `test` with a fresh namespace in each of the two clusters. See [`with_temp_ns`].
///
/// # Errors
/// If a cluster cannot be reached, or the test fails.
pub async fn with_temp_ns_in_both<T>(
    prefix: &str,
    level: PodSecurity,
    test: impl AsyncFnOnce(&TestNamespace, &TestNamespace) -> Result<T>,
) -> Result<T> {
    with_temp_ns_in(Cluster::First, prefix, level, async |first| {
        with_temp_ns_in(Cluster::Second, prefix, level, async |second| {
            test(first, second).await
        })
        .await
    })
    .await
}

/// Runs `test` with a fresh namespace in `cluster`. See [`with_temp_ns`].
///
/// # Errors
/// If the cluster cannot be reached, or the test fails.
pub async fn with_temp_ns_in<T>(
    cluster: Cluster,
    prefix: &str,
    level: PodSecurity,
    test: impl AsyncFnOnce(&TestNamespace) -> Result<T>,
) -> Result<T> {
    let client = cluster.client().await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let created = namespaces
        .create(&PostParams::default(), &namespace(prefix, level))
        .await
        .context("creating a namespace for the test")?;
    let name = created.metadata.name.context("a namespace has a name")?;
    let ns = TestNamespace {
        cluster,
        client,
        name,
    };
    let outcome = AssertUnwindSafe(test(&ns)).catch_unwind().await;
    let outcome = outcome.unwrap_or_else(|panic| Err(anyhow!("{}", panic_message(&*panic))));
    if outcome.is_err() {
        dump(&ns).await;
    }
    namespaces
        .delete(&ns.name, &DeleteParams::background())
        .await
        .context("deleting the test's namespace")?;
    outcome
}

/// Waits until no namespace is being deleted, so that terminating pods no longer load the node.
///
/// # Errors
/// If this takes longer than [`DELETED_WITHIN`].
pub async fn none_is_deleted(cluster: Cluster) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(cluster.client().await?);
    let gone = async || {
        let all = namespaces.list(&ListParams::default()).await?;
        let mut deleted = all.iter().map(|ns| &ns.metadata.deletion_timestamp);
        Ok(deleted.all(Option::is_none).then_some(()))
    };
    wait::until("no namespace is being deleted", DELETED_WITHIN, gone).await
}

fn namespace(prefix: &str, level: PodSecurity) -> Namespace {
    let level = match level {
        PodSecurity::Restricted => "restricted",
        PodSecurity::Privileged => "privileged",
    };
    let labels = [("pod-security.kubernetes.io/enforce", level)];
    Namespace {
        metadata: ObjectMeta {
            generate_name: Some(format!("e2e-{prefix}-")),
            labels: Some(BTreeMap::from(
                labels.map(|(key, value)| (key.to_owned(), value.to_owned())),
            )),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "the test panicked".to_owned())
}

/// Prints the state of the namespace and the end of the operator's log. Ignores errors, because the
/// test has already failed.
async fn dump(ns: &TestNamespace) {
    let own = definitions::kinds().unwrap_or_default();
    let all = format!("{own},networkpolicies,all,configmaps");
    let looks: [&[&str]; 6] = [
        &["get", &all, "-o", "wide"],
        &["get", &own, "-o", "yaml"],
        &["get", "events", "--sort-by=.lastTimestamp"],
        &["describe", "pods"],
        &[
            "logs",
            "--selector=app.kubernetes.io/managed-by=muxtunnel-operator",
            "--all-containers",
            "--prefix",
            "--tail=60",
        ],
        &[
            "logs",
            "--selector=e2e",
            "--all-containers",
            "--prefix",
            "--tail=60",
        ],
    ];
    eprintln!("--- namespace {} ({:?} cluster) ---", ns.name, ns.cluster);
    for look in looks {
        print_kubectl(ns.cluster, &ns.name, look).await;
    }
    let operator = [
        "logs",
        "--selector=app.kubernetes.io/component=operator",
        "--prefix",
        "--tail=80",
    ];
    print_kubectl(ns.cluster, operator::NAMESPACE, &operator).await;
}

async fn print_kubectl(cluster: Cluster, namespace: &str, arguments: &[&str]) {
    let all = [&["--namespace", namespace], arguments].concat();
    match cluster.run("kubectl", &all).await {
        Ok(text) => eprintln!("--- kubectl {}\n{text}", all.join(" ")),
        Err(error) => eprintln!("--- {error:#}"),
    }
}

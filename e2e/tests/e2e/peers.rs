//! Tunnels by public keys. The exit is in the second cluster behind a node port, and its entries
//! are in the first cluster. Each entry has its own MuxPeer. The objects are those of the examples
//! `docs/examples/muxtunnel-two-clusters-*.yaml`. The last test has both sides in one object.

mod away;
mod restore;
mod stolen;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use muxtunnel_crds::{MuxExit, MuxPeer, MuxTunnel, condition};
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::tunnel::Object;
use muxtunnel_e2e::{
    Cluster, PodSecurity, TestNamespace, keys, operator, tunnel, turn, wait, with_temp_ns,
    with_temp_ns_in_both,
};
use serde_json::{Value, json};

use crate::examples::example;

const WITHIN: Duration = Duration::from_secs(240);
/// Time-out for the carriers and streams of a deleted peer to end (docs/security.md).
const ENDED_WITHIN: Duration = Duration::from_secs(10);
/// Long streams of the entry whose peer is deleted, and of the other entry.
const STREAMS: u32 = 20;
const OTHER_STREAMS: u32 = 5;
/// Maximum number of short connections of the other entry that are open at the same time.
const SHORT_OPEN_MAX: u64 = 5;
/// Maximum duration of a load, longer than all waits of its test.
const LOAD_MOST_SECONDS: u32 = 1800;
/// Time-out for a load to end after SIGTERM.
const LOAD_ENDS: Duration = Duration::from_secs(180);

fn object(file: &str) -> Result<Value> {
    Ok(serde_yaml::from_str(&example(file)?)?)
}

/// The exit `far`, which is behind a node port and dials port 80 of `web` in its namespace.
pub(crate) async fn behind_a_node_port() -> Result<Value> {
    let mut exit = object("muxtunnel-two-clusters-exit.yaml")?;
    exit["spec"]["service"]["type"] = "NodePort".into();
    Ok(exit)
}

/// The host and the port of `far` for entries: the node of its cluster, and its node port.
pub(crate) async fn endpoint(far: &TestNamespace) -> Result<(String, u16)> {
    let what = "the exit's Service has a node port";
    let services = far.api::<Service>();
    let port = wait::until(what, WITHIN, async || {
        let service = services.get_opt("far-exit").await?;
        let ports = service.and_then(|service| service.spec?.ports);
        let port = ports.and_then(|ports| ports.first()?.node_port);
        Ok(port.and_then(|port| u16::try_from(port).ok()))
    })
    .await?;
    Ok((Cluster::Second.node().await?.address, port))
}

/// An entry of the exit at `endpoint` with these keys, which forwards its clients to `web`.
pub(crate) fn entry(name: &str, endpoint: &(String, u16), keys: &[String]) -> Result<Value> {
    let mut entry = object("muxtunnel-two-clusters-entry.yaml")?;
    entry["metadata"]["name"] = name.into();
    let (host, port) = endpoint;
    let connect = &mut entry["spec"]["connect"][0];
    *connect = json!({"name": "far", "host": host, "port": port});
    if !keys.is_empty() {
        connect["publicKeys"] = json!(keys);
    }
    // A replaced gateway keeps its ports open for up to half of this time, until no more clients
    // arrive. A busy node forwards clients to it for longer than the half of DRAIN_SECONDS.
    entry["spec"]["entry"]["drainSeconds"] = 60.into();
    Ok(entry)
}

/// Creates or changes the MuxPeer `name` of the exit.
async fn admit(far: &TestNamespace, name: &str, keys: &[String]) -> Result<()> {
    let mut peer = object("muxtunnel-two-clusters-peer.yaml")?;
    peer["metadata"]["name"] = name.into();
    peer["spec"]["publicKeys"] = json!(keys);
    let how = PatchParams::apply("muxtunnel-e2e").force();
    let peers = far.api::<MuxPeer>();
    peers.patch(name, &how, &Patch::Apply(&peer)).await?;
    holds(far, name, condition::READY).await
}

/// Waits until a condition of a MuxPeer is true for its current spec.
async fn holds(far: &TestNamespace, name: &str, type_: &str) -> Result<()> {
    let what = format!("the condition {type_} of the MuxPeer is true");
    wait::for_object(&far.api(), name, &what, WITHIN, |peer: &MuxPeer| {
        let conditions = peer.status.iter().flat_map(|status| &status.conditions);
        let mut conditions = conditions.filter(|condition| condition.type_ == type_);
        conditions.any(|condition| {
            condition.status == "True" && condition.observed_generation == peer.metadata.generation
        })
    })
    .await?;
    Ok(())
}

/// Changes the generations of an object's keys. Returns its public keys, newest first, when all
/// gateways have them.
async fn generations<K: Object>(
    ns: &TestNamespace,
    object: &mut Value,
    generations: &[i32],
) -> Result<Vec<String>> {
    object["spec"]["key"] = json!({"generations": generations});
    let up: K = tunnel::up_of(ns, &object.to_string()).await?;
    let keys = keys::public_keys(&up);
    ensure!(keys.len() == generations.len(), "{generations:?}: {keys:?}");
    Ok(keys)
}

/// Changes the keys that an entry accepts. Waits until its gateways have them.
async fn accept(near: &TestNamespace, entry: &mut Value, keys: &[String]) -> Result<()> {
    entry["spec"]["connect"][0]["publicKeys"] = json!(keys);
    tunnel::up(near, &entry.to_string()).await?;
    Ok(())
}

/// Starts a load through an entry, until [`pods::end_load`].
async fn load(
    near: &TestNamespace,
    name: &str,
    entry: &str,
    opens_per_second: u32,
    streams: u32,
) -> Result<()> {
    let to = format!("{entry}-entry:8080");
    pods::load(
        near,
        name,
        &to,
        opens_per_second,
        streams,
        LOAD_MOST_SECONDS,
    )
    .await
}

/// Checks that new connections through an entry succeed. `client` is the name of the pod.
async fn works(near: &TestNamespace, client: &str, entry: &str) -> Result<()> {
    let to = format!("{entry}-entry:8080");
    pods::load(near, client, &to, 10, 0, 2).await?;
    let report = pods::load_report(near, client, LOAD_ENDS).await?;
    ensure!(
        report.opens > 0 && report.failed_opens() == 0,
        "{client}: {report:?}"
    );
    Ok(())
}

/// The only gateway of an end.
async fn gateway<K: Object>(ns: &TestNamespace, name: &str, end: &str) -> Result<Pod> {
    let mut pods = tunnel::gateways_of::<K>(ns, name, end).await?;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    pods.pop().context("a gateway")
}

/// Scales a Deployment of gateways, and waits until all former pods are gone, or until the new pods
/// exist.
async fn scale(
    ns: &TestNamespace,
    (deployment, selector): (&str, &str),
    replicas: usize,
) -> Result<()> {
    let (deployment, count) = (
        format!("deployment/{deployment}"),
        format!("--replicas={replicas}"),
    );
    ns.kubectl(&["scale", &deployment, &count]).await?;
    let pods = ns.api::<Pod>();
    let what = format!("{deployment} has {replicas} pods");
    wait::until(&what, WITHIN, async || {
        let pods = pods.list(&ListParams::default().labels(selector)).await?;
        Ok((pods.items.len() == replicas).then_some(()))
    })
    .await
}

/// The exit `far`, and the entries that use it.
struct Site<'a> {
    near: &'a TestNamespace,
    far: &'a TestNamespace,
    exit: Value,
    endpoint: (String, u16),
    keys: Vec<String>,
}

impl<'a> Site<'a> {
    async fn up(near: &'a TestNamespace, far: &'a TestNamespace) -> Result<Self> {
        pods::serve(far, "web", Serve::Load).await?;
        let exit = behind_a_node_port().await?;
        tunnel::apply_of::<MuxExit>(far, &exit.to_string()).await?;
        Ok(Self {
            near,
            far,
            exit,
            endpoint: endpoint(far).await?,
            keys: vec![keys::public_key::<MuxExit>(far, "far").await?],
        })
    }

    /// Creates an entry, which has no MuxPeer yet. Returns the object and its public key.
    async fn entry(&self, name: &str) -> Result<(Value, String)> {
        let entry = entry(name, &self.endpoint, &self.keys)?;
        tunnel::apply(self.near, &entry.to_string()).await?;
        Ok((entry, keys::public_key::<MuxTunnel>(self.near, name).await?))
    }
}

#[tokio::test]
async fn each_entry_needs_its_own_peer_and_keys_are_replaced_under_load() -> Result<()> {
    let _turn = turn::across().await?;
    with_temp_ns_in_both("peers", PodSecurity::Restricted, async |near, far| {
        let mut site = Site::up(near, far).await?;
        let (mut near_entry, near_key) = site.entry("near").await?;
        let (mut other_entry, other_key) = site.entry("other").await?;
        is_refused(&site, "near", &near_key)
            .await
            .context("an entry without a MuxPeer")?;
        let key = [near_key];
        admit(far, "near", &key).await?;
        admit(far, "other", &[other_key]).await?;
        for name in ["near", "other"] {
            tunnel::ready(near, name).await?;
            holds(far, name, condition::CONNECTED).await?;
        }
        a_deleted_peer_ends_alone(&site, &key)
            .await
            .context("the deletion of a MuxPeer")?;
        keys_are_replaced(&mut site, [&mut near_entry, &mut other_entry])
            .await
            .context("the replacement of keys")?;
        a_lost_key_is_reported(&mut site, &mut near_entry)
            .await
            .context("the loss of a key")
    })
    .await
}

/// The entry's condition has the code and the key, and the exit's log has the key.
async fn is_refused(site: &Site<'_>, name: &str, key: &str) -> Result<()> {
    let what = "the condition has the refusal of the key";
    wait::for_object(&site.near.api(), name, what, WITHIN, |entry: &MuxTunnel| {
        let carrier = tunnel::condition(entry, condition::CONNECTED);
        carrier.is_some_and(|carrier| {
            let message = &carrier.message;
            carrier.status == "False" && message.contains("MT0235") && message.contains(key)
        })
    })
    .await?;
    wait::until("the exit's log has the key", WITHIN, async || {
        let log = site.far.kubectl(&["logs", "deployment/far-exit"]).await?;
        let mut lines = log.lines();
        let is_said = lines.any(|line| line.contains("MT0233") && line.contains(key));
        Ok(is_said.then_some(()))
    })
    .await
}

async fn a_deleted_peer_ends_alone(site: &Site<'_>, key: &[String]) -> Result<()> {
    let (near, far) = (site.near, site.far);
    load(near, "near-load", "near", 5, STREAMS).await?;
    load(near, "other-load", "other", 10, OTHER_STREAMS).await?;
    let entry = gateway::<MuxTunnel>(near, "near", "entry").await?;
    let exit = gateway::<MuxExit>(far, "far", "exit").await?;
    let open = async || {
        let status = tunnel::status(far, &exit).await?;
        status["streams"]["open"].as_u64().context("streams.open")
    };
    wait::until("all long streams are open", WITHIN, async || {
        let all = u64::from(STREAMS + OTHER_STREAMS);
        Ok((open().await? >= all).then_some(()))
    })
    .await?;

    let peers = far.api::<MuxPeer>();
    peers.delete("near", &DeleteParams::default()).await?;
    let what = "the carriers and streams of the deleted peer have ended";
    wait::until(what, ENDED_WITHIN, async || {
        let status = tunnel::status(near, &entry).await?;
        let carriers = status["carriers"].as_array().context("carriers")?;
        let left = u64::from(OTHER_STREAMS) + SHORT_OPEN_MAX;
        Ok((carriers.is_empty() && open().await? <= left).then_some(()))
    })
    .await?;
    let ended = pods::end_load(near, "near-load", LOAD_ENDS).await?;
    ensure!(ended.lost_streams() >= STREAMS.into(), "{ended:?}");

    admit(far, "near", key).await?;
    tunnel::ready(near, "near").await?;
    works(near, "near-again", "near").await?;
    let other = pods::end_load(near, "other-load", LOAD_ENDS).await?;
    ensure!(
        other.failed_opens() + other.lost_streams() == 0,
        "the other entry: {other:?}"
    );
    Ok(())
}

/// Each replacement rolls out the gateways, so the load has no streams that outlast a drain.
async fn keys_are_replaced(
    site: &mut Site<'_>,
    [near_entry, other_entry]: [&mut Value; 2],
) -> Result<()> {
    let (near, far) = (site.near, site.far);
    load(near, "load", "near", 20, 0).await?;
    let both = generations::<MuxTunnel>(near, near_entry, &[1, 2]).await?;
    admit(far, "near", &both).await?;
    let newest = generations::<MuxTunnel>(near, near_entry, &[2]).await?;
    ensure!(newest[0] == both[0], "{newest:?}, before {both:?}");
    admit(far, "near", &newest).await?;

    let both = generations::<MuxExit>(far, &mut site.exit, &[1, 2]).await?;
    ensure!(both[1] == site.keys[0], "{both:?}, before {:?}", site.keys);
    accept(near, near_entry, &both).await?;
    accept(near, other_entry, &both).await?;
    site.keys = generations::<MuxExit>(far, &mut site.exit, &[2]).await?;
    accept(near, near_entry, &site.keys).await?;
    accept(near, other_entry, &site.keys).await?;

    let load = pods::end_load(near, "load", LOAD_ENDS).await?;
    ensure!(load.failed_opens() == 0, "{load:?}");
    works(near, "near-new", "near").await?;
    works(near, "other-new", "other").await
}

/// A kubelet caches an immutable Secret while one of its pods mounts it. So the exit is scaled to
/// zero, and the next pod waits.
async fn a_lost_key_is_reported(site: &mut Site<'_>, near_entry: &mut Value) -> Result<()> {
    let (near, far) = (site.near, site.far);
    let secrets = far.api::<Secret>();
    let lost = "far-exit-key-2";
    secrets.delete(lost, &DeleteParams::default()).await?;
    works(near, "near-lost", "near").await?;
    let selector = tunnel::selector::<MuxExit>("far", "exit");
    for replicas in [0, 1] {
        scale(far, ("far-exit", &selector), replicas).await?;
    }
    let what = "the condition has the lost key and the remedy";
    wait::for_object(&far.api(), "far", what, WITHIN, |exit: &MuxExit| {
        let valid = tunnel::condition(exit, condition::CREDENTIALS_VALID);
        valid.is_some_and(|valid| {
            let has = |text: &str| valid.message.contains(text);
            valid.status == "False"
                && valid.reason == "KeyLost"
                && has(lost)
                && has("key.generations to [3]")
        })
    })
    .await?;
    ensure!(
        secrets.get_opt(lost).await?.is_none(),
        "the operator replaced a lost key"
    );
    site.keys = generations::<MuxExit>(far, &mut site.exit, &[3]).await?;
    accept(near, near_entry, &site.keys).await?;
    works(near, "near-remedied", "near").await
}

/// A tunnel with its own exit, without a word about security.
const BOTH: &str = "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxTunnel
metadata: {name: t}
spec:
  forwards:
  - name: web
    port: 8080
    targets: [{serviceRef: {name: web}, port: 80}]
";

/// The Secrets with the keys of both ends of `t`.
async fn pairs(ns: &TestNamespace) -> Result<Vec<Secret>> {
    let mut secrets = ns.api::<Secret>().list(&ListParams::default()).await?.items;
    secrets.retain(|secret| secret.name_any().starts_with("t-pair-"));
    Ok(secrets)
}

#[tokio::test]
async fn a_tunnel_without_a_word_of_security_has_keys_and_lost_keys_are_replaced() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("pair", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Load).await?;
        let up = tunnel::up(ns, BOTH).await?;
        let status = up.status.as_ref().context("a status")?;
        ensure!(
            tunnel::is_true(&up, condition::CREDENTIALS_VALID)
                && status.public_keys.is_empty()
                && status.keys.is_empty(),
            "{status:?}"
        );
        let before = pairs(ns).await?;
        let [pair] = &before[..] else {
            anyhow::bail!("expected one Secret, found {}", before.len());
        };
        ensure!(
            pair.type_.as_deref() == Some("muxtunnel.dev/key") && pair.immutable == Some(true),
            "{:?}",
            pair.type_
        );
        works(ns, "first", "t").await?;

        let secrets = ns.api::<Secret>();
        secrets
            .delete(&pair.name_any(), &DeleteParams::default())
            .await?;
        // Running gateways keep their keys. A kubelet caches an immutable Secret while one of its
        // pods mounts it, so both ends are scaled to zero.
        works(ns, "running", "t").await?;
        let [entry, exit] = ["entry", "exit"].map(|end| tunnel::selector::<MuxTunnel>("t", end));
        for replicas in [0, 1] {
            tokio::try_join!(
                scale(ns, ("t-entry", &entry), replicas),
                scale(ns, ("t-tunnel-exit", &exit), replicas)
            )?;
        }
        wait::until("another pair exists", WITHIN, async || {
            Ok((!pairs(ns).await?.is_empty()).then_some(()))
        })
        .await?;
        tunnel::ready(ns, "t").await?;
        works(ns, "again", "t").await
    })
    .await
}

//! Faults of the operator, the API server and the kubelet, and changes of objects by users.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use muxtunnel_crds::{MuxTunnel, condition};
use serde_json::json;

use super::site::{self, Moment, PLAIN, PODS_WITHIN, nothing, under_load};
use super::{Outcome, Scale};
use crate::admission::every_bad_object_is_refused;
use crate::pods::{self, Serve};
use crate::{PodSecurity, TestNamespace, operator, tunnel, wait, with_temp_ns};

/// Time-out until 200 tunnels have their children and a status.
const MANY_WITHIN: Duration = Duration::from_secs(480);
/// Maximum resident memory of an operator.
const MEMORY_MIB_MAX: u64 = 128;

/// A user changes the image and the replicas of the exits' Deployment.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn deployment_edited(scale: Scale) -> Result<Outcome> {
    under_load(PLAIN, scale, nothing, async |ns| {
        let deployments = ns.api::<Deployment>();
        let built = deployments.get("t-tunnel-exit").await?;
        let edit = json!({"spec": {"replicas": 1, "template": {"spec": {"containers": [
            {"name": "gateway", "image": "muxtunnel/gateway:by-hand"},
        ]}}}});
        let at = Moment::now();
        let how = PatchParams::default();
        deployments
            .patch("t-tunnel-exit", &how, &Patch::Strategic(&edit))
            .await?;
        let same = |deployment: &Deployment| {
            let (now, built) = (deployment.spec.as_ref(), built.spec.as_ref());
            now.map(|spec| (&spec.replicas, &spec.template))
                == built.map(|spec| (&spec.replicas, &spec.template))
        };
        let what = "the Deployment has its image and replicas again";
        wait::for_object(&deployments, "t-tunnel-exit", what, PODS_WITHIN, same).await?;
        let over = at.over("time until the operator restored the Deployment's image and replicas");
        site::whole(ns, &[]).await?;
        Ok(over)
    })
    .await
}

/// Sends SIGKILL to the operator that holds the Lease, so that the operator does not release the
/// Lease. Then another operator applies a change.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn leader_killed(scale: Scale) -> Result<Outcome> {
    under_load(PLAIN, scale, nothing, async |ns| {
        let pods: Api<Pod> = Api::namespaced(ns.client.clone(), operator::NAMESPACE);
        let (leader, identity) = operator::leader(ns).await?;
        let at = Moment::now();
        pods::kill(ns, &leader, "muxtunnel-opera").await?;
        site::taken_up(ns, PLAIN).await?;
        let over = at.over("time until another operator applied a change of the spec");
        // Each process has its own identity, even after a restart in the same pod.
        let (next, next_identity) = operator::leader(ns).await?;
        ensure!(
            next_identity != identity,
            "{identity} holds the Lease after it was killed"
        );
        let name = leader.name_any();
        wait::for_object(&pods, &name, "a restart", PODS_WITHIN, |pod| {
            pods::is_ready(pod) && pods::restarts(pod) > pods::restarts(&leader)
        })
        .await?;
        Ok(over.noting(format!(
            "time until another operator applied a change of the spec; {}",
            if next.name_any() == name {
                "it runs in the same pod"
            } else {
                "it runs in another pod"
            }
        )))
    })
    .await
}

/// Removes all pods of the operator for some time.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn operator_away(scale: Scale) -> Result<Outcome> {
    under_load(PLAIN, scale, nothing, async |ns| {
        let replicas = operator::replicas(ns).await?;
        let at = Moment::now();
        let away = async {
            operator::scale(ns, 0).await?;
            tokio::time::sleep(Duration::from_secs(scale.away_seconds.into())).await;
            anyhow::Ok(())
        };
        let away = away.await;
        operator::scale(ns, replicas).await?;
        away?;
        let back = Moment::now();
        site::taken_up(ns, PLAIN).await?;
        Ok(at.over(format!(
            "a change is applied {:.1} s after the operator's pods are ready again",
            back.seconds()
        )))
    })
    .await
}

/// Stops the API server for some time. A script removes the API server's manifest from the
/// kubelet's folder.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn api_server_away(scale: Scale) -> Result<Outcome> {
    under_load(PLAIN, scale, nothing, async |ns| {
        let node = ns.cluster.node().await?;
        let restarts = restarts(ns).await?;
        // The script restores the manifest even if this process ends before the script.
        let script = format!(
            "cd /etc/kubernetes
             mv manifests/kube-apiserver.yaml .
             trap 'mv kube-apiserver.yaml manifests/' EXIT
             answers() {{ curl --silent --insecure --max-time 2 --output /dev/null https://127.0.0.1:6443/livez; }}
             for try in $(seq 120); do answers || break; sleep 0.5; done
             if answers; then exit 1; fi
             sleep {}",
            scale.away_seconds
        );
        let at = Moment::now();
        node.run(&script).await?;
        let back = Moment::now();
        wait::until("the API server answers", PODS_WITHIN, async || {
            Ok(ns.client.apiserver_version().await.ok())
        })
        .await?;
        let answers = back.seconds();
        site::taken_up(ns, PLAIN).await?;
        let taken_up = back.seconds();
        site::whole(ns, &[]).await?;
        ensure!(
            restarts == self::restarts(ns).await?,
            "gateways restarted while the API server was stopped"
        );
        Ok(at.over(format!(
            "after its restart the API server answers within {answers:.1} s, and a change is applied within {taken_up:.1} s"
        )))
    })
    .await
}

/// The number of restarts of each gateway's container.
async fn restarts(ns: &TestNamespace) -> Result<Vec<(String, i32)>> {
    let mut all = Vec::new();
    for side in ["entry", "exit"] {
        for pod in tunnel::gateways(ns, "t", side).await? {
            all.push((pod.name_any(), pods::restarts(&pod)));
        }
    }
    all.sort();
    Ok(all)
}

/// Restarts the kubelet.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn kubelet_restarted(scale: Scale) -> Result<Outcome> {
    under_load(PLAIN, scale, nothing, async |ns| {
        let node = ns.cluster.node().await?;
        let restarts = restarts(ns).await?;
        let at = Moment::now();
        node.run("systemctl restart kubelet").await?;
        let healthy = "for try in $(seq 240); do
             curl --silent --fail --output /dev/null http://127.0.0.1:10248/healthz && exit 0
             sleep 0.25
           done
           exit 1";
        node.run(healthy).await?;
        let over = at.over("time until the kubelet's health endpoint answered");
        site::whole(ns, &[]).await?;
        ensure!(
            restarts == self::restarts(ns).await?,
            "gateways restarted with the kubelet"
        );
        Ok(over)
    })
    .await
}

/// Applies objects that the API server must refuse, objects that can never work, and a valid object
/// that must work in spite of them.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn bad_objects(scale: Scale) -> Result<Outcome> {
    under_load(PLAIN, scale, nothing, async |ns| {
        let at = Moment::now();
        let refused = every_bad_object_is_refused(ns).await?;
        let hopeless = hopeless();
        for (name, yaml) in &hopeless {
            let applied = tunnel::apply(ns, yaml).await;
            applied.with_context(|| format!("{name} should be accepted"))?;
        }
        let good = yaml("good", "web", 80, "", "security: {mode: None}");
        tunnel::up(ns, &good).await?;
        let over = at.over(format!(
            "{refused} objects were refused, {} tunnels that can never work got a condition, and a valid tunnel became ready",
            hopeless.len()
        ));
        let tunnels = ns.api::<MuxTunnel>();
        for (name, _) in &hopeless {
            let judged = |tunnel: &MuxTunnel| {
                let ready = tunnel::condition(tunnel, condition::READY);
                ready.is_some_and(|ready| ready.status == "False" && ready.message.starts_with("MT"))
            };
            let what = "a condition names the cause";
            wait::for_object(&tunnels, name, what, PODS_WITHIN, judged).await?;
        }
        Ok(over)
    })
    .await
}

/// Tunnels that the schema accepts but that can never work.
fn hopeless() -> Vec<(&'static str, String)> {
    let plain = "None";
    let own = |secret: &str| {
        format!(
            "Certificates, certificates: {{entry: {{secretRef: {{name: {secret}}}}}, exit: {{secretRef: {{name: {secret}}}}}, entryNames: [x], exitNames: [x]}}"
        )
    };
    let nowhere = "entry: {template: {spec: {nodeSelector: {muxtunnel.dev/no: 'such-node'}}}}";
    let never = "entry: {template: {spec: {priorityClassName: no-such-class}}}";
    let forbidden = "wanEmulation: {delayMilliseconds: 5}";
    vec![
        ("no-service", yaml("no-service", "nobody", 80, "", plain)),
        ("no-port", yaml("no-port", "web", 81, "", plain)),
        (
            "no-secret",
            yaml("no-secret", "web", 80, "", &own("missing")),
        ),
        ("no-node", yaml("no-node", "web", 80, nowhere, plain)),
        ("no-class", yaml("no-class", "web", 80, never, plain)),
        ("no-rights", yaml("no-rights", "web", 80, forbidden, plain)),
    ]
}

fn yaml(name: &str, service: &str, port: u16, more: &str, security: &str) -> String {
    format!(
        "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxTunnel
metadata: {{name: {name}}}
spec:
  forwards:
  - name: web
    port: 8080
    targets: [{{serviceRef: {{name: {service}}}, port: {port}}}]
  security: {{mode: {security}}}
  {more}
"
    )
}

/// Creates `count` tunnels at once. No node accepts the gateways of these tunnels. Measures the
/// time until each tunnel has a status, and the operator's memory during this time.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn many_tunnels(count: usize) -> Result<Outcome> {
    with_temp_ns("fault", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        let nowhere = "entry: {template: {spec: {nodeSelector: {muxtunnel.dev/no: 'such-node'}}}}
  exit: {template: {spec: {nodeSelector: {muxtunnel.dev/no: 'such-node'}}}}";
        let at = Moment::now();
        for number in 0..count {
            let name = format!("t{number}");
            tunnel::apply(ns, &yaml(&name, "web", 80, nowhere, "None")).await?;
        }
        let made = at.seconds();
        let what = "every tunnel has its children and a status";
        wait::until(what, MANY_WITHIN, async || {
            let tunnels = ns.api::<MuxTunnel>().list(&ListParams::default()).await?;
            let settled = |tunnel: &MuxTunnel| {
                tunnel::condition(tunnel, condition::READY).is_some()
            };
            if tunnels.items.len() < count || !tunnels.items.iter().all(settled) {
                tokio::time::sleep(Duration::from_secs(1)).await;
                return Ok(None);
            }
            let all = ListParams::default();
            let deployments = ns.api::<Deployment>().list_metadata(&all).await?.items;
            let services = ns.api::<Service>().list_metadata(&all).await?.items;
            let made = deployments.len() >= 2 * count && services.len() >= 2 * count;
            Ok(made.then_some(()))
        })
        .await?;
        let over = at.over("");
        let (now, peak) = memory_mib(ns).await?;
        ensure!(
            peak <= MEMORY_MIB_MAX,
            "the operator's peak memory was {peak} MiB: expected at most {MEMORY_MIB_MAX} MiB"
        );
        Ok(over.noting(format!(
            "all tunnels were created after {made:.1} s; the operator's resident memory is {now} MiB, its peak {peak} MiB"
        )).without_load())
    })
    .await
}

/// The largest resident memory of an operator's process in MiB: the current value, and the peak
/// since the start.
async fn memory_mib(ns: &TestNamespace) -> Result<(u64, u64)> {
    let node = ns.cluster.node().await?;
    let statuses = "for status in /proc/[0-9]*/status; do
         if grep -q '^Name:.muxtunnel-opera' $status 2>/dev/null; then grep -E '^Vm(HWM|RSS):' $status; fi
       done";
    let text = node.run(statuses).await?;
    let most = |name: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        let kib = lines.filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.max().map(|kib| kib / 1024)
    };
    let both = most("VmRSS:").zip(most("VmHWM:"));
    both.with_context(|| format!("no operator runs on {}: {text:?}", node.name))
}

//! Faults of gateways: killed processes, deleted pods, roll-outs, and changed certificates.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;

use super::site::{self, Moment, PLAIN, PODS_WITHIN, nothing, tunnel_yaml, under_load};
use super::{Outcome, Scale};
use crate::keys::Authority;
use crate::{TestNamespace, pods, tunnel, wait};

/// Time between two renewals of certificates.
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// Sends SIGKILL to the busiest gateway of a side: the gateway with the most streams. The kubelet
/// restarts the container.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn process_killed(side: &str, scale: Scale) -> Result<Outcome> {
    under_load(PLAIN, scale, nothing, async |ns| {
        let pod = busiest(ns, side).await?;
        let at = Moment::now();
        pods::kill(ns, &pod, "muxgate").await?;
        let restarted = |pod: &Pod| pods::restarts(pod) > 0;
        let (pods, name) = (ns.api::<Pod>(), pod.name_any());
        wait::for_object(&pods, &name, "a restart", PODS_WITHIN, restarted).await?;
        site::whole(ns, &[]).await?;
        Ok(at.over(""))
    })
    .await
}

/// Deletes the pod of the busiest gateway of a side: the gateway with the most streams. `grace` is
/// the grace period in seconds; `None` selects the pod's own grace period.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn pod_deleted(side: &str, grace: Option<u32>, scale: Scale) -> Result<Outcome> {
    under_load(PLAIN, scale, nothing, async |ns| {
        let name = busiest(ns, side).await?.name_any();
        let how = DeleteParams {
            grace_period_seconds: grace,
            ..DeleteParams::default()
        };
        let at = Moment::now();
        ns.api::<Pod>().delete(&name, &how).await?;
        site::whole(ns, &[name]).await?;
        Ok(at.over(""))
    })
    .await
}

/// The busiest gateway of a side: the gateway with the most open streams.
async fn busiest(ns: &TestNamespace, side: &str) -> Result<Pod> {
    let mut most = None;
    for pod in tunnel::gateways(ns, "t", side).await? {
        let open = tunnel::status(ns, &pod).await?["streams"]["open"].as_u64();
        let open = open.with_context(|| format!("streams.open of {}", pod.name_any()))?;
        if most.as_ref().is_none_or(|(other, _)| open > *other) {
            most = Some((open, pod));
        }
    }
    let (_, pod) = most.context("a gateway")?;
    Ok(pod)
}

/// Replaces the pods of a side one by one, like `kubectl rollout restart`.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn restarted(side: &str, scale: Scale) -> Result<Outcome> {
    let outcome = under_load(PLAIN, scale, nothing, async |ns| {
        let old = site::names(ns, side).await?;
        let deployment = format!("deployment/{}", tunnel::child("t", side));
        let at = Moment::now();
        ns.kubectl(&["rollout", "restart", &deployment]).await?;
        site::whole(ns, &old).await?;
        Ok(at.over(""))
    })
    .await;
    no_open_failed(outcome?)
}

/// Replaces the pods of both sides, one side after the other.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn both_restarted(scale: Scale) -> Result<Outcome> {
    let outcome = under_load(PLAIN, scale, nothing, async |ns| {
        let at = Moment::now();
        for side in ["exit", "entry"] {
            let old = site::names(ns, side).await?;
            let deployment = format!("deployment/{}", tunnel::child("t", side));
            ns.kubectl(&["rollout", "restart", &deployment]).await?;
            site::whole(ns, &old).await?;
        }
        Ok(at.over(""))
    })
    .await;
    no_open_failed(outcome?)
}

/// Returns an error if a connection failed, because gateways that drain must not refuse new
/// connections.
fn no_open_failed(outcome: Outcome) -> Result<Outcome> {
    let load = outcome.load.as_ref().context("a load")?;
    ensure!(
        load.failed_opens() == 0,
        "connections failed while gateways were replaced in order: {outcome:?}"
    );
    Ok(outcome)
}

async fn all_names(ns: &TestNamespace) -> Result<Vec<String>> {
    let mut names = site::names(ns, "entry").await?;
    names.extend(site::names(ns, "exit").await?);
    Ok(names)
}

/// Changes a sysctl in the spec, which causes roll-outs of both sides at the same time.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn sysctl_changed(scale: Scale) -> Result<Outcome> {
    let outcome = under_load(PLAIN, scale, nothing, async |ns| {
        let old = all_names(ns).await?;
        let tuning = "tuning: {sysctls: [{name: net.ipv4.tcp_keepalive_time, value: '77'}]}";
        let at = Moment::now();
        tunnel::apply(ns, &tunnel_yaml(PLAIN, tuning)).await?;
        site::whole(ns, &old).await?;
        tunnel::ready(ns, "t").await?;
        Ok(at.over(""))
    })
    .await;
    no_open_failed(outcome?)
}

/// Changes the gateway image of the class, which causes roll-outs of both sides at the same time.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn image_changed(scale: Scale) -> Result<Outcome> {
    let again = concat!(env!("CARGO_PKG_VERSION"), "-again");
    let node = scale.cluster.node().await?;
    let image = concat!("docker.io/muxtunnel/gateway:", env!("CARGO_PKG_VERSION"));
    node.run(&format!(
        "ctr --namespace k8s.io images tag --force {image} {image}-again"
    ))
    .await?;
    let outcome = under_load(PLAIN, scale, nothing, async |ns| {
        let old = all_names(ns).await?;
        let at = Moment::now();
        let changed = async {
            scale
                .cluster
                .set_value(&format!(
                    "class.images.gateway=\"muxtunnel/gateway:{again}\""
                ))
                .await?;
            site::whole(ns, &old).await?;
            Ok(at.over(""))
        };
        let changed = changed.await;
        scale.cluster.set_value("class.images.gateway=\"\"").await?;
        changed
    })
    .await;
    no_open_failed(outcome?)
}

/// Renews the certificates of both sides repeatedly. These certificates are in Secrets of the user.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn certificates_renewed(scale: Scale) -> Result<Outcome> {
    let security = "Certificates, certificates: {entry: {secretRef: {name: t-in}}, exit: {secretRef: {name: t-out}}, entryNames: [t-in], exitNames: [t-out]}";
    let authority = Authority::new()?;
    let certify = async |ns: &TestNamespace| {
        authority.certify(ns, "t-in").await?;
        authority.certify(ns, "t-out").await
    };
    let outcome = under_load(security, scale, certify, async |ns| {
        let at = Moment::now();
        let renewals = (scale.load_seconds / 10).saturating_sub(3);
        for _ in 0..renewals {
            certify(ns).await?;
            tokio::time::sleep(RENEW_EVERY).await;
        }
        // New carriers use the newest certificates.
        let names = site::names(ns, "exit").await?;
        ns.kubectl(&["rollout", "restart", "deployment/t-tunnel-exit"])
            .await?;
        site::whole(ns, &names).await?;
        Ok(at.over(format!("{renewals} renewals, then a roll-out of the exits")))
    });
    outcome.await
}

#[cfg(test)]
mod tests {
    use muxtunnel_bench_api::load::{Failure, Report};

    use super::*;

    #[test]
    fn a_failed_open_is_judged_and_a_stream_that_outlasts_the_drain_is_not() {
        let outcome = |failed: u64| {
            let mut load = Report::default();
            Report::count(&mut load.lost, Failure::Reset, 1);
            for _ in 0..failed {
                Report::count(&mut load.failed, Failure::Refused, 1);
            }
            Outcome {
                load: Some(load),
                failing_seconds: None,
                whole_seconds: 1.0,
                note: String::new(),
            }
        };
        assert!(no_open_failed(outcome(0)).is_ok());
        assert!(no_open_failed(outcome(1)).is_err());
    }
}

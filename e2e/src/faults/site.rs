//! The environment of a fault: a namespace, a tunnel of two entries and two exits, and a load
//! through the tunnel.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use muxtunnel_bench_api::load::{Failure, Report};
use muxtunnel_crds::MuxTunnel;

use super::{Outcome, Scale};
use crate::pods::{self, Serve};
use crate::{PodSecurity, TestNamespace, tunnel, wait, with_temp_ns_in};

/// Number of short connections per second.
const OPENS_PER_SECOND: u32 = 200;
/// Number of long streams.
const STREAMS: u32 = 20;
/// Time between the beginning of the load and the fault.
const BEFORE: Duration = Duration::from_secs(3);
/// Maximum duration of the load, longer than any fault.
const LOAD_MOST_SECONDS: u32 = 1200;
/// Duration of the load after the end of the fault.
const AFTER: Duration = Duration::from_secs(3);
/// Time-out for the load to end after SIGTERM.
const LOAD_ENDS: Duration = Duration::from_secs(90);
/// Time-out until pods have recovered.
pub(super) const PODS_WITHIN: Duration = Duration::from_secs(180);

/// The moment of a fault.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    wall: SystemTime,
    began: Instant,
}

/// A fault that has ended. The system is in its requested state again.
pub(super) struct Over {
    at: Moment,
    whole: Duration,
    note: String,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self {
            wall: SystemTime::now(),
            began: Instant::now(),
        }
    }

    /// Seconds since this moment.
    pub(super) fn seconds(self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    pub(super) fn over(self, note: impl Into<String>) -> Over {
        Over {
            at: self,
            whole: self.began.elapsed(),
            note: note.into(),
        }
    }

    /// This moment in milliseconds since 1970. The load uses the same clock, because it runs on
    /// this machine.
    fn unix_ms(self) -> Result<u128> {
        Ok(self.wall.duration_since(UNIX_EPOCH)?.as_millis())
    }

    /// Seconds from this moment to a time that the load reports.
    fn until(self, unix_ms: u64) -> Result<f64> {
        Ok((unix_ms as f64 - self.unix_ms()? as f64).max(0.0) / 1000.0)
    }
}

impl Over {
    pub(super) fn noting(self, note: String) -> Self {
        Self { note, ..self }
    }

    pub(super) fn without_load(self) -> Outcome {
        Outcome {
            load: None,
            failing_seconds: None,
            whole_seconds: self.whole.as_secs_f64(),
            note: self.note,
        }
    }
}

/// The tunnel `t` from port 8080 to port 80 of the Service `web`, with two gateways on each side.
/// `security` is the security of the carriers, and `more` is additional YAML of the spec. The gateways have the default time to drain.
pub(super) fn tunnel_yaml(security: &str, more: &str) -> String {
    let gateways =
        "entry: {replicas: 2, drainSeconds: 25}\n  exit: {replicas: 2, drainSeconds: 25}\n";
    tunnel::to_web(security, "", &format!("{gateways}  {more}"))
}

/// Carriers without encryption.
pub(super) const PLAIN: &str = "None";

/// Prepares nothing. Most faults need no preparation.
pub(super) async fn nothing(_: &TestNamespace) -> Result<()> {
    Ok(())
}

/// Prepares the namespace, creates a tunnel with `security`, and causes `fault` while a load runs
/// through the tunnel.
pub(super) async fn under_load(
    security: &str,
    scale: Scale,
    prepare: impl AsyncFnOnce(&TestNamespace) -> Result<()>,
    fault: impl AsyncFnOnce(&TestNamespace) -> Result<Over>,
) -> Result<Outcome> {
    with_temp_ns_in(
        scale.cluster,
        "fault",
        PodSecurity::Restricted,
        async |ns| {
            prepare(ns).await?;
            pods::serve(ns, "web", Serve::Load).await?;
            tunnel::up(ns, &tunnel_yaml(security, "")).await?;
            pods::load(
                ns,
                "load",
                "t-entry:8080",
                OPENS_PER_SECOND,
                STREAMS,
                LOAD_MOST_SECONDS,
            )
            .await?;
            let began = Moment::now();
            tokio::time::sleep(BEFORE).await;
            let over = fault(ns).await?;
            let ended = Moment::now();
            dns_answers(ns).await?;
            let rest = f64::from(scale.load_seconds) - began.seconds();
            let rest = Duration::from_secs_f64(rest.max(0.0)).max(AFTER);
            tokio::time::sleep(rest).await;
            let seconds = began.seconds();
            let load = pods::end_load(ns, "load", LOAD_ENDS).await?;
            outlasted(&load, ended, seconds)?;
            for what in [&load.failed, &load.lost] {
                ensure!(
                    !what.contains_key(&Failure::Wrong),
                    "a connection received a wrong byte: {load:?}"
                );
            }
            // Fails on early clean ends, because a client cannot distinguish an early clean end
            // from a complete answer.
            for what in [&load.failed, &load.lost] {
                ensure!(
                    !what.contains_key(&Failure::Short),
                    "a connection ended early without a reset: {load:?}"
                );
            }
            // After the fault, connections must no longer fail.
            pods::load(ns, "after", "t-entry:8080", OPENS_PER_SECOND, STREAMS, 3).await?;
            let after = pods::load_report(ns, "after", LOAD_ENDS).await?;
            ensure!(
                after.failed_opens() + after.lost_streams() == 0,
                "connections still fail after the fault: {after:?}"
            );
            let last = load.last_failure_unix_ms();
            Ok(Outcome {
                failing_seconds: last.map(|last| over.at.until(last)).transpose()?,
                load: Some(load),
                ..over.without_load()
            })
        },
    )
    .await
}

/// Checks that the load continued at its rate until after the fault, and that it counted each
/// connection.
fn outlasted(load: &Report, ended: Moment, seconds: f64) -> Result<()> {
    ensure!(
        load.opens == load.begun,
        "the load did not count some of its connections: {load:?}"
    );
    ensure!(
        u128::from(load.last_begun_unix_ms) >= ended.unix_ms()?,
        "the load ended before the fault: {load:?}"
    );
    // Connections that the load itself did not begin prove nothing.
    ensure!(
        load.own * 100 <= load.begun,
        "the load's machine could not begin more than 1 % of the connections: {load:?}"
    );
    // The limit is below the number that follows from the rate, because a busy machine delays some
    // connections.
    let least = seconds * f64::from(OPENS_PER_SECOND) * 0.75;
    ensure!(
        load.begun as f64 >= least,
        "{seconds:.0} s of load have at least {least:.0} connections: {load:?}"
    );
    Ok(())
}

/// Waits until the cluster's DNS resolves a new Service. CoreDNS misses changes while the API
/// server is stopped, and the next test depends on DNS.
async fn dns_answers(ns: &TestNamespace) -> Result<()> {
    let name = "new-name";
    wait::until(
        "the API server creates a Service",
        PODS_WITHIN,
        async || {
            let made = ["create", "service", "clusterip", name, "--tcp=80"];
            Ok(ns.kubectl(&made).await.ok())
        },
    )
    .await?;
    wait::until("DNS resolves a new Service", PODS_WITHIN, async || {
        let look = ["exec", "web", "--", "getent", "hosts", name];
        Ok(ns.kubectl(&look).await.ok())
    })
    .await?;
    Ok(())
}

/// The names of a side's pods.
pub(super) async fn names(ns: &TestNamespace, side: &str) -> Result<Vec<String>> {
    let pods = tunnel::gateways(ns, "t", side).await?;
    Ok(pods.iter().map(ResourceExt::name_any).collect())
}

/// Waits until each side has exactly two pods that are ready and not in `but`.
pub(super) async fn whole(ns: &TestNamespace, but: &[String]) -> Result<()> {
    wait::until(
        "each side has exactly two ready pods",
        PODS_WITHIN,
        async || {
            for side in ["entry", "exit"] {
                let selector = tunnel::selector::<MuxTunnel>("t", side);
                let list = ListParams::default().labels(&selector);
                // Ignores a failed request, because the API server may still be starting.
                let Ok(pods) = ns.api::<Pod>().list(&list).await else {
                    return Ok(None);
                };
                let good = |pod: &Pod| pods::is_ready(pod) && !but.contains(&pod.name_any());
                if pods.items.len() != 2 || !pods.items.iter().all(good) {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        },
    )
    .await
}

/// Changes the tunnel's spec, and waits until the operator's status describes the change.
pub(super) async fn taken_up(ns: &TestNamespace, security: &str) -> Result<()> {
    let changed = tunnel_yaml(security, "timeouts: {idleSeconds: 3600}");
    let tunnel = wait::until("the API server accepts a change", PODS_WITHIN, async || {
        Ok(tunnel::apply(ns, &changed).await.ok())
    })
    .await?;
    let generation = tunnel.metadata.generation.context("a generation")?;
    wait::until("the operator applies the change", PODS_WITHIN, async || {
        let Ok(tunnel) = ns.api::<MuxTunnel>().get("t").await else {
            return Ok(None);
        };
        let seen = tunnel.status.and_then(|status| status.observed_generation);
        Ok((seen >= Some(generation)).then_some(()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_ends_before_the_fault_or_leaves_connections_out_proves_nothing() {
        let ended = Moment::now();
        let now = u64::try_from(ended.unix_ms().unwrap()).unwrap();
        let load = |begun: u64, opens: u64, last_begun_unix_ms: u64| Report {
            begun,
            opens,
            last_begun_unix_ms,
            ..Report::default()
        };
        let all = 10 * u64::from(OPENS_PER_SECOND);
        assert!(outlasted(&load(all, all, now + 1), ended, 10.0).is_ok());
        assert!(outlasted(&load(all, all, now - 1), ended, 10.0).is_err());
        assert!(outlasted(&load(all, all - 1, now + 1), ended, 10.0).is_err());
        assert!(outlasted(&load(all / 2, all / 2, now + 1), ended, 10.0).is_err());
        let mut own = load(all, all, now + 1);
        own.own = all / 100;
        assert!(outlasted(&own, ended, 10.0).is_ok());
        own.own += 1;
        assert!(outlasted(&own, ended, 10.0).is_err());
    }
}

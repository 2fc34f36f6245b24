//! Faults of gateways with an interface. The load is ping, and the cost is the longest time without
//! an answer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::site::{Moment, PODS_WITHIN};
use super::{Outcome, Scale};
use crate::{PodSecurity, pods, tunnel, wait, with_temp_ns_in};

const ENTRY: &str = "10.72.0.1";
const EXIT: &str = "10.72.0.2";
/// Time between the first ping and the fault.
const BEFORE: Duration = Duration::from_secs(2);
/// If the last answer arrived at most this long before the end of the pings, packets pass again.
const SETTLED_MS: u64 = 1000;

/// The figures that `packets.pl gap` has measured.
#[derive(Debug, PartialEq)]
struct Pings {
    /// Longest time between two answers.
    gap_ms: u64,
    sent: u64,
    answered: u64,
    /// Time from the last answer to the end.
    since_answer_ms: u64,
}

impl Pings {
    fn parse(printed: &str) -> Result<Self> {
        let numbers = printed.split_whitespace().map(str::parse);
        let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().context("the gap")?;
        let [gap_ms, sent, answered, since_answer_ms] = numbers[..] else {
            anyhow::bail!("expected four numbers, printed: {printed}");
        };
        Ok(Self {
            gap_ms,
            sent,
            answered,
            since_answer_ms,
        })
    }
}

/// Sends SIGKILL to the gateway of one side, while the pod of the other side pings through the
/// tunnel. The kubelet restarts the container.
///
/// # Errors
/// As [`super::Fault::run`].
pub async fn process_killed(side: &str, protocol: &str, scale: Scale) -> Result<Outcome> {
    with_temp_ns_in(
        scale.cluster,
        "packets",
        PodSecurity::Privileged,
        async |ns| {
            tunnel::up(ns, &yaml(protocol)).await?;
            let (from, to) = match side {
                "entry" => ("exit", ENTRY),
                _ => ("entry", EXIT),
            };
            let gateway = async |side| {
                let mut pods = tunnel::gateways(ns, "t", side).await?;
                pods.pop().context("a gateway")
            };
            let (killed, pinging) = (gateway(side).await?, gateway(from).await?);
            let seconds = scale.load_seconds.to_string();
            let words = ["gap", to, &seconds];
            let pings = tunnel::packets(ns, &pinging, &words);
            let fault = async {
                tokio::time::sleep(BEFORE).await;
                let at = Moment::now();
                pods::kill(ns, &killed, "muxgate").await?;
                let restarted = |pod: &Pod| pods::restarts(pod) > 0 && pods::is_ready(pod);
                let (pods, name) = (ns.api::<Pod>(), killed.name_any());
                wait::for_object(&pods, &name, "a restart", PODS_WITHIN, restarted).await?;
                Ok(at.over(""))
            };
            let (printed, over) = tokio::try_join!(pings, fault)?;
            let pings = Pings::parse(&printed)?;
            ensure!(
                pings.since_answer_ms < SETTLED_MS && pings.answered < pings.sent,
                "the pings must outlast the fault: {pings:?}"
            );
            let note = format!("{} of {} pings answered", pings.answered, pings.sent);
            Ok(Outcome {
                failing_seconds: Some(pings.gap_ms as f64 / 1000.0),
                ..over.noting(note).without_load()
            })
        },
    )
    .await
}

/// A tunnel of IP packets between one entry and one exit.
fn yaml(protocol: &str) -> String {
    format!(
        "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxTunnel
metadata: {{name: t}}
spec:
  carrier: {{protocol: {protocol}}}
  network:
    entry: {{cidrs: [{ENTRY}/32], addresses: [{ENTRY}]}}
    exit: {{cidrs: [{EXIT}/32], addresses: [{EXIT}]}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_numbers_are_expected() {
        let pings = Pings {
            gap_ms: 1200,
            sent: 500,
            answered: 440,
            since_answer_ms: 20,
        };
        assert_eq!(Pings::parse("1200 500 440 20\n").unwrap(), pings);
        assert!(Pings::parse("1200 500 440").is_err());
        assert!(Pings::parse("no answer").is_err());
    }
}

//! `token revoke`: raises the join generation, so that the exit no longer trusts former bundles.

use std::io::BufRead;
use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use muxtunnel_crds::tunnel_condition;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::context_flag;
use crate::args::{ClusterArgs, RevokeArgs};
use crate::cluster::{self, Cluster, failed, in_words, is_passing, refusal};
use crate::end::{Ended, Failure};
use crate::object::{self, Tunnel};
use crate::output::{API_VERSION, Document, Style, Terminal};

/// The annotation with the join generation of the exit's MuxTunnel. Without it, the generation is
/// that of the status, or 0.
const GENERATION: &str = muxtunnel_contract::annotations::JOIN_GENERATION;
/// Interval between two reads of the tunnel with `--wait`.
const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn run(
    args: &RevokeArgs,
    to: &ClusterArgs,
    program: &str,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    if !args.yes && !terminal.stdin {
        let message = "standard input is not a terminal, so the command cannot ask for confirmation: use --yes";
        return Err(Failure::Usage(message.to_owned()));
    }
    let cluster = cluster::connect(to).await?;
    let tunnel = super::exit(&cluster, &args.name).await?;
    let (namespace, name) = (&cluster.namespace, &args.name);
    let generation = next(&tunnel)?;
    let drain = drain_seconds(&tunnel);
    if !args.yes && !confirmed(namespace, name, drain)? {
        return Err(Failure::Failed(anyhow!(
            "not confirmed, so nothing was changed"
        )));
    }
    // The patch requires the resource version that was read, so of two concurrent revocations, one
    // fails.
    let patch = json!({"metadata": {
        "resourceVersion": tunnel.resource_version(),
        "annotations": {GENERATION: generation.to_string()},
    }});
    object::api(&cluster.client, Some(namespace))
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map_err(|error| failed(&format!("cannot annotate {namespace}/{name}"), error))?;
    if args.wait {
        published(&cluster, name, generation, args.timeout).await?;
    }
    let next = format!(
        "{program} token issue {name} -n {namespace}{} --filename {name}.join.yaml",
        context_flag(&cluster)
    );
    let revoked = Revoked {
        api_version: API_VERSION,
        kind: "TokenRevoked",
        namespace: namespace.clone(),
        name: name.clone(),
        generation,
        published: args.wait,
        drain_seconds: drain,
        next,
    };
    terminal.print(&revoked, args.format.format)?;
    Ok(Ended::Good)
}

/// The next generation: one more than the greater of annotation and status, because the annotation
/// may have been lost.
fn next(tunnel: &Tunnel) -> Result<u32, Failure> {
    let asked = match tunnel.annotations().get(GENERATION) {
        None => 0,
        Some(text) => text.parse::<u32>().with_context(|| {
            format!("the annotation {GENERATION} is {text:?}, not a number: correct it first")
        })?,
    };
    let status = tunnel.status.as_ref();
    let published =
        status.and_then(|status| Some(status.certificates.as_ref()?.least_generation()));
    let published = u32::try_from(published.unwrap_or_default()).unwrap_or_default();
    let now = asked.max(published);
    // Checks the range, because the operator reads a signed number of 32 bits.
    let next = now
        .checked_add(1)
        .filter(|next| i32::try_from(*next).is_ok());
    Ok(next.with_context(|| {
        format!(
            "the join generation {now} is the greatest possible: delete the MuxTunnel and create it again"
        )
    })?)
}

/// Reads the tunnel until its status shows a bundle of `generation` or of a later generation.
async fn published(
    cluster: &Cluster,
    name: &str,
    generation: u32,
    timeout: muxtunnel_crds::Duration,
) -> Result<(), Failure> {
    let namespace = cluster.namespace.as_str();
    let api = object::api(&cluster.client, Some(namespace));
    let deadline = Instant::now() + timeout.as_std();
    loop {
        let state = match timeout_at(deadline, api.get(name)).await {
            Ok(Ok(tunnel)) => {
                let join = tunnel.status.as_ref();
                let join = join.and_then(|status| status.certificates.as_ref()?.join.as_ref());
                let now = join.map(|join| join.generation).unwrap_or_default();
                if now >= i64::from(generation) {
                    return Ok(());
                }
                let ready = object::condition(&tunnel, tunnel_condition::READY);
                ready.map_or_else(
                    || "the operator has not reported a status".to_owned(),
                    |ready| {
                        format!(
                            "the published bundle has generation {now}; {}",
                            ready.message
                        )
                    },
                )
            }
            Ok(Err(error)) if refusal(&error).is_some_and(|status| !is_passing(status)) => {
                return Err(Failure::Failed(object::not_read(namespace, name, error)));
            }
            Ok(Err(error)) => in_words(&error),
            Err(_) => "the API server has not answered".to_owned(),
        };
        if Instant::now() + INTERVAL >= deadline {
            return Err(Failure::TimedOut(format!(
                "{namespace}/{name} now has the join generation {generation}, but the operator has not published \
                 a bundle of this generation within {timeout}: {state}"
            )));
        }
        sleep_until(Instant::now() + INTERVAL).await;
    }
}

/// Time in seconds that open streams have to end when their exit pod terminates.
fn drain_seconds(tunnel: &Tunnel) -> u64 {
    let asked = tunnel.spec["exit"]["drainSeconds"].as_u64();
    asked.unwrap_or(muxtunnel_contract::defaults::DRAIN_SECONDS.into())
}

fn confirmed(namespace: &str, name: &str, drain: u64) -> anyhow::Result<bool> {
    eprint!(
        "This command revokes every join bundle of {namespace}/{name} and replaces the exit's pods. Open carriers and \
         their streams end after the exit has read the changed Secret, and at the latest {drain} s after the shutdown of \
         their pod begins. Continue? [y/N] "
    );
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Revoked {
    api_version: &'static str,
    kind: &'static str,
    namespace: String,
    name: String,
    generation: u32,
    /// Whether the command waited for the operator.
    published: bool,
    drain_seconds: u64,
    next: String,
}

impl Document for Revoked {
    fn text(&self, _: Style) -> String {
        let Self {
            namespace,
            name,
            generation,
            published,
            drain_seconds,
            next,
            api_version: _,
            kind: _,
        } = self;
        let trust = match published {
            true => {
                "The operator has published a bundle of this generation, and new pods of the exit refuse entries with \
                 a former bundle"
            }
            false => {
                "When the operator has applied the generation, new pods of the exit refuse entries with a former bundle. \
                 The option --wait waits until the operator has published the bundle"
            }
        };
        let then = match published {
            true => "Issue the new bundle",
            false => "When the operator has published the new bundle, issue it",
        };
        format!(
            "{namespace}/{name}: join generation {generation}. {trust}.\n\
             Open carriers end when the exit reads the changed Secret, and at the latest {drain_seconds} s after the \
             shutdown of their pod begins.\n\
             {then}:\n\n    {next}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel(generation: Option<&str>) -> Tunnel {
        let annotations = generation.map(|text| json!({GENERATION: text}));
        let metadata = json!({"name": "web", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"side": "Exit"}})).unwrap()
    }

    #[test]
    fn the_generation_only_rises() {
        assert_eq!(next(&tunnel(None)).unwrap(), 1);
        assert_eq!(next(&tunnel(Some("41"))).unwrap(), 42);
        for bad in ["x", "-1", "2147483647", "4294967295"] {
            assert!(next(&tunnel(Some(bad))).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_annotation_that_was_lost_does_not_bring_a_former_generation_back() {
        for status in [
            json!({"certificates": {"joinGeneration": 5}}),
            json!({"certificates": {"join": {
                "secretName": "web-join", "generation": 5, "expires": "2030-12-31T00:00:00Z", "digest": "0a",
            }}}),
        ] {
            for (annotation, wanted) in [(None, 6), (Some("2"), 6), (Some("7"), 8)] {
                let mut tunnel = tunnel(annotation);
                tunnel.status = Some(serde_json::from_value(status.clone()).unwrap());
                assert_eq!(next(&tunnel).unwrap(), wanted, "{status} {annotation:?}");
            }
        }
    }
}

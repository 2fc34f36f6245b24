//! The time from an edit of an object to its effect on connections. These are no faults. The time to
//! recover of a row is the longest of all edits, and its note has the median.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, LogParams, PostParams};
use muxtunnel_crds::{MuxExit, MuxPeer, MuxTunnel, condition};
use serde_json::json;

use super::{Outcome, Scale};
use crate::pods::{self, Serve};
use crate::{PodSecurity, TestNamespace, keys, tunnel, wait, with_temp_ns_in};

/// Number of edits of each kind.
const EDITS: usize = 20;
/// The first port of the added forwards.
const FIRST_PORT: u16 = 9001;
/// Time-out for the effect of an edit.
const EFFECT_WITHIN: Duration = Duration::from_secs(120);

fn now_ms() -> Result<u128> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())
}

/// The time at which the client printed `word` for the time with this number (from 0).
async fn printed(ns: &TestNamespace, word: &str, number: usize) -> Result<u128> {
    let what = format!("the client prints {word} {} times", number + 1);
    let pods = ns.api::<Pod>();
    wait::until(&what, EFFECT_WITHIN, async || {
        let log = pods.logs("client", &LogParams::default()).await;
        let log = log.unwrap_or_default();
        let prefix = format!("{word} ");
        let mut times = log.lines().filter_map(|line| line.strip_prefix(&prefix));
        let time = times.nth(number).map(str::parse).transpose()?;
        Ok(time)
    })
    .await
}

fn outcome(mut milliseconds: Vec<u128>, what: &str) -> Result<Outcome> {
    ensure!(milliseconds.len() == EDITS, "{milliseconds:?}");
    milliseconds.sort_unstable();
    let seconds = |number: usize| milliseconds[number] as f64 / 1000.0;
    let (low, high) = (seconds(EDITS / 2 - 1), seconds(EDITS / 2));
    let (median, worst) = ((low + high) / 2.0, seconds(EDITS - 1));
    Ok(Outcome {
        load: None,
        failing_seconds: None,
        whole_seconds: worst,
        note: format!("{what}: median {median:.2} s, longest {worst:.2} s of {EDITS}"),
    })
}

/// Adds forwards one after the other. A client connects to the Service until the added port answers.
///
/// # Errors
/// If a forward has no effect in time.
pub async fn forward_added(scale: Scale) -> Result<Outcome> {
    let level = PodSecurity::Restricted;
    with_temp_ns_in(scale.cluster, "edits", level, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        let yaml = tunnel::to_web("PublicKeys", "", "");
        tunnel::up(ns, &yaml).await?;
        let mut object: serde_json::Value = serde_yaml::from_str(&yaml)?;
        let ports: Vec<u16> = (FIRST_PORT..).take(EDITS).collect();
        let texts: Vec<String> = ports.iter().map(u16::to_string).collect();
        let mut client = vec!["edits.pl", "opens", "t-entry", "8080"];
        client.extend(texts.iter().map(String::as_str));
        pods::start(ns, "client", &client).await?;
        // The first port has a forward already.
        printed(ns, "open", 0).await?;
        let mut all = Vec::new();
        for (number, port) in ports.iter().enumerate() {
            let target = json!([{"serviceRef": {"name": "web"}, "port": 80}]);
            let forward = json!({"name": format!("p{port}"), "port": port, "targets": target});
            let forwards = object["spec"]["forwards"].as_array_mut();
            forwards.context("forwards")?.push(forward);
            let before = now_ms()?;
            tunnel::apply(ns, &object.to_string()).await?;
            let answered = printed(ns, "open", number + 1).await?;
            all.push(answered.saturating_sub(before));
        }
        outcome(all, "from the edit to the first connection")
    })
    .await
}

/// Deletes the MuxPeer of an entry that has an open stream, and creates it again.
///
/// # Errors
/// If a deletion does not end the stream in time, or the entry does not come back.
pub async fn peer_deleted(scale: Scale) -> Result<Outcome> {
    let level = PodSecurity::Restricted;
    with_temp_ns_in(scale.cluster, "edits", level, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        let peer = connect(ns).await?;
        let count = EDITS.to_string();
        let client = ["edits.pl", "ends", "near-entry", "8080", &count];
        pods::start(ns, "client", &client).await?;
        let peers = ns.api::<MuxPeer>();
        let mut all = Vec::new();
        for number in 0..EDITS {
            printed(ns, "open", number).await?;
            let before = now_ms()?;
            peers.delete("near", &DeleteParams::default()).await?;
            let ended = printed(ns, "end", number).await?;
            all.push(ended.saturating_sub(before));
            peers.create(&PostParams::default(), &peer).await?;
        }
        outcome(all, "from the deletion to the end of the stream")
    })
    .await
}

/// An exit `far`, its entry `near`, and the MuxPeer of this entry, which is connected.
async fn connect(ns: &TestNamespace) -> Result<MuxPeer> {
    let exit = json!({
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxExit", "metadata": {"name": "far"},
        "spec": {"allow": [{"host": "web", "port": 80}]},
    });
    tunnel::apply_of::<MuxExit>(ns, &exit.to_string()).await?;
    let exit_key = keys::public_key::<MuxExit>(ns, "far").await?;
    let host = format!("far-exit.{}.svc", ns.name);
    let entry = json!({
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxTunnel", "metadata": {"name": "near"},
        "spec": {
            "connect": [{"name": "far", "host": host, "port": 443, "publicKeys": [exit_key]}],
            "forwards": [{"name": "web", "port": 8080, "targets": [{"host": "web", "port": 80}]}],
        },
    });
    tunnel::apply(ns, &entry.to_string()).await?;
    let entry_key = keys::public_key::<MuxTunnel>(ns, "near").await?;
    let peer: MuxPeer = serde_json::from_value(json!({
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxPeer", "metadata": {"name": "near"},
        "spec": {"exitRef": {"name": "far"}, "publicKeys": [entry_key]},
    }))?;
    let peers = ns.api::<MuxPeer>();
    peers.create(&PostParams::default(), &peer).await?;
    tunnel::ready_of::<MuxExit>(ns, "far").await?;
    tunnel::ready(ns, "near").await?;
    let what = "the peer is connected";
    wait::for_object(&peers, "near", what, EFFECT_WITHIN, |peer| {
        tunnel::is_true(peer, condition::CONNECTED)
    })
    .await?;
    Ok(peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_edit_is_the_time_to_recover_and_the_note_has_the_median() {
        let mut all: Vec<u128> = (1..EDITS as u128).map(|number| number * 100).collect();
        assert!(outcome(all.clone(), "").is_err());
        all.insert(0, 9_000);
        let outcome = outcome(all, "from a to b").unwrap();
        assert_eq!(outcome.whole_seconds, 9.0);
        assert_eq!(
            outcome.note,
            "from a to b: median 1.05 s, longest 9.00 s of 20"
        );
    }
}

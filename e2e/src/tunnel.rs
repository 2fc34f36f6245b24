//! MuxTunnels under test, and the status of their gateways.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use muxtunnel_crds::{MuxTunnel, tunnel_condition};
use muxtunnel_gateway_config::ADMIN_PORT;
use serde_json::Value;

use crate::namespace::TestNamespace;
use crate::{debug, tools, wait};

/// Time-out for a tunnel to become Ready. The images are already in the cluster, so this time is
/// only for the start of pods and the connection of carriers.
pub const READY_WITHIN: Duration = Duration::from_secs(240);

/// The field manager of the tests.
const MANAGER: &str = "muxtunnel-e2e";

/// `drainSeconds` of tunnels whose YAML does not set it: the minimum. Many tests replace or delete
/// gateways that still have streams, and do not depend on the time.
const DRAIN_SECONDS: u32 = 10;

/// The YAML of a MuxTunnel `t` whose port 8080 forwards to port 80 of the Service `web`. `carrier`
/// contains the fields of the carriers. `more` is additional YAML of the spec.
#[must_use]
pub fn to_web(carrier: &str, more: &str) -> String {
    format!(
        "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxTunnel
metadata: {{name: t}}
spec:
  forwards:
  - name: web
    listen: {{port: 8080, protocol: Tcp}}
    target: {{service: {{name: web, port: 80}}}}
  carrier: {{{carrier}}}
  {more}
"
    )
}

/// Sets [`DRAIN_SECONDS`] in each end of the tunnel that has no `drainSeconds`.
fn drain_soon(object: &mut Value) {
    let spec = &mut object["spec"];
    let ends: &[&str] = match spec["side"].as_str() {
        None | Some("Both") => &["entry", "exit"],
        Some("Entry") => &["entry"],
        Some("Exit") => &["exit"],
        Some(_) => &[],
    };
    for end in ends {
        let seconds = &mut spec[end]["drainSeconds"];
        if seconds.is_null() {
            *seconds = DRAIN_SECONDS.into();
        }
    }
}

/// Applies a MuxTunnel from YAML, with a short drain ([`DRAIN_SECONDS`]) if the YAML sets none.
///
/// # Errors
/// If the YAML is not a MuxTunnel, or the API server refuses it.
pub async fn apply(ns: &TestNamespace, yaml: &str) -> Result<MuxTunnel> {
    let mut object: Value = serde_yaml::from_str(yaml).context("the test's YAML")?;
    drain_soon(&mut object);
    let name = object["metadata"]["name"].as_str().context("a name")?;
    let how = PatchParams::apply(MANAGER).force();
    Ok(ns
        .api::<MuxTunnel>()
        .patch(name, &how, &Patch::Apply(&object))
        .await?)
}

/// Waits until the tunnel is Ready with its current spec.
///
/// # Errors
/// If the tunnel does not become Ready in time.
pub async fn ready(ns: &TestNamespace, name: &str) -> Result<MuxTunnel> {
    let tunnels = ns.api::<MuxTunnel>();
    wait::for_object(
        &tunnels,
        name,
        "the tunnel is Ready",
        READY_WITHIN,
        |tunnel| is_true(tunnel, tunnel_condition::READY),
    )
    .await
}

/// Applies a MuxTunnel and waits until it is Ready.
///
/// # Errors
/// As [`apply`] and [`ready`].
pub async fn up(ns: &TestNamespace, yaml: &str) -> Result<MuxTunnel> {
    let tunnel = apply(ns, yaml).await?;
    ready(ns, &tunnel.name_any()).await
}

/// The condition with the type `type_`, if it describes the current spec.
#[must_use]
pub fn condition<'a>(tunnel: &'a MuxTunnel, type_: &str) -> Option<&'a Condition> {
    let status = tunnel.status.as_ref()?;
    status.conditions.iter().find(|condition| {
        condition.type_ == type_ && condition.observed_generation == tunnel.metadata.generation
    })
}

/// Whether the condition with the type `type_` is true for the current spec.
#[must_use]
pub fn is_true(tunnel: &MuxTunnel, type_: &str) -> bool {
    condition(tunnel, type_).is_some_and(|condition| condition.status == "True")
}

/// The pods of one side (`entry`, `exit`) of a tunnel.
///
/// # Errors
/// If the pods cannot be listed, or no pod exists.
pub async fn gateways(ns: &TestNamespace, tunnel: &str, side: &str) -> Result<Vec<Pod>> {
    let selector =
        format!("app.kubernetes.io/instance={tunnel},app.kubernetes.io/component={side}");
    let pods = ns
        .api::<Pod>()
        .list(&ListParams::default().labels(&selector))
        .await?
        .items;
    ensure!(!pods.is_empty(), "no pod has the labels {selector}");
    Ok(pods)
}

/// The status document of a gateway.
///
/// # Errors
/// If the gateway does not answer.
pub async fn status(ns: &TestNamespace, pod: &Pod) -> Result<Value> {
    let (namespace, name) = (&ns.name, pod.name_any());
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{ADMIN_PORT}/proxy/status");
    Ok(serde_json::from_str(
        &ns.kubectl(&["get", "--raw", &path]).await?,
    )?)
}

/// The text of `packets.pl`. No image contains the script.
///
/// # Errors
/// If the file cannot be read.
pub fn packets_script() -> Result<String> {
    let script = tools::checkout().join("e2e/scripts/packets.pl");
    Ok(std::fs::read_to_string(script)?)
}

/// Runs `packets.pl` with `words` in a gateway's pod, and returns its output.
///
/// # Errors
/// If the command fails.
pub async fn packets(ns: &TestNamespace, pod: &Pod, words: &[&str]) -> Result<String> {
    let script = packets_script()?;
    debug::run(ns, pod, &[&["perl", "-e", &script], words].concat()).await
}

/// The value of a sysctl of a pod's network namespace, with words separated by one space.
///
/// # Errors
/// If the file cannot be read.
pub async fn sysctl(ns: &TestNamespace, pod: &Pod, name: &str) -> Result<String> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    let text = debug::run(ns, pod, &["cat", &path]).await?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ends_drain_soon_unless_the_test_sets_a_time() {
        for (spec, expected) in [
            (json!({}), [json!(10), json!(10)]),
            (
                json!({"entry": {"drainSeconds": 25}, "exit": {"replicas": 2}}),
                [json!(25), json!(10)],
            ),
            (json!({"side": "Entry"}), [json!(10), Value::Null]),
            (json!({"side": "Exit"}), [Value::Null, json!(10)]),
            (json!({"side": "Rendezvous"}), [Value::Null, Value::Null]),
        ] {
            let mut object = json!({"spec": spec});
            drain_soon(&mut object);
            let found = ["entry", "exit"].map(|end| {
                let end = object["spec"].get(end);
                end.map_or(Value::Null, |end| end["drainSeconds"].clone())
            });
            assert_eq!(found, expected, "{object}");
        }
    }
}

//! Objects with gateways under test, and the status of their gateways.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use muxtunnel_crds::{MuxTunnel, condition};
use muxtunnel_gateway_config::ADMIN_PORT;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::namespace::TestNamespace;
use crate::{debug, tools, wait};

/// Time-out for an object to become Ready. The images are already in the cluster, so this time is
/// only for the start of pods and the connection of carriers.
pub const READY_WITHIN: Duration = Duration::from_secs(240);

/// The field manager of the tests.
const MANAGER: &str = "muxtunnel-e2e";

/// `drainSeconds` of gateways whose YAML does not set it: the minimum. Many tests replace or delete
/// gateways that still have streams, and do not depend on the time.
const DRAIN_SECONDS: u32 = 10;

/// An object of one of the kinds.
pub trait Object:
    Clone
    + Debug
    + Send
    + Serialize
    + DeserializeOwned
    + Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + 'static
{
}

impl<K> Object for K where
    K: Clone
        + Debug
        + Send
        + Serialize
        + DeserializeOwned
        + Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + 'static
{
}

/// The YAML of a MuxTunnel `t` whose port 8080 forwards to port 80 of the Service `web`. `mode` is
/// the security mode of the carriers, `carrier` has their other fields, and `more` is additional
/// YAML of the spec.
#[must_use]
pub fn to_web(mode: &str, carrier: &str, more: &str) -> String {
    format!(
        "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxTunnel
metadata: {{name: t}}
spec:
  forwards:
  - name: web
    port: 8080
    targets: [{{serviceRef: {{name: web}}, port: 80}}]
  security: {{mode: {mode}}}
  carrier: {{{carrier}}}
  {more}
"
    )
}

/// Sets [`DRAIN_SECONDS`] in each end of the object that has no `drainSeconds`.
fn drain_soon(object: &mut Value) {
    let connects = !object["spec"]["connect"].is_null();
    let ends: &[&str] = match object["kind"].as_str() {
        Some("MuxTunnel") if connects => &["entry"],
        Some("MuxTunnel") => &["entry", "exit"],
        Some("MuxExit") => &["gateway"],
        _ => &[],
    };
    for end in ends {
        let seconds = &mut object["spec"][end]["drainSeconds"];
        if seconds.is_null() {
            *seconds = DRAIN_SECONDS.into();
        }
    }
}

/// Applies an object from YAML, with a short drain ([`DRAIN_SECONDS`]) if the YAML sets none.
///
/// # Errors
/// If the YAML is not an object of the kind, or the API server refuses it.
pub async fn apply_of<K: Object>(ns: &TestNamespace, yaml: &str) -> Result<K> {
    let mut object: Value = serde_yaml::from_str(yaml).context("the test's YAML")?;
    ensure!(object["kind"] == K::kind(&()).as_ref(), "{yaml}");
    drain_soon(&mut object);
    let name = object["metadata"]["name"].as_str().context("a name")?;
    let how = PatchParams::apply(MANAGER).force();
    Ok(ns
        .api::<K>()
        .patch(name, &how, &Patch::Apply(&object))
        .await?)
}

/// [`apply_of`] a MuxTunnel.
///
/// # Errors
/// As [`apply_of`].
pub async fn apply(ns: &TestNamespace, yaml: &str) -> Result<MuxTunnel> {
    apply_of(ns, yaml).await
}

/// Waits until the object is Ready with its current spec.
///
/// # Errors
/// If the object does not become Ready in time.
pub async fn ready_of<K: Object>(ns: &TestNamespace, name: &str) -> Result<K> {
    let what = "the object is Ready";
    let is_ready = |object: &K| is_true(object, condition::READY);
    wait::for_object(&ns.api::<K>(), name, what, READY_WITHIN, is_ready).await
}

/// [`ready_of`] a MuxTunnel.
///
/// # Errors
/// As [`ready_of`].
pub async fn ready(ns: &TestNamespace, name: &str) -> Result<MuxTunnel> {
    ready_of(ns, name).await
}

/// Applies an object and waits until it is Ready.
///
/// # Errors
/// As [`apply_of`] and [`ready_of`].
pub async fn up_of<K: Object>(ns: &TestNamespace, yaml: &str) -> Result<K> {
    let object: K = apply_of(ns, yaml).await?;
    ready_of(ns, &object.name_any()).await
}

/// [`up_of`] a MuxTunnel.
///
/// # Errors
/// As [`up_of`].
pub async fn up(ns: &TestNamespace, yaml: &str) -> Result<MuxTunnel> {
    up_of(ns, yaml).await
}

/// The condition with the type `type_`, if it describes the current spec.
#[must_use]
pub fn condition<K: Object>(object: &K, type_: &str) -> Option<Condition> {
    let value = serde_json::to_value(object).ok()?;
    let conditions = value.pointer("/status/conditions")?.clone();
    let conditions: Vec<Condition> = serde_json::from_value(conditions).ok()?;
    conditions.into_iter().find(|condition| {
        condition.type_ == type_ && condition.observed_generation == object.meta().generation
    })
}

/// Whether the condition with the type `type_` is true for the current spec.
#[must_use]
pub fn is_true<K: Object>(object: &K, type_: &str) -> bool {
    condition(object, type_).is_some_and(|condition| condition.status == "True")
}

/// The selector of the pods of one end of an object: `entry`, `exit` or `rendezvous`.
#[must_use]
pub fn selector<K: Object>(name: &str, end: &str) -> String {
    let kind = K::kind(&());
    format!("muxtunnel.dev/kind={kind},muxtunnel.dev/name={name},app.kubernetes.io/component={end}")
}

/// The name of the children of an end of a MuxTunnel.
#[must_use]
pub fn child(tunnel: &str, end: &str) -> String {
    match end {
        "exit" => format!("{tunnel}-tunnel-exit"),
        _ => format!("{tunnel}-{end}"),
    }
}

/// The pods of one end of an object.
///
/// # Errors
/// If the pods cannot be listed, or no pod exists.
pub async fn gateways_of<K: Object>(ns: &TestNamespace, name: &str, end: &str) -> Result<Vec<Pod>> {
    let selector = selector::<K>(name, end);
    let pods = ns
        .api::<Pod>()
        .list(&ListParams::default().labels(&selector))
        .await?
        .items;
    ensure!(!pods.is_empty(), "no pod has the labels {selector}");
    Ok(pods)
}

/// [`gateways_of`] a MuxTunnel.
///
/// # Errors
/// As [`gateways_of`].
pub async fn gateways(ns: &TestNamespace, tunnel: &str, end: &str) -> Result<Vec<Pod>> {
    gateways_of::<MuxTunnel>(ns, tunnel, end).await
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
        for (kind, spec, expected) in [
            ("MuxTunnel", json!({}), [json!(10), json!(10), Value::Null]),
            (
                "MuxTunnel",
                json!({"entry": {"drainSeconds": 25}, "exit": {"replicas": 2}}),
                [json!(25), json!(10), Value::Null],
            ),
            (
                "MuxTunnel",
                json!({"connect": []}),
                [json!(10), Value::Null, Value::Null],
            ),
            ("MuxExit", json!({}), [Value::Null, Value::Null, json!(10)]),
            (
                "MuxRendezvous",
                json!({}),
                [Value::Null, Value::Null, Value::Null],
            ),
        ] {
            let mut object = json!({"kind": kind, "spec": spec});
            drain_soon(&mut object);
            let found = ["entry", "exit", "gateway"].map(|end| {
                let end = object["spec"].get(end);
                end.map_or(Value::Null, |end| end["drainSeconds"].clone())
            });
            assert_eq!(found, expected, "{object}");
        }
    }
}

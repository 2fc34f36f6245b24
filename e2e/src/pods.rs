//! Pods of the tests: servers behind a Service, and clients that run a script to its end.
//!
//! The pods use the benchmark's image, because it is in the cluster and has bash, perl and
//! coreutils. Pods that run muxgate use the gateway's image. A ConfigMap provides the scripts of
//! `e2e/scripts` and of the chart.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::ResourceExt;
use kube::api::{LogParams, ObjectMeta, PostParams};
use muxtunnel_bench_api::load::Report;
use muxtunnel_bench_api::result::LOG_WORD;
use serde_json::{Value, json};

use crate::namespace::TestNamespace;
use crate::{tools, wait};

/// The image that the tests' pods run.
pub const IMAGE: &str = concat!("muxtunnel/bench:", env!("CARGO_PKG_VERSION"));

/// The image with muxgate, which has no shell.
pub const GATEWAY_IMAGE: &str = concat!("muxtunnel/gateway:", env!("CARGO_PKG_VERSION"));

/// The ConfigMap with the scripts.
const SCRIPTS: &str = "e2e-scripts";

/// Time-out for the start of a pod.
pub const START: Duration = Duration::from_secs(180);

/// How a server answers each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serve {
    /// Returns the received bytes.
    Echo,
    /// Returns the SHA-256 of the received bytes after the sender has closed its half of the
    /// connection.
    Hash,
    /// Returns the client's address from a header of the PROXY protocol.
    Source,
    /// Answers the connections of [`load`].
    Load,
}

/// Starts a server pod, and the Service `name` in front of the pod at port 80. Returns when the
/// server accepts connections.
///
/// # Errors
/// If an object cannot be created, or the server is not ready in time.
pub async fn serve(ns: &TestNamespace, name: &str, what: Serve) -> Result<()> {
    let each =
        |command: &[&'static str]| [&["perl", "/scripts/serve.pl", "8080"], command].concat();
    let command = match what {
        Serve::Echo => each(&["cat"]),
        Serve::Hash => each(&["sha256sum"]),
        Serve::Source => each(&["perl", "/scripts/source.pl"]),
        Serve::Load => vec!["muxbench", "target", "--listen=[::]:8080"],
    };
    let mut pod = pod(name, &command);
    pod["spec"]["containers"][0]["readinessProbe"] =
        json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    let service = json!({
        "metadata": {"name": name, "labels": {"e2e": name}},
        "spec": {"selector": {"e2e": name}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    });
    scripts(ns).await?;
    let service: Service = serde_json::from_value(service)?;
    ns.api::<Service>()
        .create(&PostParams::default(), &service)
        .await?;
    create(ns, pod).await?;
    wait::for_object(
        &ns.api::<Pod>(),
        name,
        "the server is ready",
        START,
        is_ready,
    )
    .await?;
    Ok(())
}

/// Starts a client pod that runs a script of `e2e/scripts` with arguments: in bash, or in perl if
/// its name ends with `.pl`.
///
/// # Errors
/// If the pod cannot be created.
pub async fn start(ns: &TestNamespace, name: &str, script: &[&str]) -> Result<()> {
    scripts(ns).await?;
    let program = script.first().context("a script")?;
    let interpreter = match program.ends_with(".pl") {
        true => "perl",
        false => "bash",
    };
    let file = format!("/scripts/{program}");
    let command = [
        &[interpreter, file.as_str()],
        script.get(1..).unwrap_or_default(),
    ]
    .concat();
    create(ns, pod(name, &command)).await
}

/// Starts a client pod that opens `opens_per_second` short connections per second and keeps
/// `streams` long connections. Both go to `to` (`host:port` of a [`Serve::Load`]), for `seconds` or
/// until [`end_load`]. Returns when the first connections were answered. When the load ends, the
/// pod prints a [`Report`], which [`load_report`] reads.
///
/// # Errors
/// If the pod cannot be created, or no connection is answered.
pub async fn load(
    ns: &TestNamespace,
    name: &str,
    to: &str,
    opens_per_second: u32,
    streams: u32,
    seconds: u32,
) -> Result<()> {
    scripts(ns).await?;
    let (connect, rate) = (
        format!("--connect={to}"),
        format!("--opens-per-second={opens_per_second}"),
    );
    let (streams, duration) = (
        format!("--streams={streams}"),
        format!("--duration={seconds}s"),
    );
    let command = ["muxbench", "load", &connect, &rate, &streams, &duration];
    create(ns, pod(name, &command)).await?;
    let pods = ns.api::<Pod>();
    wait::until(&format!("{name} is steady"), START + START, async || {
        let log = pods.logs(name, &LogParams::default()).await;
        if log.is_ok_and(|log| log.contains("steady")) {
            return Ok(Some(()));
        }
        // The pod may already have ended, because the load ends early if the target does not
        // answer.
        let pod = pods.get_opt(name).await.ok().flatten();
        match pod.as_ref().map(phase) {
            Some("Failed") => bail!("the load {name} ended before it was steady"),
            _ => Ok(None),
        }
    })
    .await
}

/// Ends a [`load`] early. Returns the outcome of its connections.
///
/// # Errors
/// If the load has already ended, takes longer than `within` to end, or ends without a report.
pub async fn end_load(ns: &TestNamespace, name: &str, within: Duration) -> Result<Report> {
    let stop = ["exec", name, "--", "bash", "-c", "kill -TERM 1"];
    let stopped = ns.kubectl(&stop).await;
    stopped.with_context(|| format!("the load {name} has ended already"))?;
    load_report(ns, name, within).await
}

/// Waits for the end of a [`load`]. Returns the outcome of its connections.
///
/// # Errors
/// If the load takes longer than `within`, or ends without a report.
pub async fn load_report(ns: &TestNamespace, name: &str, within: Duration) -> Result<Report> {
    let log = end(ns, name, within).await?;
    let line = log.lines().find_map(|line| line.strip_prefix(LOG_WORD));
    serde_json::from_str(line.context("a load's report")?).context("a load's report")
}

/// Completes a container of a test's manifest: it gets the image with perl and bash, and sleeps.
pub fn fill(container: &mut Value) {
    container["image"] = IMAGE.into();
    container["command"] = json!(["sleep", "infinity"]);
}

/// Creates a pod.
///
/// # Errors
/// If the value is not a pod, or the API server refuses it.
pub async fn create(ns: &TestNamespace, pod: Value) -> Result<()> {
    let pod: Pod = serde_json::from_value(pod)?;
    ns.api().create(&PostParams::default(), &pod).await?;
    Ok(())
}

/// Generates a key pair with `muxgate keygen`. Returns the public key for an entry, and the text of
/// the file.
///
/// # Errors
/// If the command fails.
pub async fn keygen(ns: &TestNamespace, name: &str) -> Result<(String, String)> {
    scripts(ns).await?;
    let mut pod = pod(name, &["cat", "/tmp/key"]);
    let mut generate = pod["spec"]["containers"][0].clone();
    generate["name"] = "keygen".into();
    generate["image"] = GATEWAY_IMAGE.into();
    generate["command"] = json!(["/usr/local/bin/muxgate", "keygen", "/tmp/key"]);
    pod["spec"]["initContainers"] = json!([generate]);
    create(ns, pod).await?;
    let private = end(ns, name, START).await?;
    let log = LogParams {
        container: Some("keygen".to_owned()),
        ..LogParams::default()
    };
    let public = ns.api::<Pod>().logs(name, &log).await?;
    let entry = public.lines().find(|line| line.starts_with("mte1"));
    let entry = entry.with_context(|| format!("no key of an entry in {public:?}"))?;
    Ok((entry.to_owned(), private))
}

/// Waits for a client pod to end. Returns its output.
///
/// # Errors
/// If the script fails or takes longer than `within`. The message contains the script's output.
pub async fn end(ns: &TestNamespace, name: &str, within: Duration) -> Result<String> {
    let pods = ns.api::<Pod>();
    let ended = |pod: &Pod| matches!(phase(pod), "Succeeded" | "Failed");
    let pod = wait::for_object(&pods, name, "the client ends", within, ended).await?;
    let log = pods.logs(name, &LogParams::default()).await?;
    if phase(&pod) != "Succeeded" {
        bail!("the client {name} failed; it printed:\n{log}");
    }
    Ok(log)
}

/// Waits until a client pod has printed `text`.
///
/// # Errors
/// If the text does not appear within `within`.
pub async fn printed(ns: &TestNamespace, name: &str, text: &str, within: Duration) -> Result<()> {
    let pods = ns.api::<Pod>();
    wait::until(&format!("{name} prints {text:?}"), within, async || {
        let log = pods.logs(name, &LogParams::default()).await;
        Ok(log.is_ok_and(|log| log.contains(text)).then_some(()))
    })
    .await
}

/// Starts a client pod and waits for its end. See [`start`] and [`end`].
///
/// # Errors
/// As [`start`] and [`end`].
pub async fn run(
    ns: &TestNamespace,
    name: &str,
    script: &[&str],
    within: Duration,
) -> Result<String> {
    start(ns, name, script).await?;
    end(ns, name, within).await
}

/// Sends SIGKILL to the only process with this name in a pod. The name has at most 15 bytes,
/// because the kernel truncates process names to 15 bytes.
///
/// # Errors
/// If the pod does not have exactly one such process.
pub async fn kill(ns: &TestNamespace, pod: &Pod, process: &str) -> Result<()> {
    let uid = pod.uid().context("a UID")?;
    // The cgroup of a process contains the UID of its pod, with `_` instead of `-` if systemd
    // creates the cgroup.
    let kill = format!(
        "for file in $(grep -lE '{}|{uid}' /proc/[0-9]*/cgroup); do
           process=${{file%/cgroup}}
           if [ \"$(cat $process/comm)\" = {process} ]; then kill -KILL ${{process#/proc/}}; echo killed; fi
         done",
        uid.replace('-', "_")
    );
    let killed = ns.cluster.node().await?.run(&kill).await?;
    let name = pod.name_any();
    ensure!(
        killed.trim() == "killed",
        "expected one process {process} in {name}, found: {killed:?}"
    );
    Ok(())
}

/// Whether a pod's condition Ready is true.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

/// The number of restarts of a pod's containers.
#[must_use]
pub fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.iter();
    let statuses = statuses.flat_map(|status| &status.container_statuses);
    statuses.flatten().map(|status| status.restart_count).sum()
}

fn phase(pod: &Pod) -> &str {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase.unwrap_or_default()
}

/// A pod that satisfies the Pod Security level `restricted`. It has one container, `main`.
#[must_use]
pub fn pod(name: &str, command: &[&str]) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"e2e": name}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "main",
                "image": IMAGE,
                "command": command,
                "volumeMounts": [
                    {"name": "scripts", "mountPath": "/scripts"},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
            }],
            "volumes": [
                {"name": "scripts", "configMap": {"name": SCRIPTS}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    })
}

/// Creates the ConfigMap with all scripts of `e2e/scripts`, once per namespace. Every [`pod`] mounts
/// it.
///
/// # Errors
/// If a script cannot be read, or the ConfigMap cannot be created.
pub async fn scripts(ns: &TestNamespace) -> Result<()> {
    let maps = ns.api::<ConfigMap>();
    if maps.get_opt(SCRIPTS).await?.is_some() {
        return Ok(());
    }
    let folder = tools::checkout().join("e2e/scripts");
    let entries = fs::read_dir(&folder);
    let entries = entries.with_context(|| format!("reading {}", folder.display()))?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    // The chart's own test also uses this script.
    paths.push(tools::checkout().join("charts/muxtunnel/files/test/serve.pl"));
    let mut data = BTreeMap::new();
    for path in paths {
        let name = path.file_name().context("a file name")?;
        data.insert(
            name.to_string_lossy().into_owned(),
            fs::read_to_string(&path)?,
        );
    }
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(SCRIPTS.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    };
    maps.create(&PostParams::default(), &map).await?;
    Ok(())
}

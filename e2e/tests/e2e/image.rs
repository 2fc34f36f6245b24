//! The gateway's image: it has muxgate, no shell and no other program, and its muxgate starts none.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use muxtunnel_e2e::{PodSecurity, TestNamespace, pods, turn, wait, with_temp_ns};
use serde_json::json;

const WITHIN: Duration = Duration::from_secs(180);

/// Programs of a Debian system that start other programs.
const PROGRAMS: [&str; 8] = [
    "/bin/sh",
    "/bin/bash",
    "/bin/busybox",
    "/usr/bin/bash",
    "/usr/bin/env",
    "/usr/bin/perl",
    "/usr/bin/apt",
    "/sbin/ldconfig",
];

/// Starts a pod whose container `main` runs `command` in the gateway's image.
async fn start(ns: &TestNamespace, name: &str, command: &[&str]) -> Result<()> {
    pods::scripts(ns).await?;
    let mut pod = pods::pod(name, command);
    pod["spec"]["containers"][0]["image"] = json!(pods::GATEWAY_IMAGE);
    pods::create(ns, pod).await
}

/// The exit status of the pod's container, and the reason and the log of its end.
async fn ended(ns: &TestNamespace, name: &str) -> Result<(i32, String, String)> {
    let api = ns.api::<Pod>();
    let state = |pod: &Pod| {
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        statuses.first()?.state.as_ref()?.terminated.clone()
    };
    let pod = wait::for_object(&api, name, "its container ends", WITHIN, |pod| {
        state(pod).is_some()
    })
    .await?;
    let state = state(&pod).context("an end")?;
    let log = api.logs(name, &LogParams::default()).await;
    let reason = state.reason.unwrap_or_default() + ": " + &state.message.unwrap_or_default();
    Ok((state.exit_code, reason, log.unwrap_or_default()))
}

#[tokio::test]
async fn the_gateways_image_has_no_program_but_muxgate() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("image", PodSecurity::Restricted, async |ns| {
        for (index, program) in PROGRAMS.into_iter().enumerate() {
            start(ns, &format!("program-{index}"), &[program, "--version"]).await?;
        }
        let version = ["/usr/local/bin/muxgate", "--version"];
        start(ns, "muxgate", &version).await?;
        for (index, program) in PROGRAMS.into_iter().enumerate() {
            let (status, reason, log) = ended(ns, &format!("program-{index}")).await?;
            ensure!(
                status != 0 && reason.contains("no such file or directory"),
                "{program} runs in the gateway's image: {status}, {reason}, {log}"
            );
        }
        let (status, reason, log) = ended(ns, "muxgate").await?;
        ensure!(
            status == 0 && log.starts_with("muxgate "),
            "muxgate does not run: {status}, {reason}, {log}"
        );
        Ok(())
    })
    .await
}

/// No policy judges a ConfigMap, so the image's muxgate itself refuses a program.
#[tokio::test]
async fn the_images_muxgate_starts_no_program_of_its_configuration() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("image", PodSecurity::Restricted, async |ns| {
        let flags = [
            "/usr/local/bin/muxgate",
            "entry",
            "--connect-command",
            "/usr/local/bin/muxgate --version",
            "--forward",
            "1080:web:80",
        ];
        start(ns, "flags", &flags).await?;
        let config = "role: Entry\nsecurity: {mode: None}\n\
                      connect: [{name: far, command: [/usr/local/bin/muxgate, --version]}]\n\
                      forwards: [{name: web, listen: '0.0.0.0:8080', targets: [{host: web, port: 80}]}]\n";
        let map = json!({"metadata": {"name": "config"}, "data": {"config.yaml": config}});
        let map: k8s_openapi::api::core::v1::ConfigMap = serde_json::from_value(map)?;
        ns.api().create(&kube::api::PostParams::default(), &map).await?;
        pods::scripts(ns).await?;
        let run = ["/usr/local/bin/muxgate", "run", "--config", "/config/config.yaml"];
        let mut pod = pods::pod("file", &run);
        pod["spec"]["containers"][0]["image"] = json!(pods::GATEWAY_IMAGE);
        let Some(mounts) = pod["spec"]["containers"][0]["volumeMounts"].as_array_mut() else {
            bail!("no mounts");
        };
        mounts.push(json!({"name": "config", "mountPath": "/config"}));
        let Some(volumes) = pod["spec"]["volumes"].as_array_mut() else {
            bail!("no volumes");
        };
        volumes.push(json!({"name": "config", "configMap": {"name": "config"}}));
        pods::create(ns, pod).await?;
        for name in ["flags", "file"] {
            let (status, reason, log) = ended(ns, name).await?;
            let sentence = "connect[0].command: this build of muxgate starts no programs";
            ensure!(
                status != 0 && log.contains(sentence),
                "{name}: {status}, {reason}, {log}"
            );
        }
        Ok(())
    })
    .await
}

/// An entry without `security.ca` trusts the public authorities, whose certificates the image has.
/// Its peer's name is resolved as on other systems.
#[tokio::test]
async fn the_image_has_what_public_certificates_and_names_need() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("image", PodSecurity::Restricted, async |ns| {
        let entry = [
            "/usr/local/bin/muxgate",
            "entry",
            "--security",
            "tls",
            "--protocol",
            "http2",
            "--connect",
            "kubernetes.default:443",
            "--forward",
            "1080:web:80",
        ];
        start(ns, "entry", &entry).await?;
        // The API server answers under this name, and no public authority has signed its certificate.
        pods::printed(ns, "entry", "UnknownIssuer", WITHIN).await
    })
    .await
}

//! The container `wan` of a gateway's pod. Only this container, and the container `network` if
//! there is one, have UID 0 and NET_ADMIN.
//!
//! Kernel netem keeps working after the container has exited, so with netem the container is a
//! plain init container. The NFQUEUE delay line is a process, so with NFQUEUE the container is a
//! native sidecar, which starts before the gateway and ends after the gateway.

use k8s_openapi::api::core::v1::{Container, ExecAction, Probe, Volume};
use muxtunnel_crds::{Backend, Scope};
use muxtunnel_gateway_config::{ADMIN_PORT, CARRIER_PORT};

use crate::class::Class;
use crate::pods;
use crate::tunnel_controller::validate::ValidatedWan;

/// Name of the container.
pub(super) const CONTAINER: &str = "wan";
const COMMAND: &str = "/usr/local/bin/muxwan";
const REPORT: &str = "/run/muxwan/report.json";
/// The volume for the lock files of iptables and the report.
const RUN_VOLUME: &str = "wan-run";
/// Time limit in seconds for the self-probe, and so the number of startup probes, because the
/// kubelet probes once per second.
const STARTUP_SECONDS: i32 = 60;

pub(super) fn container(wan: &ValidatedWan, class: &Class) -> Container {
    let sidecar = wan.backend != Backend::Netem;
    Container {
        name: CONTAINER.to_owned(),
        image: Some(class.images.wan.clone()),
        image_pull_policy: Some(class.pull_policy()),
        command: Some(vec![COMMAND.to_owned()]),
        args: Some(args(wan)),
        restart_policy: sidecar.then(|| "Always".to_owned()),
        startup_probe: sidecar.then(startup_probe),
        security_context: Some(pods::privileged(&["NET_ADMIN"])),
        volume_mounts: Some(vec![pods::mount(RUN_VOLUME, "/run")]),
        ..Container::default()
    }
}

fn args(wan: &ValidatedWan) -> Vec<String> {
    let backend = match wan.backend {
        Backend::Auto => "auto",
        Backend::Netem => "netem",
        Backend::Nfqueue => "nfqueue",
    };
    let scope = match wan.scope {
        Scope::Carrier => vec!["--port".to_owned(), CARRIER_PORT.to_string()],
        // The kubelet's probes use the admin port, which is not delayed.
        Scope::All => vec![
            "--all".to_owned(),
            "--except-port".to_owned(),
            ADMIN_PORT.to_string(),
        ],
    };
    let head = ["run", "--delay"].map(str::to_owned);
    let tail = ["--backend", backend, "--report", REPORT].map(str::to_owned);
    let optional = |flag: &str, value: Option<String>| {
        value.map_or_else(Vec::new, |value| vec![flag.to_owned(), value])
    };
    let milliseconds = |count: u32| format!("{count}ms");
    let jitter = Some(wan.jitter_milliseconds).filter(|jitter| *jitter > 0);
    head.into_iter()
        .chain([milliseconds(wan.delay_milliseconds)])
        .chain(optional("--jitter", jitter.map(milliseconds)))
        .chain(optional("--loss", loss(wan.loss_ppm)))
        .chain(optional("--rate", wan.rate.map(|rate| rate.to_string())))
        .chain(scope)
        .chain(tail)
        .collect()
}

/// muxwan's notation of a share: percent with four decimal places.
fn loss(ppm: u32) -> Option<String> {
    (ppm > 0).then(|| format!("{}.{:04}%", ppm / 10_000, ppm % 10_000))
}

fn startup_probe() -> Probe {
    Probe {
        exec: Some(ExecAction {
            command: Some(
                [COMMAND, "check", "--report", REPORT]
                    .map(str::to_owned)
                    .into(),
            ),
        }),
        period_seconds: Some(1),
        timeout_seconds: Some(5),
        failure_threshold: Some(STARTUP_SECONDS),
        ..Probe::default()
    }
}

pub(super) fn volume() -> Volume {
    pods::empty_volume(RUN_VOLUME)
}

//! The container `wan` of a gateway's pod. Only this container, and the container `network` if
//! there is one, have UID 0 and NET_ADMIN.
//!
//! Kernel netem keeps working after the container has exited, so with netem the container is a
//! plain init container. The NFQUEUE delay line is a process, so with NFQUEUE the container is a
//! native sidecar, which starts before the gateway and ends after the gateway.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ExecAction, Probe, Volume};
use muxtunnel_crds::{Backend, Scope, WanEmulation};
use muxtunnel_gateway_config::{ADMIN_PORT, CARRIER_PORT};

use super::End;
use crate::pods;
use crate::tunnel_controller::validate::ValidatedObject;

/// Name of the container.
pub(super) const CONTAINER: &str = "wan";
const COMMAND: &str = "/usr/local/bin/muxwan";
const REPORT: &str = "/run/muxwan/report.json";
/// The volume for the lock files of iptables and the report.
const RUN_VOLUME: &str = "wan-run";
/// Time limit in seconds for the self-probe, and so the number of startup probes, because the
/// kubelet probes once per second.
const STARTUP_SECONDS: i32 = 60;

/// The container of the gateways of `end`, which emulates `wan`.
pub(super) fn container(wan: &WanEmulation, object: &ValidatedObject, end: End) -> Container {
    let class = &object.class;
    let sidecar = wan.backend != Some(Backend::Netem);
    Container {
        name: CONTAINER.to_owned(),
        image: Some(class.images.wan.clone()),
        image_pull_policy: Some(class.pull_policy()),
        command: Some(vec![COMMAND.to_owned()]),
        args: Some(args(wan, &carrier_ports(object, end))),
        restart_policy: sidecar.then(|| "Always".to_owned()),
        startup_probe: sidecar.then(startup_probe),
        security_context: Some(pods::privileged(&["NET_ADMIN"])),
        volume_mounts: Some(vec![pods::mount(RUN_VOLUME, "/run")]),
        ..Container::default()
    }
}

/// The ports of the carriers, as the pods of `end` see them: their own port, and the ports that they
/// dial. A port of a Service, which the node translates, is the port of the Service in the pod.
fn carrier_ports(object: &ValidatedObject, end: End) -> BTreeSet<u16> {
    let dialled = object
        .connect
        .iter()
        .filter_map(|exit| port_of(exit.dialled()?));
    let meetings = object.meetings.iter();
    let meetings = meetings.filter_map(|place| port_of(&place.address));
    match end {
        End::Entry => dialled.collect(),
        End::Exit => meetings.chain([CARRIER_PORT]).collect(),
        End::Rendezvous => [CARRIER_PORT].into(),
    }
}

/// The port of `host:port`.
fn port_of(address: &str) -> Option<u16> {
    address.rsplit_once(':')?.1.parse().ok()
}

fn args(wan: &WanEmulation, carrier_ports: &BTreeSet<u16>) -> Vec<String> {
    let backend = match wan.backend.unwrap_or_default() {
        Backend::Auto => "auto",
        Backend::Netem => "netem",
        Backend::Nfqueue => "nfqueue",
    };
    let scope = match wan.scope.unwrap_or_default() {
        Scope::Carrier => carrier_ports
            .iter()
            .flat_map(|port| ["--port".to_owned(), port.to_string()])
            .collect(),
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
    let jitter = wan.jitter_milliseconds.filter(|jitter| *jitter > 0);
    head.into_iter()
        .chain([milliseconds(wan.delay_milliseconds)])
        .chain(optional("--jitter", jitter.map(milliseconds)))
        .chain(optional("--loss", wan.loss_ppm.and_then(loss)))
        .chain(optional(
            "--rate",
            wan.bits_per_second.map(|rate| rate.to_string()),
        ))
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

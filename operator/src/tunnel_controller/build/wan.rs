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
use crate::pods::{self, flag};
use crate::tunnel_controller::pods::WAN_CONTAINER;
use crate::tunnel_controller::validate::ValidatedObject;

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
        name: WAN_CONTAINER.to_owned(),
        image: Some(class.part.images.wan.clone()),
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
    let milliseconds = |count: u32| format!("{count}ms");
    let mut args = vec!["run".to_owned()];
    args.extend(flag("delay", milliseconds(wan.delay_milliseconds)));
    if let Some(jitter) = wan.jitter_milliseconds.filter(|jitter| *jitter > 0) {
        args.extend(flag("jitter", milliseconds(jitter)));
    }
    if let Some(loss) = wan.loss_ppm.filter(|loss| *loss > 0) {
        args.extend(flag("loss", percent(loss)));
    }
    let rate = wan.bits_per_second.iter();
    args.extend(rate.flat_map(|rate| flag("rate", rate)));
    match wan.scope.unwrap_or_default() {
        Scope::Carrier => args.extend(carrier_ports.iter().flat_map(|port| flag("port", port))),
        // The kubelet's probes use the admin port, which is not delayed.
        Scope::All => {
            args.push("--all".to_owned());
            args.extend(flag("except-port", ADMIN_PORT));
        }
    }
    args.extend(flag("backend", backend));
    args.extend(flag("report", REPORT));
    args
}

/// muxwan's notation of a share: percent with four decimal places.
fn percent(ppm: u32) -> String {
    format!("{}.{:04}%", ppm / 10_000, ppm % 10_000)
}

fn startup_probe() -> Probe {
    let command = [COMMAND, "check", "--report", REPORT].map(str::to_owned);
    Probe {
        exec: Some(ExecAction {
            command: Some(command.into()),
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

//! The container `wan` of a gateway's pod. Only this container, and the container `network` if
//! there is one, have UID 0 and NET_ADMIN.
//!
//! Kernel netem keeps working after the container has exited, so with netem the container is a
//! plain init container. The NFQUEUE delay line is a process, so with NFQUEUE the container is a
//! native sidecar, which starts before the gateway and ends after the gateway.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ExecAction, Probe, Volume};
use muxtunnel_crds::{Backend, Scope};
use muxtunnel_gateway_config::{ADMIN_PORT, CARRIER_PORT};

use super::End;
use crate::pods::{self, flag};
use crate::tunnel_controller::validate::{ValidatedObject, ValidatedWan};

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
pub(super) fn container(wan: &ValidatedWan, object: &ValidatedObject, end: End) -> Container {
    let class = &object.class;
    let sidecar = wan.backend != Backend::Netem;
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
    let dialled = object.connect.iter().flat_map(|connect| {
        let addresses = connect.address.iter().chain(&connect.fallback);
        let rendezvous = connect.rendezvous.iter();
        let rendezvous = rendezvous.filter_map(|place| port_of(&place.address));
        addresses.map(|address| address.port).chain(rendezvous)
    });
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

fn args(wan: &ValidatedWan, carrier_ports: &BTreeSet<u16>) -> Vec<String> {
    let backend = match wan.backend {
        Backend::Auto => "auto",
        Backend::Netem => "netem",
        Backend::Nfqueue => "nfqueue",
    };
    let milliseconds = |count: u32| format!("{count}ms");
    let mut args = vec!["run".to_owned()];
    args.extend(flag("delay", milliseconds(wan.delay_milliseconds)));
    if wan.jitter_milliseconds > 0 {
        args.extend(flag("jitter", milliseconds(wan.jitter_milliseconds)));
    }
    if wan.loss_ppm > 0 {
        args.extend(flag("loss", loss(wan.loss_ppm)));
    }
    args.extend(wan.rate.iter().flat_map(|rate| flag("rate", rate)));
    match wan.scope {
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
fn loss(ppm: u32) -> String {
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

//! The status without its conditions. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use muxtunnel_contract::labels::{COMPONENT, OWNER_KIND, OWNER_NAME};
use muxtunnel_crds::{
    CarrierStatus, ConnectStatus, GatewayStatus, MuxExitStatus, MuxRendezvousStatus,
    MuxTunnelStatus, NetworkStatus, PeerCounts, SysctlStatus,
};

use super::status::Status;
use super::verdicts::{active, ready_replicas, viewpoint, wanted};
use super::{addresses, credentials};
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::observe::Seen;
use crate::tunnel_controller::publish::Observation;
use crate::tunnel_controller::validate::ValidatedObject;

/// Maximum number of sysctls in the status.
const SYSCTLS_MAX: usize = 64;
/// Longest value of a sysctl, in bytes. The relevant values contain at most three numbers.
const SYSCTL_BYTES_MAX: usize = 256;
/// Maximum number of assigned addresses in the status, and of assigned DNS servers.
const ASSIGNED_MAX: usize = 8;

/// The status without its conditions.
pub fn facts(facts: &Observation) -> Status {
    let Observation { object, seen, .. } = facts;
    let class_name = Some(object.class.name.clone());
    let keys = credentials::keys(facts);
    let newest_first = keys.iter().rev();
    let public_keys = newest_first
        .filter_map(|key| key.public_key.clone())
        .collect();
    let carriers = Some(carriers(facts));
    let network = object.network.as_ref().map(|_| network(facts));
    match object.kind() {
        Kind::Tunnel => {
            let active = active(object, seen);
            Status::Tunnel(MuxTunnelStatus {
                class_name,
                public_keys,
                keys,
                entry: gateways(facts, End::Entry),
                exit: gateways(facts, End::Exit),
                services: addresses::services(facts),
                connect: (!active.is_empty()).then_some(ConnectStatus { active }),
                carriers,
                network,
                sysctls: sysctls(seen),
                ..MuxTunnelStatus::default()
            })
        }
        Kind::Exit => {
            let gateways = gateways(facts, End::Exit).unwrap_or_default();
            Status::Exit(MuxExitStatus {
                class_name,
                public_keys,
                keys,
                replicas: gateways.replicas,
                ready_replicas: gateways.ready_replicas,
                selector: Some(selector(object, End::Exit)),
                endpoints: addresses::endpoints(facts, End::Exit),
                ssh_endpoint: addresses::ssh(facts),
                peers: Some(peers(object, seen)),
                carriers,
                network,
                sysctls: sysctls(seen),
                ..MuxExitStatus::default()
            })
        }
        Kind::Rendezvous => Status::Rendezvous(MuxRendezvousStatus {
            class_name,
            public_keys,
            keys,
            endpoints: addresses::endpoints(facts, End::Rendezvous),
            carriers,
            ..MuxRendezvousStatus::default()
        }),
    }
}

fn gateways(facts: &Observation, end: End) -> Option<GatewayStatus> {
    let gateway = facts.object.gateway(end)?;
    let deployment = facts.deployment(end);
    Some(GatewayStatus {
        replicas: wanted(gateway.replicas, deployment),
        ready_replicas: deployment.map_or(0, ready_replicas),
    })
}

/// The selector of the pods of `end`, as text.
fn selector(object: &ValidatedObject, end: End) -> String {
    let (kind, name) = object.holder.labelled();
    let component = end.component();
    format!("{OWNER_KIND}={kind},{OWNER_NAME}={name},{COMPONENT}={component}")
}

fn carriers(facts: &Observation) -> CarrierStatus {
    let gateways = facts.seen.answers(viewpoint(&facts.object));
    let carriers: Vec<_> = gateways.flat_map(|(_, status)| &status.carriers).collect();
    let transports = carriers.iter().map(|carrier| carrier.transport.to_string());
    let transports: BTreeSet<_> = transports.collect();
    CarrierStatus {
        connected: number(carriers.len()),
        transports: transports.into_iter().collect(),
    }
}

/// The number of MuxPeers of the exit, and of those that have a carrier.
fn peers(object: &ValidatedObject, seen: &Seen) -> PeerCounts {
    let served = object.peers.iter().filter_map(|peer| peer.served());
    let names: BTreeSet<_> = served.filter_map(|peer| peer.name.as_deref()).collect();
    let reported = seen
        .answers(End::Exit)
        .flat_map(|(_, status)| &status.peers);
    let connected = reported.filter(|peer| peer.carriers > 0);
    let connected = connected.filter_map(|peer| names.get(peer.name.as_deref()?));
    let connected: BTreeSet<_> = connected.collect();
    PeerCounts {
        total: number(object.peers.len()),
        connected: number(connected.len()),
    }
}

fn network(facts: &Observation) -> NetworkStatus {
    let packets = |end| {
        facts
            .seen
            .answers(end)
            .filter_map(|(_, status)| status.packets.as_ref())
    };
    let sessions = packets(viewpoint(&facts.object)).map(|packets| packets.sessions);
    let assigned = packets(End::Entry).find_map(|packets| packets.assigned.as_ref());
    let texts = |addresses: &[IpAddr]| {
        let addresses = addresses.iter().take(ASSIGNED_MAX);
        addresses.map(IpAddr::to_string).collect()
    };
    NetworkStatus {
        sessions: sessions.fold(0, i32::saturating_add_unsigned),
        addresses: assigned.map_or(Vec::new(), |assigned| texts(&assigned.addresses)),
        dns_servers: assigned.map_or(Vec::new(), |assigned| texts(&assigned.dns_servers)),
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// The sysctls that the gateways report. If gateways differ, contains all values with their ends.
fn sysctls(seen: &Seen) -> Vec<SysctlStatus> {
    let mut values: BTreeMap<&str, BTreeSet<(String, &str)>> = BTreeMap::new();
    for (pod, status) in seen.all_answers() {
        for (name, value) in &status.sysctls {
            let own = values.entry(name).or_default();
            own.insert((folded(value), pod.end.component()));
        }
    }
    let sysctls = values.into_iter().take(SYSCTLS_MAX).map(|(name, values)| {
        let distinct: BTreeSet<_> = values.iter().map(|(value, _)| value).collect();
        let mut value = match distinct.iter().collect::<Vec<_>>()[..] {
            [value] => (*value).clone(),
            _ => {
                let each = values.iter().map(|(value, end)| format!("{value} ({end})"));
                each.collect::<Vec<_>>().join(", ")
            }
        };
        value.truncate(value.floor_char_boundary(SYSCTL_BYTES_MAX));
        let name = name.to_owned();
        SysctlStatus { name, value }
    });
    sysctls.collect()
}

/// Normalizes a value to words that are separated by one space, as the kernel interprets it.
pub(super) fn folded(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

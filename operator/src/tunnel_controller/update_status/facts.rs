//! The status without its conditions. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use muxtunnel_crds::{CarrierStatus, GatewayStatus, MuxTunnelStatus, PacketStatus};
use muxtunnel_gateway_config::CARRIER_PORT;

use super::credentials;
use super::verdicts::{answers, ready_replicas, viewpoint, wanted};
use crate::tunnel_controller::apply::Applied;
use crate::tunnel_controller::build::Certified;
use crate::tunnel_controller::build::service::ssh_name;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::Seen;
use crate::tunnel_controller::publish::{address, is_balanced, load_balancer};
use crate::tunnel_controller::validate::ValidatedTunnel;

/// Maximum number of sysctls in the status.
const SYSCTLS_MAX: usize = 64;
/// Longest value of a sysctl, in bytes. The relevant values contain at most three numbers.
const SYSCTL_BYTES_MAX: usize = 256;
/// Maximum number of assigned addresses in the status, and of assigned DNS servers.
const ASSIGNED_MAX: usize = 8;
/// Maximum number of reasons of dropped packets in the status.
const REASONS_MAX: usize = 32;

/// The status without its conditions.
#[must_use]
pub fn facts(
    tunnel: &ValidatedTunnel,
    applied: &Applied,
    seen: &Seen,
    certified: &Certified,
) -> MuxTunnelStatus {
    let mut rtts: Vec<f64> = answers(seen, viewpoint(tunnel))
        .flat_map(|(_, status)| &status.carriers)
        .map(|carrier| carrier.rtt_min_milliseconds)
        .collect();
    rtts.sort_by(f64::total_cmp);
    let transports: BTreeSet<String> = answers(seen, viewpoint(tunnel))
        .flat_map(|(_, status)| &status.carriers)
        .map(|carrier| carrier.transport.to_string())
        .collect();
    let keys = credentials::keys(tunnel, &certified.keys, seen);
    let mut newest_first: Vec<_> = keys.iter().collect();
    newest_first.sort_by_key(|key| std::cmp::Reverse(key.generation));
    let public_keys = newest_first.into_iter();
    MuxTunnelStatus {
        public_keys: public_keys
            .filter_map(|key| key.public_key.clone())
            .collect(),
        keys,
        entry: side(tunnel, applied, End::Entry),
        exit: side(tunnel, applied, End::Exit),
        rendezvous: side(tunnel, applied, End::Rendezvous),
        carriers: tunnel.rendezvous.is_none().then(|| CarrierStatus {
            up: i32::try_from(rtts.len()).unwrap_or(i32::MAX),
            rtt_milliseconds: rtts.get(rtts.len() / 2).copied(),
            transports: transports.into_iter().collect::<Vec<_>>().join(","),
        }),
        packets: tunnel.network.as_ref().map(|_| packets(tunnel, seen)),
        sysctls: sysctls(seen),
        ..MuxTunnelStatus::default()
    }
}

fn side(tunnel: &ValidatedTunnel, applied: &Applied, end: End) -> Option<GatewayStatus> {
    let gateway = end.gateway(tunnel)?;
    let name = end.child_name(tunnel);
    let deployment = applied
        .deployments
        .iter()
        .find(|deployment| deployment.name_any() == name);
    let service = applied
        .services
        .iter()
        .find(|service| service.name_any() == name);
    // An entry without listening forwards has no Service.
    let host = service.and_then(|service| own_address(service, tunnel));
    let ssh = end.ssh(tunnel).and_then(|ssh| {
        let name = ssh_name(tunnel);
        let service = applied.services.iter().find(|one| one.name_any() == name);
        let host = own_address(service?, tunnel)?;
        Some(format!("{host}:{}", ssh.port))
    });
    let replicas = wanted(gateway.replicas, deployment);
    let ready_replicas = deployment.map_or(0, ready_replicas);
    Some(GatewayStatus {
        replicas,
        ready_replicas,
        ready: format!("{ready_replicas}/{replicas}"),
        address: match end {
            End::Entry => host,
            End::Exit => address(tunnel, applied).filter(|_| end.is_dialled(tunnel)),
            End::Rendezvous => host.map(|host| format!("{host}:{CARRIER_PORT}")),
        },
        ssh_address: ssh,
    })
}

/// The address of a Service. `None` while its load balancer has no address, because clients outside
/// of the cluster cannot use the name of the Service.
fn own_address(service: &Service, tunnel: &ValidatedTunnel) -> Option<String> {
    let own = || format!("{}.{}.svc", service.name_any(), tunnel.namespace);
    load_balancer(service).or_else(|| (!is_balanced(service)).then(own))
}

fn packets(tunnel: &ValidatedTunnel, seen: &Seen) -> PacketStatus {
    let of = |end| answers(seen, end).filter_map(|(_, status)| status.packets.as_ref());
    let sessions = of(viewpoint(tunnel)).map(|packets| packets.sessions);
    let sessions = sessions.fold(0, u32::saturating_add);
    let assigned = of(End::Entry).find_map(|packets| packets.assigned.as_ref());
    let texts = |addresses: &[IpAddr]| {
        let addresses = addresses.iter().take(ASSIGNED_MAX);
        addresses.map(IpAddr::to_string).collect()
    };
    let mut drops: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, count) in End::ALL
        .into_iter()
        .flat_map(of)
        .flat_map(|packets| &packets.drops)
    {
        let sum = drops.entry(reason).or_default();
        *sum = sum.saturating_add(*count);
    }
    let drops = drops.into_iter().filter(|(_, count)| *count > 0);
    PacketStatus {
        sessions: i32::try_from(sessions).unwrap_or(i32::MAX),
        addresses: assigned.map_or(Vec::new(), |assigned| texts(&assigned.addresses)),
        dns_servers: assigned.map_or(Vec::new(), |assigned| texts(&assigned.dns_servers)),
        drops: drops
            .take(REASONS_MAX)
            .map(|(reason, count)| (cut(reason.to_owned()), one_digit(count)))
            .collect(),
    }
}

/// Rounds `count` down to one significant digit, so that a growing count rarely changes the status.
fn one_digit(count: u64) -> i64 {
    let unit = 10_u64.pow(count.checked_ilog10().unwrap_or(0));
    i64::try_from(count / unit * unit).unwrap_or(i64::MAX)
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(SYSCTL_BYTES_MAX));
    text
}

/// The sysctls that the gateways report. If gateways differ, contains all values with their ends.
fn sysctls(seen: &Seen) -> BTreeMap<String, String> {
    let mut values: BTreeMap<&str, BTreeSet<(String, &str)>> = BTreeMap::new();
    for end in End::ALL {
        for (_, status) in answers(seen, end) {
            for (name, value) in &status.sysctls {
                values
                    .entry(name)
                    .or_default()
                    .insert((folded(value), end.component()));
            }
        }
    }
    values
        .into_iter()
        .take(SYSCTLS_MAX)
        .map(|(name, values)| {
            let distinct: BTreeSet<_> = values.iter().map(|(value, _)| value).collect();
            let text = if let [value] = distinct.iter().collect::<Vec<_>>()[..] {
                (*value).clone()
            } else {
                values
                    .iter()
                    .map(|(value, end)| format!("{value} ({end})"))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            (name.to_owned(), cut(text))
        })
        .collect()
}

/// Normalizes a value to words that are separated by one space, as the kernel interprets it.
pub(super) fn folded(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

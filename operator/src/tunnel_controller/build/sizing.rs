//! The number of workers of a gateway, and the number of its sessions and carriers. Pure.
//!
//! Each worker of an entry has its own session, and an exit has the sessions of all entries. If a
//! container has a memory limit, its sessions share five eighths of the limit. The gateway reads the
//! limit itself, because a LimitRange may set it. For the division, the number of sessions must be
//! known. So with a memory limit, the CPU limit determines the number of workers, not the node's
//! cores.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use muxtunnel_crds::{ContainerName, Protocol};
use muxtunnel_gateway_config::{CARRIERS_DEFAULT, SESSIONS_DEFAULT, SESSIONS_MAX, WORKERS_MAX};

use super::{End, quantity};
use crate::tunnel_controller::validate::{
    Replicas, ValidatedGateway, ValidatedObject, resources_of,
};

/// Number of workers of a gateway without a CPU limit, if the entry or the exit has a memory limit.
/// Also the assumed number for a gateway whose workers the operator does not know.
const WORKERS_UNKNOWN: u16 = 4;
/// Sessions of an exit in addition to the sessions of its entries, because reconnects overlap.
const SPARE_CARRIERS: u64 = 1;
/// Number of ssh users that an exit reserves memory for. Each user has a session.
const SSH_SESSIONS: u64 = 4;
/// Maximum of `replicas` in the spec.
const REPLICAS_MAX: u64 = 32;
/// Maximum number of carriers of an exit.
const CARRIERS_MAX: u32 = 1024;

/// The number of workers: the CPU limit, rounded up. An entry with JMUX keeps the default of one
/// worker, because a jetsocat at the other end supports only one carrier. A rendezvous has no
/// sessions, so its memory limit does not affect the number. `None` means one worker per core.
pub(super) fn workers(
    object: &ValidatedObject,
    end: End,
    gateway: &ValidatedGateway,
) -> Option<u16> {
    if object.carrier.connection.protocol() == Protocol::Jmux && end == End::Entry {
        return None;
    }
    // A gateway with a network has one worker for each queue, so that the packets of a flow stay in
    // order.
    if let Some(network) = &object.network {
        return Some(network.config.queues);
    }
    let limited = limit(gateway, "cpu", quantity::cores);
    let gateways = [End::Entry, End::Exit].into_iter();
    let mut gateways = gateways.filter_map(|end| object.gateway(end));
    let memory_counts = gateways.any(|own| limit(own, "memory", quantity::bytes).is_some());
    limited
        .map(|cores| cores.clamp(1, WORKERS_MAX))
        .or(memory_counts.then_some(WORKERS_UNKNOWN))
}

/// Sessions of one entry gateway with one exit: one per worker.
fn entry_sessions(object: &ValidatedObject, entry: &ValidatedGateway) -> Option<u64> {
    if object.carrier.connection.protocol() == Protocol::Jmux {
        return Some(1);
    }
    workers(object, End::Entry, entry).map(u64::from)
}

fn replicas(gateway: &ValidatedGateway) -> u64 {
    u64::try_from(gateway.replicas.most()).unwrap_or(1).max(1)
}

/// The greatest number of gateways for which the exits have carriers. If users scale the entries,
/// this number does not follow each change, because a change of `limits.carriers` rolls out the
/// exits.
fn replicas_max(gateway: &ValidatedGateway) -> u64 {
    match gateway.replicas {
        Replicas::Free(_) => REPLICAS_MAX,
        Replicas::Fixed(_) | Replicas::Autoscaled { .. } => replicas(gateway),
    }
}

/// The number of connections of a session that have memory of their own.
fn connections(object: &ValidatedObject) -> u64 {
    match object.carrier.connection.protocol().can().library_buffers {
        true => object.carrier.pool().max().into(),
        false => 1,
    }
}

/// The number of sessions that an exit expects, or of their connections if each has memory of its
/// own. The gateway reads its own memory limit, which its sessions share. `None` for an entry, which
/// knows the number, and for a rendezvous, which has no sessions.
pub(super) fn sessions(
    object: &ValidatedObject,
    end: End,
    gateway: &ValidatedGateway,
) -> Option<u32> {
    let of_entries = object.gateway(End::Entry).map(|entry| {
        let of_entry = entry_sessions(object, entry).unwrap_or(WORKERS_UNKNOWN.into());
        replicas(entry) * of_entry + SPARE_CARRIERS
    });
    // The operator may not know the entries.
    let of_entries = of_entries.unwrap_or(SESSIONS_DEFAULT.into());
    let of_users = gateway.ssh.as_ref().map_or(0, |_| SSH_SESSIONS);
    let all = u32::try_from(of_entries * connections(object) + of_users).unwrap_or(SESSIONS_MAX);
    (end == End::Exit).then_some(all.min(SESSIONS_MAX))
}

/// Twice the number of the entries' carriers, because reconnects overlap, but at least
/// [`CARRIERS_DEFAULT`] and at most [`CARRIERS_MAX`].
pub(super) fn carriers(object: &ValidatedObject) -> u32 {
    let sessions = object.gateway(End::Entry).map_or(1, |entry| {
        let sessions = entry_sessions(object, entry);
        replicas_max(entry) * sessions.unwrap_or(WORKERS_MAX.into())
    });
    u32::try_from(2 * sessions * u64::from(object.carrier.pool().max()))
        .unwrap_or(u32::MAX)
        .clamp(CARRIERS_DEFAULT, CARRIERS_MAX)
}

/// A limit of the gateway's container, read by `read`.
fn limit<T>(gateway: &ValidatedGateway, name: &str, read: fn(&Quantity) -> Option<T>) -> Option<T> {
    let resources = resources_of(&gateway.template, ContainerName::Gateway)?;
    resources.limits.get(name).and_then(read)
}

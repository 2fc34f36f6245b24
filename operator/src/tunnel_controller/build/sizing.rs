//! The number of workers of a gateway, and the memory, streams and carriers of its sessions. Pure.
//!
//! Each worker of an entry has its own session, and an exit has the sessions of all entries. If a
//! container has a memory limit, its sessions share five eighths of the limit. For this division
//! the number of sessions must be known. So with a memory limit, the CPU limit determines the
//! number of workers, not the node's cores.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use muxtunnel_crds::Protocol;
use muxtunnel_gateway_config::{
    ByteSize, CARRIERS_DEFAULT, Limits, Memory, RECEIVE_DEFAULT, RECEIVE_MIN, RETAIN_DEFAULT,
    RETAIN_MIN, STREAM_RECEIVE_MIN, WORKERS_MAX,
};

use super::{End, quantity};
use crate::tunnel_controller::validate::{ValidatedGateway, ValidatedTunnel};

/// Number of workers of a gateway without a CPU limit, if the entry or the exit has a memory limit.
const WORKERS_UNKNOWN: u16 = 4;
/// Sessions of an exit in addition to the sessions of its entries, because reconnects overlap.
const SPARE_CARRIERS: u64 = 1;
/// Number of ssh users that an exit reserves memory for. Each user has a session.
const SSH_SESSIONS: u64 = 4;
/// Maximum number of carriers of an exit.
const CARRIERS_MAX: u32 = 1024;

/// The sizes of one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizing {
    /// `None` means one worker per core.
    pub(super) workers: Option<u16>,
    pub(super) memory: Memory,
    pub(super) limits: Limits,
}

/// Decides the sizes of the gateways of one end.
pub(super) fn sizing(tunnel: &ValidatedTunnel, end: End, gateway: &ValidatedGateway) -> Sizing {
    let memory = memory(tunnel, end, gateway);
    Sizing {
        workers: workers(tunnel, end, gateway),
        limits: Limits {
            streams: streams(tunnel.protocol, memory),
            carriers: tunnel
                .rendezvous
                .as_ref()
                .map_or_else(|| carriers(tunnel), |own| own.visits),
        },
        memory,
    }
}

/// The number of workers: the CPU limit, rounded up. An entry with JMUX keeps the default of one
/// worker, because a jetsocat at the other end supports only one carrier. A rendezvous has no
/// sessions, so its memory limit does not affect the number.
fn workers(tunnel: &ValidatedTunnel, end: End, gateway: &ValidatedGateway) -> Option<u16> {
    if tunnel.protocol == Protocol::Jmux && end == End::Entry {
        return None;
    }
    // A gateway with a network has one worker for each queue, so that the packets of a flow stay in
    // order.
    if let Some(network) = &tunnel.network {
        return Some(network.queues);
    }
    let limited = limit(gateway, "cpu", quantity::cores);
    let memory_counts = [&tunnel.entry, &tunnel.exit]
        .into_iter()
        .flatten()
        .any(|gateway| limit(gateway, "memory", quantity::bytes).is_some());
    limited
        .map(|cores| cores.clamp(1, WORKERS_MAX))
        .or(memory_counts.then_some(WORKERS_UNKNOWN))
}

/// Sessions of one entry gateway: one per worker.
fn entry_sessions(tunnel: &ValidatedTunnel, entry: &ValidatedGateway) -> Option<u64> {
    if tunnel.protocol == Protocol::Jmux {
        return Some(1);
    }
    workers(tunnel, End::Entry, entry).map(u64::from)
}

fn replicas(gateway: &ValidatedGateway) -> u64 {
    u64::try_from(gateway.replicas.most()).unwrap_or(1)
}

/// Half of the container's memory limit for received data, and an eighth for unacknowledged data,
/// divided by the number of sessions. Each result has a lower bound, and the default as its upper
/// bound. Without a limit, returns the defaults.
fn memory(tunnel: &ValidatedTunnel, end: End, gateway: &ValidatedGateway) -> Memory {
    let Some(limit) = limit(gateway, "memory", quantity::bytes) else {
        return Memory::default();
    };
    let sessions = match (end, &tunnel.entry) {
        (End::Entry, _) => entry_sessions(tunnel, gateway).unwrap_or(1),
        (End::Exit, None) => 1,
        (End::Exit, Some(entry)) => {
            replicas(entry) * entry_sessions(tunnel, entry).unwrap_or(1) + SPARE_CARRIERS
        }
        // A rendezvous joins carriers in pipes, and has no sessions.
        (End::Rendezvous, _) => return Memory::default(),
    };
    let sessions = sessions + end.ssh(tunnel).map_or(0, |_| SSH_SESSIONS);
    let (receive, retain) = (limit / 2 / sessions, limit / 8 / sessions);
    Memory {
        receive: ByteSize(receive.clamp(RECEIVE_MIN.0, RECEIVE_DEFAULT.0)),
        retain: ByteSize(retain.clamp(RETAIN_MIN.0, RETAIN_DEFAULT.0)),
        ..Memory::default()
    }
}

/// The default number of streams. With JMUX, at most the number that fits the memory.
fn streams(protocol: Protocol, memory: Memory) -> u32 {
    let default = Limits::default().streams;
    if protocol != Protocol::Jmux {
        return default;
    }
    let room = memory.receive.0 / STREAM_RECEIVE_MIN.0;
    default.min(u32::try_from(room).unwrap_or(u32::MAX))
}

/// Twice the number of the entries' carriers, because reconnects overlap, but at least
/// [`CARRIERS_DEFAULT`] and at most [`CARRIERS_MAX`].
fn carriers(tunnel: &ValidatedTunnel) -> u32 {
    let sessions = tunnel.entry.as_ref().map_or(1, |entry| {
        let sessions = entry_sessions(tunnel, entry);
        replicas(entry) * sessions.unwrap_or(WORKERS_MAX.into())
    });
    u32::try_from(2 * sessions * u64::from(tunnel.pool.max))
        .unwrap_or(u32::MAX)
        .clamp(CARRIERS_DEFAULT, CARRIERS_MAX)
}

/// A limit of the gateway's container, read by `read`.
fn limit<T>(gateway: &ValidatedGateway, name: &str, read: fn(&Quantity) -> Option<T>) -> Option<T> {
    let resources = gateway.template.resources.as_ref()?;
    resources.limits.get(name).and_then(read)
}

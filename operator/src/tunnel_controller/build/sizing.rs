//! How many workers a gateway runs, and how much memory and how many streams and carriers each session
//! may have. Pure.
//!
//! Each worker of an entry has a session of its own, and an exit has those of all entries. Where a
//! container has a memory limit, its sessions together get five eighths of it; so their number must be known,
//! and workers are counted by the CPU limit instead of the node's cores.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use muxtunnel_crds::Protocol;
use muxtunnel_gateway_config::{
    ByteSize, CARRIERS_DEFAULT, Limits, Memory, RECEIVE_DEFAULT, RECEIVE_MIN, RETAIN_DEFAULT,
    RETAIN_MIN, STREAM_RECEIVE_MIN, WORKERS_MAX,
};

use super::{End, quantity};
use crate::tunnel_controller::validate::{ValidatedGateway, ValidatedTunnel};

/// Workers of a gateway whose memory is limited and whose CPU is not.
const WORKERS_UNKNOWN: u16 = 4;
/// Carriers that an exit has room for besides those of its own entries: reconnects overlap.
const SPARE_CARRIERS: u64 = 1;
/// Users of ssh that an exit has room for, each with a session of its own.
const SSH_SESSIONS: u64 = 4;
/// Most carriers of an exit.
const CARRIERS_MAX: u32 = 1024;

/// The sizes of one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizing {
    /// `None`: one a core.
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

/// The CPU limit, rounded up. An entry with JMUX is left with its default of one, so that a jetsocat
/// at the other end has to do with one carrier. A rendezvous has no sessions, so no memory has to be shared.
fn workers(tunnel: &ValidatedTunnel, end: End, gateway: &ValidatedGateway) -> Option<u16> {
    if tunnel.protocol == Protocol::Jmux && end == End::Entry {
        return None;
    }
    // No flow of packets is reordered.
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

/// Sessions of one entry gateway, one a worker.
fn entry_sessions(tunnel: &ValidatedTunnel, entry: &ValidatedGateway) -> Option<u64> {
    if tunnel.protocol == Protocol::Jmux {
        return Some(1);
    }
    workers(tunnel, End::Entry, entry).map(u64::from)
}

fn replicas(gateway: &ValidatedGateway) -> u64 {
    u64::try_from(gateway.replicas.most()).unwrap_or(1)
}

/// Half of the container's memory limit for what is received and an eighth for what is kept until the
/// other side has it, shared by its sessions; without a limit the defaults.
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
        // It joins carriers in pipes, and has no sessions.
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

/// As many streams as there are by default; with JMUX, as the memory has room for.
fn streams(protocol: Protocol, memory: Memory) -> u32 {
    let default = Limits::default().streams;
    if protocol != Protocol::Jmux {
        return default;
    }
    let room = memory.receive.0 / STREAM_RECEIVE_MIN.0;
    default.min(u32::try_from(room).unwrap_or(u32::MAX))
}

/// Room for every carrier of the entries' sessions twice, since reconnects overlap.
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

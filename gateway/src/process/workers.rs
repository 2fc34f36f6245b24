//! The worker threads: their number, and their event loops.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};

use anyhow::Context;
use muxtunnel_gateway_config::{Config, Gateway, Protocol, Role, WORKERS_MAX};
use tokio::runtime::LocalOptions;
use tokio::sync::mpsc::Receiver;

use crate::base::cpu::WORKER_NAME;
use crate::base::memory_budget::MemoryBudget;
use crate::roles::network::Queues;
use crate::roles::rendezvous::Meeting;
use crate::roles::worker::Worker;
use crate::roles::{entry, exit, rendezvous};
use crate::session::handover::{Handed, Handover};

/// Number of tasks that a worker runs before it polls its sockets again. A task that moves bulk
/// data takes 0.1 ms. With tokio's default of 61 tasks, the bytes of a small stream would wait for
/// 6 ms, even on a separate carrier.
const EVENT_INTERVAL: u32 = 8;
/// Number of own tasks that a worker runs before it runs a task that another worker has woken, for
/// example to evict a connection. With tokio's default of 31, these tasks would wait while a flood
/// keeps the worker's own tasks busy.
const GLOBAL_QUEUE_INTERVAL: u32 = 4;

/// Number of workers by default, if the process has a memory limit. Each worker of an entry has its
/// own session, and each session needs a part of the memory.
const WORKERS_WITH_LIMIT: usize = 4;

/// Number of workers. The default is one per core, or one per queue of the network interface if the
/// gateway has one. A JMUX entry has one worker, since each worker has its own carrier and a
/// jetsocat accepts a single carrier. A gateway also has one worker if its carrier is standard
/// input and output, or a command, which may request a password. With a memory limit, the default
/// is at most [`WORKERS_WITH_LIMIT`].
pub(super) fn count(config: &Config) -> usize {
    // Each queue of the network interface has its own event loop, so that the packets of each flow
    // stay in order.
    let configured = config
        .workers
        .or(config.network.as_ref().map(|network| network.queues));
    let workers = match (configured, config.role, config.protocol) {
        (Some(workers), ..) => workers.into(),
        (None, Role::Entry, Protocol::Jmux) => 1,
        (None, ..) if config.is_stdio() || config.command().is_some() => 1,
        (None, ..) => {
            let most = match MemoryBudget::of_process().is_limited() {
                true => WORKERS_WITH_LIMIT,
                false => usize::MAX,
            };
            // Also at most the CPU limit of the control group.
            std::thread::available_parallelism().map_or(1, |cores| cores.get().min(most))
        }
    };
    workers.clamp(1, WORKERS_MAX.into())
}

/// State of single roles, which all workers share.
#[derive(Clone)]
pub(super) struct OfRole {
    /// The queues of the interface for IP packets.
    pub(super) queues: Option<Arc<Queues>>,
    /// The state of a rendezvous; `None` in other roles.
    pub(super) meeting: Option<Arc<Meeting>>,
}

/// Runs the workers until all workers end or one fails. Each worker is a copy of `first` with its
/// own index. `carriers_max` is the maximum number of an exit's carriers.
pub(super) fn run(
    gateway: &Gateway,
    carriers_max: usize,
    first: &Worker,
    of_role: &OfRole,
) -> anyhow::Result<()> {
    let (ended, ends) = mpsc::channel();
    let (handover, handed) = Handover::new(first.workers, carriers_max);
    first.telemetry.add_limiter(&handover.limiter);
    for (index, handed) in handed.into_iter().enumerate() {
        let worker = Worker {
            index,
            ..first.clone()
        };
        let (ended, handover) = (ended.clone(), Arc::clone(&handover));
        let (gateway, of_role) = (gateway.clone(), of_role.clone());
        std::thread::Builder::new()
            .name(format!("{WORKER_NAME}{index}"))
            .spawn(move || {
                let end = catch_unwind(AssertUnwindSafe(|| {
                    run_worker(worker, gateway, of_role, handover, handed)
                }));
                let end = end.unwrap_or_else(|_| Err(anyhow::anyhow!("worker {index} panicked")));
                // The receiver is dropped if another worker has failed.
                let _ = ended.send(end);
            })
            .context("cannot start a worker")?;
    }
    drop(ended);
    ends.iter().collect()
}

/// Runs the event loop of one worker on its own thread until the worker has shut down.
fn run_worker(
    worker: Worker,
    gateway: Gateway,
    of_role: OfRole,
    handover: Arc<Handover>,
    handed: Receiver<Handed>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .global_queue_interval(GLOBAL_QUEUE_INTERVAL)
        .build_local(LocalOptions::default())?;
    let run = async move {
        match gateway {
            Gateway::Entry(entry) => entry::run(worker, entry, of_role.queues).await,
            Gateway::Exit(exit) => exit::run(worker, exit, of_role.queues, handover, handed).await,
            Gateway::Rendezvous(rendezvous) => match of_role.meeting {
                Some(meeting) => rendezvous::run(worker, rendezvous, meeting).await,
                None => Ok(()),
            },
        }
    };
    Ok(runtime.block_on(run)?)
}

//! The workers' threads: how many there are, and the loop that each one runs.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};

use anyhow::Context;
use muxtunnel_gateway_config::{Config, Gateway, Protocol, Role, WORKERS_MAX};
use tokio::runtime::LocalOptions;
use tokio::sync::mpsc::Receiver;

use crate::base::cpu::WORKER_NAME;
use crate::roles::entry::Asker;
use crate::roles::worker::Worker;
use crate::roles::{entry, exit, rendezvous};
use crate::session::handover::{Handed, Handover};

/// Tasks that run before sockets are polled again. One that moves bulk takes 0.1 ms: with tokio's 61 a
/// small stream's bytes would wait for 6 ms to be seen, on a carrier of their own as well.
const EVENT_INTERVAL: u32 = 8;
/// Tasks that run before one that another worker has woken, such as a connection that it evicts. With tokio's 31 these
/// stay for as long as the own tasks of a flood go on.
const GLOBAL_QUEUE_INTERVAL: u32 = 4;

/// One a core, unless configured otherwise. A JMUX entry has one: each worker has a carrier of its own,
/// and a jetsocat at the other end takes a single one. So have those whose carrier is a command, which may ask for
/// a password, or the process's own.
pub(super) fn count(config: &Config) -> usize {
    // No flow is reordered where one loop has all packets of a queue.
    let configured = config
        .workers
        .or(config.network.as_ref().map(|network| network.queues));
    let workers = match (configured, config.role, config.protocol) {
        (Some(workers), ..) => workers.into(),
        (None, Role::Entry, Protocol::Jmux) => 1,
        (None, ..) if config.is_stdio() || !config.connect_command.is_empty() => 1,
        (None, ..) => std::thread::available_parallelism().map_or(1, NonZero::get),
    };
    workers.clamp(1, WORKERS_MAX.into())
}

/// Runs as many workers as `first`, to its end or the first failure. `carriers_max`: that an exit has at once. `asked`:
/// where each of them is asked for offers.
pub(super) fn run(
    gateway: &Gateway,
    carriers_max: usize,
    first: &Worker,
    asked: Vec<Receiver<Asker>>,
) -> anyhow::Result<()> {
    let (ended, ends) = mpsc::channel();
    let (handover, handed) = Handover::new(first.workers, carriers_max);
    first.telemetry.add_limiter(&handover.limiter);
    for (index, (handed, asked)) in handed.into_iter().zip(asked).enumerate() {
        let worker = Worker {
            index,
            ..first.clone()
        };
        let (ended, handover, gateway) = (ended.clone(), Arc::clone(&handover), gateway.clone());
        std::thread::Builder::new()
            .name(format!("{WORKER_NAME}{index}"))
            .spawn(move || {
                let end = catch_unwind(AssertUnwindSafe(|| {
                    run_worker(worker, gateway, handover, handed, asked)
                }));
                let end = end.unwrap_or_else(|_| Err(anyhow::anyhow!("worker {index} panicked")));
                // The receiver is gone once another worker has failed.
                let _ = ended.send(end);
            })
            .context("cannot start a worker")?;
    }
    drop(ended);
    ends.iter().collect()
}

/// The loop of one worker, on a thread of its own, until it has shut down.
fn run_worker(
    worker: Worker,
    gateway: Gateway,
    handover: Arc<Handover>,
    handed: Receiver<Handed>,
    asked: Receiver<Asker>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .global_queue_interval(GLOBAL_QUEUE_INTERVAL)
        .build_local(LocalOptions::default())?;
    let run = async move {
        match gateway {
            Gateway::Entry(entry) => entry::run(worker, entry, asked).await,
            Gateway::Exit(exit) => exit::run(worker, exit, handover, handed).await,
            Gateway::Rendezvous(rendezvous) => rendezvous::run(worker, rendezvous).await,
        }
    };
    Ok(runtime.block_on(run)?)
}

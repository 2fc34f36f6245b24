//! One muxgate process: its threads, its signals, its end.
//!
//! Each worker is a thread with one single-threaded loop, which carries the bytes of the connections
//! that the kernel gave its listeners. One more thread serves the admin port, follows the
//! configuration file and hears signals; it reaches the workers by watch channels ([`Phase`], the
//! configuration, credentials), asks those of an entry by one of their own ([`Offers`]), and shares telemetry
//! with them.

mod admin;
mod reload;

use std::net::SocketAddr;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{
    self as config, Config, ConfigError, Drain, Protocol, Role, UNIX_PREFIX, WORKERS_MAX,
};
use rustix::process::{Resource, Rlimit};
use tokio::runtime::LocalOptions;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;

use crate::base::cpu::WORKER_NAME;
use crate::base::telemetry::{RendezvousStatus, Telemetry};
use crate::io::security::{self, Credentials};
use crate::net::bind::{check_free, listen_alone};
use crate::net::egress::Egress;
use crate::net::protected_addresses::ProtectedAddresses;
use crate::observe::carrier_sampler;
use crate::roles::entry::{Asker, Offers};
use crate::roles::rendezvous::RendezvousRole;
use crate::roles::worker::{Phase, Worker};
use crate::roles::{entry, exit, rendezvous};
use crate::session::handover::{Handed, Handover};

/// Tasks that run before sockets are polled again. One that moves bulk takes 0.1 ms: with tokio's 61 a
/// small stream's bytes would wait for 6 ms to be seen, on a carrier of their own as well.
const EVENT_INTERVAL: u32 = 8;
/// Tasks that run before one that another worker has woken, such as a connection that it evicts. With tokio's 31 these
/// stay for as long as the own tasks of a flood go on.
const GLOBAL_QUEUE_INTERVAL: u32 = 4;

/// Where the configuration comes from.
#[derive(Debug)]
pub enum Source {
    /// A file, followed while running.
    File(PathBuf),
    /// Flags.
    Flags(Box<Config>),
}

/// A configuration and the text it came from.
fn load(source: &Source) -> Result<(Config, String), anyhow::Error> {
    match source {
        Source::File(path) => {
            let text = reload::read(path)
                .with_context(|| format!("{}: {}", Code::ConfigInvalid, path.display()))?;
            let config = Config::from_yaml(&text).map_err(|error| {
                let (code, path) = (Code::ConfigInvalid, path.display());
                match error {
                    // As compilers say it, so that editors find the place.
                    ConfigError::At { .. } => anyhow::anyhow!("{code}: {path}:{error}"),
                    ConfigError::Field { .. } => anyhow::anyhow!("{code}: {path}: {error}"),
                }
            })?;
            Ok((config, text))
        }
        Source::Flags(config) => {
            let wrong = |error: ConfigError| anyhow::anyhow!("{}: {error}", Code::ConfigInvalid);
            config.check().map_err(wrong)?;
            Ok((config.as_ref().clone(), config.to_yaml().map_err(wrong)?))
        }
    }
}

/// How a run ended, when not well.
#[derive(Debug)]
pub enum Failure {
    /// The configuration cannot be used: exit status 2.
    Config(anyhow::Error),
    /// Anything else: exit status 1.
    Runtime(anyhow::Error),
}

/// Runs a gateway until SIGTERM or SIGINT.
///
/// # Errors
/// [`Failure`].
pub fn run(source: &Source) -> Result<(), Failure> {
    let (config, text) = load(source).map_err(Failure::Config)?;
    let credentials = Credentials::load(&config.security);
    let credentials = credentials.map_err(|error| Failure::Config(error.into()))?;
    let rendezvous_role =
        RendezvousRole::of(&config).map_err(|error| Failure::Config(error.into()))?;
    let egress = Egress::of(&config).map_err(Failure::Config)?;
    serve(
        source,
        config,
        &text,
        credentials,
        (rendezvous_role, egress),
    )
    .map_err(Failure::Runtime)
}

fn serve(
    source: &Source,
    config: Config,
    text: &str,
    credentials: Credentials,
    (rendezvous_role, egress): (RendezvousRole, Egress),
) -> anyhow::Result<()> {
    raise_open_files();
    let workers = workers(&config);
    let meeting = rendezvous_role.meeting();
    let rendezvous = meeting
        .clone()
        .map(|meeting| meeting as Arc<dyn RendezvousStatus>);
    let telemetry = Telemetry::new(config.clone(), text, workers, rendezvous);
    if let Some(meeting) = meeting {
        telemetry.add_limiter(&meeting.limiter());
    }
    telemetry.set_certificate(credentials.certificate());
    let (config_sender, config_receiver) = watch::channel(Arc::new(config.clone()));
    let (credentials_sender, credentials) = watch::channel(Arc::new(credentials));
    let (phase_sender, phase_receiver) = watch::channel(Phase::Running);
    let admin_listener = config.admin.as_deref().map(listen_alone).transpose()?;
    let here = |forward: &&config::Forward| forward.direction == config::Direction::EntryToExit;
    let ports = config
        .forwards
        .iter()
        .filter(here)
        .map(|forward| &forward.listen);
    // A Unix socket is one for all workers, so nothing can be shared with another process.
    let ports = ports.filter(|address| !address.starts_with(UNIX_PREFIX));
    let carriers = config.listen.iter();
    let carriers = carriers.filter(|listen| listen.parse::<SocketAddr>().is_ok());
    for address in ports.chain(carriers) {
        check_free(address)?;
    }
    let file = match source {
        Source::File(path) => Some(path.clone()),
        Source::Flags(_) => None,
    };
    let control = Control {
        drain: config.drain,
        phase: phase_sender,
        config: config_sender,
        credentials: credentials_sender,
        rendezvous_role: rendezvous_role.clone(),
        telemetry: Arc::clone(&telemetry),
    };
    let (offers, asked) = Offers::new(workers);
    let offers = (config.role == Role::Entry).then(|| Arc::new(offers));
    std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || control.run(admin_listener, file.as_deref(), offers))
        .context("cannot start the admin thread")?;
    let protected = Arc::new(ProtectedAddresses::of_process(&config));
    let shared_ports = Arc::default();
    let (ended, ends) = mpsc::channel();
    let unix_listeners = Arc::default();
    let (handover, handed) = Handover::new(workers, config.limits.carriers as usize);
    telemetry.add_limiter(&handover.limiter);
    for (index, (handed, asked)) in handed.into_iter().zip(asked).enumerate() {
        let worker = Worker {
            index,
            workers,
            config: config_receiver.clone(),
            credentials: credentials.clone(),
            phase: phase_receiver.clone(),
            telemetry: Arc::clone(&telemetry),
            protected: Arc::clone(&protected),
            shared_ports: Arc::clone(&shared_ports),
            rendezvous_role: rendezvous_role.clone(),
            egress: egress.clone(),
            unix_listeners: Arc::clone(&unix_listeners),
        };
        let (ended, handover, role) = (ended.clone(), Arc::clone(&handover), config.role);
        std::thread::Builder::new()
            .name(format!("{WORKER_NAME}{index}"))
            .spawn(move || {
                let end = catch_unwind(AssertUnwindSafe(|| {
                    run_worker(worker, role, handover, handed, asked)
                }));
                let end = end.unwrap_or_else(|_| Err(anyhow::anyhow!("worker {index} panicked")));
                // Nobody listens any more once another worker has failed.
                let _ = ended.send(end);
            })
            .context("cannot start a worker")?;
    }
    drop(ended);
    ends.iter().collect()
}

/// One a core, unless configured otherwise. A JMUX entry has one: each worker has a carrier of its own,
/// and a jetsocat at the other end takes a single one. So have those whose carrier is a command, which may ask for
/// a password, or the process's own.
fn workers(config: &Config) -> usize {
    let workers = match (config.workers, config.role, config.protocol) {
        (Some(workers), ..) => workers.into(),
        (None, Role::Entry, Protocol::Jmux) => 1,
        (None, ..) if config.is_stdio() || !config.connect_command.is_empty() => 1,
        (None, ..) => std::thread::available_parallelism().map_or(1, NonZero::get),
    };
    workers.clamp(1, WORKERS_MAX.into())
}

/// The loop of one worker, on a thread of its own, until it has shut down.
fn run_worker(
    worker: Worker,
    role: Role,
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
        match role {
            Role::Entry => entry::run(worker, asked).await,
            Role::Exit => exit::run(worker, handover, handed).await,
            Role::Rendezvous => rendezvous::run(worker).await,
        }
    };
    Ok(runtime.block_on(run)?)
}

/// Sockets are what a gateway holds most of; the soft limit is there for programs that use select(2).
fn raise_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "The limit of open files stays as it is");
    }
}

/// The work of the thread beside the workers.
struct Control {
    drain: Drain,
    phase: watch::Sender<Phase>,
    config: watch::Sender<Arc<Config>>,
    credentials: watch::Sender<Arc<Credentials>>,
    rendezvous_role: RendezvousRole,
    telemetry: Arc<Telemetry>,
}

impl Control {
    fn run(
        self,
        listener: Option<std::net::TcpListener>,
        file: Option<&Path>,
        offers: Option<Arc<Offers>>,
    ) {
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "The admin thread has no runtime; stopping");
                self.phase.send_replace(Phase::Deadline);
                return;
            }
        };
        runtime.block_on(async {
            let admin = async {
                match listener {
                    Some(listener) => {
                        // Nobody asks without the port.
                        tokio::join!(
                            admin::serve(listener, Arc::clone(&self.telemetry), offers),
                            carrier_sampler::follow(&self.telemetry)
                        );
                    }
                    None => std::future::pending().await,
                }
            };
            let follow = async {
                match file {
                    Some(file) => reload::follow(file, &self.config, &self.telemetry).await,
                    None => std::future::pending().await,
                }
            };
            let credentials =
                security::follow(self.config.subscribe(), &self.credentials, &self.telemetry);
            tokio::join!(
                admin,
                follow,
                credentials,
                self.rendezvous_role.follow(),
                self.hear_signals()
            );
        });
    }

    /// SIGTERM drains; SIGINT, or a second SIGTERM, ends at once.
    async fn hear_signals(&self) {
        let (Ok(mut terminate), Ok(mut interrupt)) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        ) else {
            tracing::error!("Signals cannot be heard; the default action of SIGTERM applies");
            return;
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {
                tokio::select! {
                    () = self.drain() => {}
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            }
        }
        self.phase.send_replace(Phase::Deadline);
    }

    async fn drain(&self) {
        let accept = Duration::from_secs(self.drain.accept_seconds.into());
        let deadline = Duration::from_secs(self.drain.deadline_seconds.into());
        tracing::info!(?accept, ?deadline, "Draining");
        self.telemetry.set_draining();
        self.phase.send_replace(Phase::Draining);
        tokio::time::sleep(accept).await;
        self.phase.send_replace(Phase::Closed);
        tokio::time::sleep(deadline.saturating_sub(accept)).await;
    }
}

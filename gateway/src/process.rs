//! The muxgate process: its threads, its signals and its shutdown.
//!
//! Each worker is a thread with a single-threaded event loop. The worker handles the connections
//! that the kernel distributes to its listeners. One more thread serves the admin port, watches the
//! configuration file and handles signals. This thread reaches the workers by watch channels
//! ([`Phase`], the reloadable part of the configuration, credentials), and shares telemetry with all
//! workers.

mod admin;
mod control;
mod other_files;
mod reload;
mod signals;
mod workers;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::FileUse;
use muxtunnel_gateway_config::{self as config, Config, ConfigError, Role, Security, UNIX_PREFIX};
use tokio::sync::watch;

use crate::base::files::{FollowedFiles, Unusable};
use crate::base::memory_budget::MemoryBudget;
use crate::base::tcp_buffers::TcpBuffers;
use crate::base::telemetry::Telemetry;
use crate::base::{open_files, sys};
use crate::io::security::Credentials;
use crate::io::transport::{KcpListener, KcpPeers};
use crate::net::bind::{ListenError, check_free, listen_alone};
use crate::net::egress::Egress;
use crate::net::protected_addresses::ProtectedAddresses;
use crate::roles::network::Queues;
use crate::roles::rendezvous::Meeting;
use crate::roles::worker::{Phase, Worker};
use control::Control;
use workers::OfRole;

/// The source of the configuration.
#[derive(Debug)]
pub enum Source {
    /// A file, which the process watches while it runs.
    File(PathBuf),
    /// Command-line flags.
    Flags(Box<Config>),
}

/// Reads the configuration, and returns it together with its text.
pub(crate) fn load(source: &Source) -> Result<(Config, String), anyhow::Error> {
    match source {
        Source::File(path) => {
            let text = reload::read(path)
                .with_context(|| format!("{}: {}", Code::ConfigInvalid, path.display()))?;
            let config = Config::from_yaml(&text).map_err(|error| {
                let (code, path) = (Code::ConfigInvalid, path.display());
                match error.at {
                    // Uses the format of compilers, so that editors can jump to the position.
                    Some(_) => anyhow::anyhow!("{code}: {path}:{error}"),
                    None => anyhow::anyhow!("{code}: {path}: {error}"),
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

/// Why a run failed.
#[derive(Debug)]
pub enum Failure {
    /// Invalid configuration: exit status 2.
    Config(anyhow::Error),
    /// Any other failure: exit status 1.
    Runtime(anyhow::Error),
}

/// Credentials, and the files from which they were read.
struct Loaded {
    credentials: Credentials,
    security: Security,
    files: FollowedFiles,
}

impl Loaded {
    fn of(security: Security, role: Role, purpose: FileUse) -> Result<Self, Unusable> {
        let files = FollowedFiles::look(purpose, &security.files());
        Ok(Self {
            credentials: Credentials::load(&security, role)?,
            security,
            files,
        })
    }
}

/// Runs a gateway until SIGTERM or SIGINT.
///
/// # Errors
/// [`Failure`].
pub fn run(source: &Source) -> Result<(), Failure> {
    let (config, text) = load(source).map_err(Failure::Config)?;
    open_files::raise();
    if config.protocol.can().library_buffers || config.ssh.is_some() {
        sys::keep_free_memory();
    }
    let unusable = |error: Unusable| Failure::Config(error.into());
    let credentials =
        Loaded::of(config.trusted(), config.role, FileUse::Credentials).map_err(unusable)?;
    let ssh = config.ssh.as_ref().map(|ssh| Security::Ssh(ssh.keys()));
    let ssh = ssh.map(|security| Loaded::of(security, config.role, FileUse::Ssh));
    let ssh = ssh.transpose().map_err(unusable)?;
    let egress = Egress::of(&config).map_err(Failure::Config)?;
    serve(source, config, &text, (credentials, ssh), egress).map_err(Failure::Runtime)
}

fn serve(
    source: &Source,
    config: Config,
    text: &str,
    (loaded, ssh): (Loaded, Option<Loaded>),
    egress: Egress,
) -> anyhow::Result<()> {
    let workers = workers::count(&config);
    let sized = sized(&config, workers);
    let gateway = sized.gateway()?;
    let meeting = (config.role == Role::Rendezvous).then(Meeting::new);
    let telemetry = telemetry(&sized, text, workers, meeting.as_ref());
    // In Kubernetes, the operator sets the sysctls, and the status has them.
    let is_in_kubernetes = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    if !is_in_kubernetes && config.role != Role::Rendezvous {
        TcpBuffers::of_host()
            .into_iter()
            .for_each(TcpBuffers::report);
    }
    telemetry.set_shown(loaded.credentials.shown());
    let (reloadable_sender, reloadable) = watch::channel(Arc::new(config.reloadable()));
    let (credentials_sender, credentials) = watch::channel(Arc::new(loaded.credentials));
    let (ssh, ssh_credentials) = ssh
        .map(|loaded| {
            let (sender, receiver) = watch::channel(Arc::new(loaded.credentials));
            ((sender, loaded.security, loaded.files), receiver)
        })
        .unzip();
    let (phase_sender, phase_receiver) = watch::channel(Phase::Running);
    let admin_listener = config.admin.as_deref().map(listen_alone).transpose()?;
    let admin = admin_listener.map(|listener| (listener, config.admin_hosts.clone().into()));
    check_ports(&config)?;
    let queues = Queues::open(config.network.as_ref())?;
    let file = match source {
        Source::File(path) => Some((path.clone(), config.clone(), text.to_owned())),
        Source::Flags(_) => None,
    };
    let control = Control {
        role: config.role,
        drain: config.drain,
        phase: phase_sender,
        reloadable: reloadable_sender,
        credentials: credentials_sender,
        credential_files: loaded.files,
        ssh,
        telemetry: Arc::clone(&telemetry),
    };
    std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || control.run(admin, file))
        .context("cannot start the admin thread")?;
    let first = Worker {
        index: 0,
        workers,
        reloadable,
        credentials,
        ssh_credentials,
        phase: phase_receiver,
        telemetry,
        protected: Arc::new(ProtectedAddresses::of_process(&config)),
        shared_ports: Arc::default(),
        egress,
        unix_listeners: Arc::default(),
        kcp_peers: KcpPeers::of(&config),
        datagram_sockets: Arc::default(),
    };
    let of_role = OfRole { queues, meeting };
    workers::run(&gateway, config.limits.carriers as usize, &first, &of_role)
}

/// The configuration with the memory of each session within the process's memory limit.
fn sized(config: &Config, workers: usize) -> Config {
    let sessions = match config.role {
        Role::Entry => u32::try_from(workers).unwrap_or(u32::MAX),
        Role::Exit | Role::Rendezvous => config.reloadable().sessions_expected(),
    };
    Config {
        memory: MemoryBudget::of_process().share(config.memory, sessions),
        ..config.clone()
    }
}

fn telemetry(
    config: &Config,
    text: &str,
    workers: usize,
    meeting: Option<&Arc<Meeting>>,
) -> Arc<Telemetry> {
    let Some(meeting) = meeting else {
        return Telemetry::new(config, text, workers, None);
    };
    let telemetry = Telemetry::new(config, text, workers, Some(Arc::clone(meeting) as Arc<_>));
    telemetry.add_limiter(&meeting.limiter);
    telemetry
}

/// Checks that no other process uses a port that the workers will share.
fn check_ports(config: &Config) -> Result<(), ListenError> {
    let forwards = config.forwards.iter().map(|forward| &forward.listen);
    let ports = forwards.chain(config.proxies.iter().map(|proxy| &proxy.listen));
    // Unix sockets need no check: all workers use one socket, which no other process can share.
    let ports = ports.filter(|address| !address.starts_with(UNIX_PREFIX));
    // The UDP port of QUIC or HTTP/3 needs no check here: `datagram_sockets` checks it.
    let carriers = config.listen.iter().filter(|_| config.protocol.can().bytes);
    let carriers = carriers.filter(|listen| listen.parse::<SocketAddr>().is_ok());
    let check_kcp = |address: &str| {
        KcpListener::check_free(address).map_err(|error| ListenError::new(address, error))
    };
    let mut carriers = carriers.map(|address| match config.transport {
        config::Transport::Tcp | config::Transport::WebSocket => check_free(address),
        config::Transport::Kcp => check_kcp(address),
        config::Transport::Auto => check_free(address).and_then(|()| check_kcp(address)),
    });
    carriers.try_for_each(|free| free)?;
    if let Some(ssh) = &config.ssh {
        check_free(&ssh.listen)?;
    }
    ports
        .into_iter()
        .try_for_each(|address| check_free(address))
}

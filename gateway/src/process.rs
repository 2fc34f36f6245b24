//! One muxgate process: its two threads, its signals, its end.
//!
//! The main thread is the worker: one single-threaded loop that carries all bytes. A second thread
//! serves the admin port, follows the configuration file and hears signals; it reaches the worker by
//! two watch channels ([`Phase`] and the configuration) and shares telemetry with it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{Config, ConfigError, Drain, Protocol, Role};
use muxtunnel_proto::{JmuxConfig, JmuxSession, Session};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::telemetry::Telemetry;
use crate::{admin, entry, exit, reload};

/// Connections that wait to be accepted; the kernel clamps it to net.core.somaxconn.
const BACKLOG: u32 = 4096;
/// Pause after a failed accept: running out of file descriptors must not spin.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How far the shutdown is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// No signal has come.
    Running,
    /// Not ready any more, but new connections are still taken: load balancers take a while.
    Draining,
    /// No new connections; open streams go on.
    Closed,
    /// What is still open is reset.
    Deadline,
}

/// Why the worker could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    /// A port is not to be had.
    #[error("{}: cannot listen on {address}: {source}", Code::ListenFailed)]
    Listen {
        /// As configured.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
}

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
            let config = Config::from_yaml(&text)
                .with_context(|| format!("{}: {}", Code::ConfigInvalid, path.display()))?;
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
    if config.protocol == Protocol::Native {
        return Err(Failure::Config(anyhow::anyhow!(
            "{}: protocol: Native cannot be used yet; use Jmux",
            Code::ConfigInvalid
        )));
    }
    serve(source, config, &text).map_err(Failure::Runtime)
}

fn serve(source: &Source, config: Config, text: &str) -> anyhow::Result<()> {
    let telemetry = Telemetry::new(config.clone(), text);
    let (config_sender, config_receiver) = watch::channel(Arc::new(config.clone()));
    let (phase_sender, phase_receiver) = watch::channel(Phase::Running);
    let admin_listener = config.admin.as_deref().map(std_listener).transpose()?;
    let file = match source {
        Source::File(path) => Some(path.clone()),
        Source::Flags(_) => None,
    };
    let control = Control {
        drain: config.drain,
        phase: phase_sender,
        config: config_sender,
        telemetry: Arc::clone(&telemetry),
    };
    std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || control.run(admin_listener, file.as_deref()))
        .context("cannot start the admin thread")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    let role = config.role;
    local
        .block_on(&runtime, async move {
            match role {
                Role::Entry => entry::run(config_receiver, phase_receiver, telemetry).await,
                Role::Exit => exit::run(config_receiver, phase_receiver, telemetry).await,
            }
        })
        .map_err(Into::into)
}

/// The second thread's work.
struct Control {
    drain: Drain,
    phase: watch::Sender<Phase>,
    config: watch::Sender<Arc<Config>>,
    telemetry: Arc<Telemetry>,
}

impl Control {
    fn run(self, listener: Option<std::net::TcpListener>, file: Option<&Path>) {
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
                    Some(listener) => admin::serve(listener, Arc::clone(&self.telemetry)).await,
                    None => std::future::pending().await,
                }
            };
            let follow = async {
                match file {
                    Some(file) => reload::follow(file, &self.config, &self.telemetry).await,
                    None => std::future::pending().await,
                }
            };
            tokio::join!(admin, follow, self.hear_signals());
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

/// Waits until the shutdown has come to `wanted`.
pub(crate) async fn wait_for(mut phase: watch::Receiver<Phase>, wanted: Phase) {
    if phase.wait_for(|phase| *phase >= wanted).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Listens on `address` (`addr:port`); must be called on the worker.
pub(crate) fn bind(address: &str) -> Result<TcpListener, WorkerError> {
    std_listener(address).and_then(|listener| {
        TcpListener::from_std(listener).map_err(|source| WorkerError::Listen {
            address: address.to_owned(),
            source,
        })
    })
}

fn std_listener(address: &str) -> Result<std::net::TcpListener, WorkerError> {
    let listen = || {
        let parsed: SocketAddr = address.parse().map_err(|_| {
            std::io::Error::new(std::io::ErrorKind::InvalidInput, "not ADDRESS:PORT")
        })?;
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(parsed),
            socket2::Type::STREAM.nonblocking(),
            Some(socket2::Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.bind(&parsed.into())?;
        socket.listen(BACKLOG.cast_signed())?;
        Ok(std::net::TcpListener::from(socket))
    };
    listen().map_err(|source| WorkerError::Listen {
        address: address.to_owned(),
        source,
    })
}

/// A session of the configured protocol.
pub(crate) fn session(config: &Config) -> Box<dyn Session> {
    Box::new(JmuxSession::new(JmuxConfig {
        streams_max: config.limits.streams,
        receive_budget: config.memory.receive.0,
        ..JmuxConfig::default()
    }))
}

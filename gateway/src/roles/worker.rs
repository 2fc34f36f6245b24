//! One worker of a gateway, for every role: its input from the process, the phases of its shutdown,
//! and the errors of its start.

use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Reloadable;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::base::tasks::joined;
use crate::base::telemetry::Telemetry;
use crate::ingress::listener::{UnixListeners, UsersError};
use crate::io::security::Credentials;
use crate::io::transport::KcpPeers;
use crate::io::tun::TunError;
use crate::net::bind::ListenError;
use crate::net::datagrams::DatagramSockets;
use crate::net::egress::Egress;
use crate::net::interface::InterfaceError;
use crate::net::protected_addresses::ProtectedAddresses;
use crate::net::shared_ports::SharedPorts;

/// State that the process passes to each worker.
#[derive(Clone)]
pub(crate) struct Worker {
    /// The number of this worker, starting at 0.
    pub(crate) index: usize,
    /// The number of workers.
    pub(crate) workers: usize,
    /// The part of the configuration that can change while the gateway runs.
    pub(crate) reloadable: watch::Receiver<Arc<Reloadable>>,
    /// The credentials for new carriers.
    pub(crate) credentials: watch::Receiver<Arc<Credentials>>,
    /// The keys for SSH logins at an exit whose `protocol` is not SSH; `None`: the exit accepts no
    /// SSH.
    pub(crate) ssh_credentials: Option<watch::Receiver<Arc<Credentials>>>,
    /// The phase of the shutdown.
    pub(crate) phase: watch::Receiver<Phase>,
    /// Telemetry that all workers share.
    pub(crate) telemetry: Arc<Telemetry>,
    /// Addresses that peers must not reach.
    pub(crate) protected: Arc<ProtectedAddresses>,
    /// Ports that peers request.
    pub(crate) shared_ports: Arc<SharedPorts>,
    /// How the worker reaches other hosts.
    pub(crate) egress: Egress,
    /// Unix listeners that all workers share.
    pub(crate) unix_listeners: Arc<UnixListeners>,
    /// The KCP peers of an exit, which all workers share.
    pub(crate) kcp_peers: Arc<KcpPeers>,
    /// UDP sockets that all workers share.
    pub(crate) datagram_sockets: Arc<DatagramSockets>,
}

#[cfg(test)]
impl Worker {
    /// For tests: creates the only worker of a gateway that runs outside of a cluster.
    pub(crate) fn of(yaml: &str) -> Self {
        let config = muxtunnel_gateway_config::Config::from_yaml(yaml).unwrap();
        let credentials = Credentials::load(&config.security, config.role).unwrap();
        let telemetry = Telemetry::new(&config, yaml, 1, None);
        Self {
            index: 0,
            workers: 1,
            credentials: watch::channel(Arc::new(credentials)).1,
            ssh_credentials: None,
            phase: watch::channel(Phase::Running).1,
            telemetry,
            protected: Arc::new(ProtectedAddresses::new("", &config, |_| false)),
            shared_ports: Arc::default(),
            egress: Egress::of(&config).unwrap(),
            unix_listeners: Arc::default(),
            kcp_peers: KcpPeers::of(&config),
            datagram_sockets: Arc::default(),
            reloadable: watch::channel(Arc::new(config.reloadable())).1,
        }
    }
}

/// The phase of the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The process has received no signal.
    Running,
    /// The gateway is not ready, but still accepts new connections, since load balancers need time
    /// to remove it.
    Draining,
    /// The gateway accepts no new connections. Open streams continue.
    Closed,
    /// The streams that are still open are reset.
    Deadline,
}

/// Waits until the shutdown has reached the phase `wanted`.
pub(crate) async fn wait_for(mut phase: watch::Receiver<Phase>, wanted: Phase) {
    if phase.wait_for(|phase| *phase >= wanted).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Why the worker could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("{code}: {error}", code = Code::NoPackets, error = .0)]
    Tun(#[from] TunError),
    #[error("{code}: {error}", code = Code::NoPackets, error = .0)]
    Queues(#[from] InterfaceError),
    #[error("{code}: the interface is gone: {error}", code = Code::NoPackets, error = .0)]
    Interface(std::io::Error),
    /// The users of a listener cannot be read.
    #[error("{}: users of {listen}: {source}", Code::ConfigInvalid)]
    Users {
        /// The address of the listener.
        listen: String,
        /// The reason.
        source: UsersError,
    },
}

/// Runs `accept`, a loop that accepts connections, as a separate task, and returns its result. The
/// task ends when this future is dropped. A panic of the task continues here. As a task, the loop takes turns with the tasks of its connections. In the
/// worker's main future, the loop would create tasks during a flood faster than the tasks run,
/// without a bound.
pub(crate) async fn accept_in_turn<T: 'static>(accept: impl Future<Output = T> + 'static) -> T {
    let mut task = JoinSet::new();
    task.spawn_local(accept);
    match task.join_next().await.and_then(joined) {
        Some(end) => end,
        // Nothing aborts the task.
        None => std::future::pending().await,
    }
}

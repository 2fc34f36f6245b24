//! One worker of a gateway as every role knows it: what the process gives it, the phases of its shutdown, and why it
//! cannot start.

use std::panic::resume_unwind;
use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Reloadable;
use tokio::sync::watch;
use tokio::task::JoinSet;

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
use crate::roles::network::Queues;
use crate::roles::rendezvous::RendezvousRole;

/// What each worker has from the process.
#[derive(Clone)]
pub(crate) struct Worker {
    /// 0 and up.
    pub(crate) index: usize,
    /// How many there are.
    pub(crate) workers: usize,
    /// What of the configuration is taken over while it runs.
    pub(crate) reloadable: watch::Receiver<Arc<Reloadable>>,
    /// What new carriers are secured with.
    pub(crate) credentials: watch::Receiver<Arc<Credentials>>,
    /// What SSH logins beside them are judged by; `None`: there are none.
    pub(crate) ssh_credentials: Option<watch::Receiver<Arc<Credentials>>>,
    /// How far the shutdown is.
    pub(crate) phase: watch::Receiver<Phase>,
    /// Shared by all workers.
    pub(crate) telemetry: Arc<Telemetry>,
    /// What peers are not to reach.
    pub(crate) protected: Arc<ProtectedAddresses>,
    /// Ports that peers ask for.
    pub(crate) shared_ports: Arc<SharedPorts>,
    /// Its part in meetings.
    pub(crate) rendezvous_role: RendezvousRole,
    /// How it dials others.
    pub(crate) egress: Egress,
    /// Shared by all workers.
    pub(crate) unix_listeners: Arc<UnixListeners>,
    /// Those of an exit, over all workers.
    pub(crate) kcp_peers: Arc<KcpPeers>,
    /// Shared by all workers.
    pub(crate) datagram_sockets: Arc<DatagramSockets>,
    /// Of the interface for IP packets, shared by all workers.
    pub(crate) queues: Option<Arc<Queues>>,
}

#[cfg(test)]
impl Worker {
    /// The only one of a gateway without an API server, which runs.
    pub(crate) fn of(yaml: &str) -> Self {
        let config = muxtunnel_gateway_config::Config::from_yaml(yaml).unwrap();
        let credentials = Credentials::load(&config.security).unwrap();
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
            rendezvous_role: RendezvousRole::of(&config).unwrap(),
            egress: Egress::of(&config).unwrap(),
            unix_listeners: Arc::default(),
            kcp_peers: KcpPeers::of(&config),
            datagram_sockets: Arc::default(),
            queues: None,
            reloadable: watch::channel(Arc::new(config.reloadable())).1,
        }
    }
}

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

/// Waits until the shutdown has come to `wanted`.
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
    /// Those who are served are not known.
    #[error("{}: users of {listen}: {source}", Code::ConfigInvalid)]
    Users {
        /// Where they are served.
        listen: String,
        /// Why not.
        source: UsersError,
    },
}

/// Runs a loop that accepts connections as a task of its own; it ends with this future. A worker's own future has a turn
/// after some tasks of its connections, so a flood would have it make more tasks than are run, without a bound.
pub(crate) async fn accept_in_turn(accept: impl Future<Output = ()> + 'static) {
    let mut task = JoinSet::new();
    task.spawn_local(accept);
    if let Some(Err(error)) = task.join_next().await
        && let Ok(panic) = error.try_into_panic()
    {
        resume_unwind(panic);
    }
}

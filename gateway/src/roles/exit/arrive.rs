//! Accepts carriers from a TCP or UDP port, a Unix socket, standard input and output, or a
//! rendezvous.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{self as config, LISTEN_STDIO, MeetingPlace, SessionConfig};
use tokio::net::TcpStream;

use super::{Exit, greet, quic, registered};
use crate::base::open_files::{self, Use};
use crate::ingress::listener::socket::ListeningSocket;
use crate::ingress::trusted_proxies;
use crate::io::local_end::LocalEnd;
use crate::io::local_socket::{LocalAddress, LocalSocket, canonical};
use crate::io::quic::Listener;
use crate::io::transport::{KcpListener, KcpWindows, Pipes, Released, Tcp, Transport, Unix};
use crate::net::bind::{ACCEPT_RETRY, ListenError};
use crate::roles::worker::{Phase, Worker, WorkerError, accept_in_turn, wait_for};

/// The first protocol step on a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begins {
    Hello,
    Silence,
    /// The SSH login.
    Login,
}

/// One worker's source of carriers.
pub(super) enum Arrivals {
    Socket(ListeningSocket),
    Kcp(KcpListener),
    /// The TCP port and the UDP port with the same number.
    Any(ListeningSocket, KcpListener),
    /// The only carrier of the process.
    Stdio(Box<dyn Transport>, Released),
    /// The places where the exit registers.
    Rendezvous(Vec<MeetingPlace>),
    /// QUIC connections.
    Quic(Listener),
}

impl Arrivals {
    /// Opens the configured source.
    ///
    /// # Errors
    /// The worker cannot listen.
    pub(super) fn of(
        worker: &Worker,
        configured: config::Arrivals,
        (session, carriers_max): (&SessionConfig, usize),
    ) -> Result<Self, WorkerError> {
        let (arrivals, address) = match configured {
            config::Arrivals::Socket(address) if !session.protocol.can().bytes => {
                let listener = quic::listen(worker, &address, (session, carriers_max))?;
                (Self::Quic(listener), address)
            }
            config::Arrivals::Rendezvous(places) => return Ok(Self::Rendezvous(places)),
            config::Arrivals::Stdio => {
                let process = Pipes::of_process();
                let (pipes, released) =
                    process.map_err(|error| ListenError::new(LISTEN_STDIO, error))?;
                (Self::Stdio(pipes, released), LISTEN_STDIO.to_owned())
            }
            config::Arrivals::Socket(address) => {
                let socket = ListeningSocket::bind(&address, &worker.unix_listeners)?;
                (Self::Socket(socket), address)
            }
            config::Arrivals::Kcp(address) => (Self::Kcp(kcp(worker, &address, session)?), address),
            config::Arrivals::Any(address) => {
                let socket = ListeningSocket::bind(&address, &worker.unix_listeners)?;
                let kcp = kcp(worker, &address, session)?;
                (Self::Any(socket, kcp), address)
            }
        };
        tracing::info!(listen = %address, "Listening for carriers");
        worker.telemetry.set_listening(worker.index, true);
        Ok(arrivals)
    }

    /// Accepts carriers. Returns only if no more carriers can arrive and all carriers have ended.
    ///
    /// # Errors
    /// The socket can no longer be used.
    pub(super) async fn come(self, exit: &Rc<Exit>) -> Result<(), WorkerError> {
        match self {
            Self::Socket(socket) => {
                accept_in_turn(accept(Rc::clone(exit), socket, exit.begins())).await;
            }
            Self::Kcp(listener) => accept_in_turn(accept_kcp(Rc::clone(exit), listener)).await,
            Self::Any(socket, listener) => {
                tokio::join!(
                    accept_in_turn(accept(Rc::clone(exit), socket, exit.begins())),
                    accept_in_turn(accept_kcp(Rc::clone(exit), listener))
                );
            }
            Self::Stdio(carrier, released) => {
                greet(Rc::clone(exit), carrier, None, exit.begins()).await;
                // The channel transfers no message. It closes when the carrier ends.
                let _ = released.await;
            }
            Self::Rendezvous(places) => registered::keep(exit, &places).await,
            Self::Quic(listener) => {
                return Err(accept_in_turn(quic::accept(Rc::clone(exit), listener)).await);
            }
        }
        Ok(())
    }
}

/// Listens for SSH on an exit whose `protocol` is not SSH.
///
/// # Errors
/// The worker cannot listen.
pub(super) fn listen_for_ssh(
    worker: &Worker,
    address: &str,
) -> Result<ListeningSocket, WorkerError> {
    let socket = ListeningSocket::bind(address, &worker.unix_listeners)?;
    tracing::info!(listen = %address, "Listening for SSH");
    Ok(socket)
}

/// Accepts SSH connections if the exit has an SSH listener. Never returns.
pub(super) async fn come_by_ssh(exit: &Rc<Exit>, socket: Option<ListeningSocket>) {
    if let Some(socket) = socket {
        accept_in_turn(accept(Rc::clone(exit), socket, Begins::Login)).await;
    }
    std::future::pending::<()>().await;
}

fn kcp(
    worker: &Worker,
    address: &str,
    session: &SessionConfig,
) -> Result<KcpListener, ListenError> {
    let windows = KcpWindows::of(&session.memory);
    KcpListener::bind(address, Arc::clone(&worker.kcp_peers), windows)
        .map_err(|error| ListenError::new(address, error))
}

/// Accepts carriers for all workers. After the exit stops accepting sessions, it accepts only
/// carriers that join a session. If carriers of the protocol cannot join a session, the function
/// closes the port and never returns.
async fn accept(exit: Rc<Exit>, socket: ListeningSocket, begins: Begins) {
    let may_join = begins != Begins::Login && exit.session.protocol.can().resume;
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = wait_for(exit.worker.phase.clone(), Phase::Closed), if !may_join => {
                drop(socket);
                return std::future::pending().await;
            }
        };
        match accepted {
            Ok((accepted, address)) => take_in(Rc::clone(&exit), accepted, address, begins),
            Err(error) => {
                tracing::warn!(%error, "Cannot accept a carrier; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Works as [`accept`], for KCP. Every KCP connection sends a hello.
async fn accept_kcp(exit: Rc<Exit>, listener: KcpListener) {
    loop {
        match listener.accept().await {
            Ok((carrier, address)) => {
                let source = Some(canonical(address).ip());
                let greet = greet(Rc::clone(&exit), carrier, source, exit.begins());
                drop(tokio::task::spawn_local(greet));
            }
            Err(error) => {
                tracing::warn!(%error, "Cannot accept a carrier; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

fn take_in(exit: Rc<Exit>, accepted: LocalSocket, address: LocalAddress, begins: Begins) {
    if let Err(out_of_files) = open_files::check(&accepted, Use::Carrier) {
        let code = Code::OpenFilesExhausted;
        return exit.refused(code, &address.to_string(), &out_of_files);
    }
    // The last message and the end of a carrier must reach the peer.
    accepted.end_in_order();
    let has =
        |proxy: SocketAddr| trusted_proxies::have(&exit.worker.reloadable.borrow(), proxy.ip());
    match (accepted, address) {
        (LocalSocket::Tcp(tcp), LocalAddress::Tcp(proxy)) if has(proxy) => {
            drop(tokio::task::spawn_local(introduce(
                exit, tcp, proxy, begins,
            )));
        }
        (accepted, address) => {
            let source = match &address {
                LocalAddress::Tcp(client) => Some(client.ip()),
                LocalAddress::Unix(_) => None,
            };
            let greet = greet(exit, carrier(accepted, &address), source, begins);
            drop(tokio::task::spawn_local(greet));
        }
    }
}

/// Greets the client of the load balancer at `proxy`, once the PROXY header has specified the
/// client.
async fn introduce(exit: Rc<Exit>, mut tcp: TcpStream, proxy: SocketAddr, begins: Begins) {
    match trusted_proxies::client(&mut tcp, proxy, &exit.handover.limiter).await {
        Ok(Some(client)) => {
            let carrier = Tcp::through(tcp, client.to_string());
            greet(exit, carrier, Some(client.ip()), begins).await;
        }
        Ok(None) => {}
        Err(error) => exit.refused(Code::CarrierRefused, &proxy.to_string(), &error),
    }
}

fn carrier(accepted: LocalSocket, address: &LocalAddress) -> Box<dyn Transport> {
    match (accepted, address) {
        (LocalSocket::Tcp(tcp), _) => Tcp::boxed(tcp),
        (LocalSocket::Unix(unix), LocalAddress::Unix(path)) => Unix::boxed(unix, path),
        (LocalSocket::Unix(unix), LocalAddress::Tcp(_)) => Unix::boxed(unix, ""),
    }
}

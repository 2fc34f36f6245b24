//! The exit accepts carriers and dials targets.
//!
//! The worker that accepts a carrier reads the carrier's hello, if the protocol has a hello. If the
//! carrier joins a session of another worker, the first worker passes the carrier to that worker. A
//! session without a carrier remains until it times out, or until the exit has too many sessions.

mod arrive;
mod handshake;
mod quic;
mod registered;
mod reverse;
mod ssh;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{self as config, Protocol, Reloadable, SessionConfig, WebSocket};
use muxtunnel_proto::{Reason, Refusal, Source};
use tokio::sync::mpsc::Receiver;

use crate::base::memory_budget::MemoryBudget;
use crate::io::carrier::Carrier;
use crate::io::key_refusal::KeyRefusal;
use crate::io::proof::Standing;
use crate::io::proxy_header;
use crate::io::transport::{Side, Transport};
use crate::net::dial;
use crate::net::dial::{DialError, Dialled};
use crate::net::policy::Authorizer;
use crate::roles::network::{self, Network, Queues};
use crate::roles::trust;
use crate::roles::worker::{Phase, Worker, WorkerError, wait_for};
use crate::session::context::Context;
use crate::session::end::SessionEnd;
use crate::session::handover::{Handed, Handover, Place, TooMany, Use};
use crate::session::hello::{self, Greeting};
use crate::session::mux::{Dial, Mux, NoCarrier};
use crate::session::new_session;
use crate::session::sessions::Sessions;
use arrive::{Arrivals, Begins};
use handshake::{HandshakeError, is_failure, refuse, turn_away};
use reverse::Reverse;
use ssh::SshSessions;

struct Exit {
    worker: Worker,
    session: SessionConfig,
    web_socket: Option<WebSocket>,
    /// Whether entries choose the transport of their carriers.
    takes_any: bool,
    carriers_max: u32,
    handover: Arc<Handover>,
    sessions: Sessions,
    /// The sessions by their ids.
    by_id: RefCell<BTreeMap<[u8; 16], Rc<dyn Mux>>>,
    /// The SSH sessions of an exit whose `protocol` is not SSH, and their configuration.
    ssh: Option<SshSessions>,
    reverse: Rc<Reverse>,
    /// The network for IP packets, if it is configured.
    network: Option<Rc<Network>>,
}

/// Runs until the shutdown is complete. `queues` are those of the interface for IP packets.
///
/// # Errors
/// [`WorkerError`]: the exit cannot listen on the carrier port.
pub(crate) async fn run(
    worker: Worker,
    configured: config::Exit,
    queues: Option<Arc<Queues>>,
    handover: Arc<Handover>,
    handed: Receiver<Handed>,
) -> Result<(), WorkerError> {
    let bounds = (&configured.session, configured.carriers_max as usize);
    let takes_any = matches!(configured.arrivals, config::Arrivals::Any(_));
    let arrivals = Arrivals::of(&worker, configured.arrivals, bounds)?;
    let (ssh, ssh_socket) = match configured.ssh {
        Some((session, listen)) => {
            let sessions = SshSessions::new(session, &worker);
            (sessions, Some(arrive::listen_for_ssh(&worker, &listen)?))
        }
        None => (None, None),
    };
    let network = configured.network.as_ref();
    let network = Network::of(&worker, queues.as_ref(), network, Side::Accepts)?;
    let mut packets = tokio::task::spawn_local(network::run(network.clone()));
    let phase = worker.phase.clone();
    let exit = Rc::new(Exit {
        reverse: Reverse::new(&worker),
        worker,
        session: configured.session,
        web_socket: configured.web_socket,
        takes_any,
        carriers_max: configured.carriers_max,
        handover,
        sessions: Sessions::new(),
        by_id: RefCell::default(),
        ssh,
        network,
    });
    let serve = async {
        tokio::select! {
            come = arrivals.come(&exit) => come,
            () = arrive::come_by_ssh(&exit, ssh_socket) => Ok(()),
            never = exit.reverse.fail() => match never {},
            _ = async { tokio::join!(take(&exit, handed), exit.reverse.follow(), exit.trust()) } => Ok(()),
        }
    };
    tokio::pin!(serve);
    let is_over = tokio::select! {
        end = &mut serve => {
            end?;
            true
        }
        () = wait_for(phase.clone(), Phase::Closed) => false,
        lost = &mut packets => return Err(network::lost(lost)),
    };
    exit.worker
        .telemetry
        .set_listening(exit.worker.index, false);
    exit.reverse.stop();
    // Before this phase, a load balancer could still send the entry's next dial to this exit.
    exit.sessions.go_away();
    tokio::select! {
        () = exit.sessions.drained() => {}
        end = &mut serve, if !is_over => end?,
        () = wait_for(phase.clone(), Phase::Deadline) => {}
    }
    let deadline = wait_for(phase, Phase::Deadline);
    exit.sessions.end_all(deadline).await;
    packets.abort();
    Ok(())
}

/// Authenticates a connection and reads its request. `source` is the address that the limiter
/// counts; `None`: the connection has no client address.
async fn greet(exit: Rc<Exit>, tcp: Box<dyn Transport>, source: Option<IpAddr>, begins: Begins) {
    let says_hello = match begins {
        Begins::Login => return ssh::greet(exit, tcp, source).await,
        Begins::Hello => true,
        Begins::Silence => false,
    };
    let peer = tcp.peer();
    let heard = {
        let hears = pin!(exit.hear(tcp, says_hello));
        let fails = |heard: &Result<(_, Greeting), _>| match heard {
            Ok((_, greeting)) => says_hello && !greeting.is_hello,
            Err(_) => is_failure(heard),
        };
        exit.prove(source, hears, fails).await
    };
    match heard {
        Ok((carrier, greeting)) => {
            let use_of_place = match greeting.joins {
                Some(id) => Use::Further(id),
                None if says_hello => Use::First,
                None => Use::Silent(source),
            };
            if let Some(place) = exit.place(carrier.identity(), use_of_place) {
                exit.pass_on(carrier, greeting, place).await;
            }
        }
        Err(HandshakeError::Silent(end)) => report(&peer, false, &end, exit.session.protocol),
        Err(refused) => exit.refused(refused.code(), &peer, &refused),
    }
}

/// Adds the carriers that other workers have passed to this worker.
async fn take(exit: &Rc<Exit>, mut handed: Receiver<Handed>) {
    while let Some(carrier) = handed.recv().await {
        if let Err(error) = exit.add(carrier) {
            tracing::warn!(%error, "Cannot set up a carrier");
        }
    }
}

fn report(peer: &str, ready: bool, reason: &SessionEnd, protocol: Protocol) {
    let code = Code::CarrierLost;
    match reason {
        // The peer sent bytes that are no hello. A probe, which only closes, needs no advice.
        SessionEnd::Protocol(_) if !ready => {
            tracing::info!(%code, peer, %reason, advice = hello::advice(protocol), "Carrier ended before its hello");
        }
        _ => tracing::info!(%code, peer, ready, %reason, "Carrier ended"),
    }
}

impl Exit {
    fn begins(&self) -> Begins {
        match self.session.protocol {
            Protocol::Ssh => Begins::Login,
            protocol if hello::is_said(protocol) => Begins::Hello,
            _ => Begins::Silence,
        }
    }

    /// Reports that a connection of `peer` was refused.
    fn refused(&self, code: Code, peer: &str, reason: &dyn std::error::Error) {
        if let Some(key) = KeyRefusal::unknown_key(&reason.to_string()) {
            self.worker.telemetry.peers.count_unknown_key(key);
        }
        self.worker.telemetry.streams.refused(code);
        if self.worker.telemetry.may_log_refusal() {
            tracing::warn!(%code, peer, %reason, "Carrier refused");
        }
    }

    /// A place for a carrier of the peer with the identity `peer`. `None`: the exit refuses the carrier,
    /// because of its own limit or that of the peer.
    fn place(&self, peer: Option<&str>, of: Use) -> Option<Place> {
        let most = self.worker.reloadable.borrow().security.limits_of(peer);
        let admitted = self.handover.admit((peer, most.carriers), of);
        admitted
            .map_err(|too_many| self.too_many(peer, &too_many))
            .ok()
    }

    fn too_many(&self, peer: Option<&str>, too_many: &TooMany) {
        let (code, telemetry) = (too_many.code(), &self.worker.telemetry);
        telemetry.streams.refused(code);
        telemetry.peers.refused(peer, code);
        if telemetry.may_log_refusal() {
            tracing::warn!(%code, peer, reason = code.cause(), "Carrier refused");
        }
    }

    /// Passes a carrier to its worker.
    async fn pass_on(&self, carrier: Box<dyn Transport>, greeting: Greeting, place: Place) {
        let Greeting { unread, joins, .. } = greeting;
        if joins.is_none() && self.is_closed() {
            return turn_away(carrier.into(), self.session.protocol);
        }
        let worker = match &joins {
            None => self.handover.fewest(),
            Some(id) => new_session::worker_of(id),
        };
        if !self.handover.has_worker(worker) {
            return refuse(carrier.into());
        }
        let peer = carrier.peer();
        let carrier = match carrier.detach() {
            Ok(carrier) => carrier,
            Err(error) => {
                tracing::warn!(%error, "Cannot pass a carrier to its worker");
                return;
            }
        };
        let handed = Handed {
            carrier,
            unread,
            joins,
            place,
        };
        if let Err(end) = self.handover.pass_on(worker, handed).await {
            let telemetry = &self.worker.telemetry;
            telemetry.streams.refused(Code::TooManyCarriers);
            report(&peer, false, &end, self.session.protocol);
        }
    }

    /// Ends sessions and streams that are no longer trusted. Never returns.
    async fn trust(&self) {
        let sessions = || {
            let by_id = self.by_id.borrow();
            let all = by_id.values().filter(|mux| !self.is_of_ssh(mux));
            all.cloned().collect()
        };
        let follow = |credentials| (self.worker.reloadable.clone(), credentials);
        let (reloadable, credentials) = follow(self.worker.credentials.clone());
        let protected = &self.worker.protected;
        let side = Side::Accepts;
        let others = trust::follow(sessions, side, reloadable, credentials, protected);
        match &self.ssh {
            Some(ssh) => {
                let (reloadable, credentials) = follow(ssh.credentials.clone());
                let of_ssh = trust::follow(|| ssh.all(), side, reloadable, credentials, protected);
                tokio::join!(others, of_ssh);
            }
            None => others.await,
        }
    }

    /// Whether the peer of an authenticated carrier is still permitted to connect.
    fn is_trusted(&self, carrier: &Carrier) -> bool {
        let credentials = match (carrier, &self.ssh) {
            (Carrier::Ssh(_), Some(ssh)) => ssh.credentials.borrow(),
            _ => self.worker.credentials.borrow(),
        };
        let proof = carrier.proof();
        proof.is_none_or(|proof| credentials.standing(proof, Side::Accepts) == Standing::Good)
    }

    /// Whether the exit accepts no further sessions and streams.
    fn is_closed(&self) -> bool {
        *self.worker.phase.borrow() >= Phase::Closed
    }

    /// Whether opens are refused. Counts each refusal.
    fn turns_down_opens(&self) -> bool {
        let is_closed = self.is_closed();
        if is_closed {
            self.worker.telemetry.streams.refused(Code::Draining);
        }
        is_closed
    }

    fn is_of_ssh(&self, mux: &Rc<dyn Mux>) -> bool {
        self.ssh.as_ref().is_some_and(|ssh| ssh.has(mux))
    }

    fn add(self: &Rc<Self>, handed: Handed) -> std::io::Result<()> {
        let Handed {
            carrier,
            unread,
            joins,
            place,
        } = handed;
        self.take_up(carrier()?.into(), unread, joins, place)
    }

    /// Adds a carrier to its session, or starts a session with the carrier.
    fn take_up(
        self: &Rc<Self>,
        carrier: Carrier,
        unread: Vec<u8>,
        joins: Option<[u8; 16]>,
        place: Place,
    ) -> std::io::Result<()> {
        if !self.is_trusted(&carrier) {
            self.worker.telemetry.streams.refused(Code::PeerRevoked);
            tracing::warn!(code = %Code::PeerRevoked, peer = carrier.peer(), reason = "the credentials changed, or the peer's certificate expired, during the handshake", "Carrier refused");
            return Ok(());
        }
        let (mux, begins) = match joins {
            Some(id) => match self.by_id.borrow().get(&id) {
                Some(mux) => (Rc::clone(mux), None),
                None => {
                    refuse(carrier);
                    return Ok(());
                }
            },
            None if self.is_closed() => {
                turn_away(carrier, self.session.protocol);
                return Ok(());
            }
            None => {
                let (mux, id) = self.session(matches!(carrier, Carrier::Ssh(_)));
                place.begins(id);
                (mux, Some(id))
            }
        };
        let added = match mux.carriers() {
            Some(carriers) => carriers.add(carrier, unread, Some(place)).map(drop),
            None => Err(NoCarrier::Refused(carrier)),
        };
        match added {
            Ok(()) => {}
            Err(NoCarrier::Io(error)) => return Err(error),
            Err(NoCarrier::Refused(carrier) | NoCarrier::Stranger(carrier)) => refuse(carrier),
        }
        if let Some(id) = begins {
            self.run(mux, id);
        }
        Ok(())
    }

    /// Creates a session, and returns it with its id.
    fn session(self: &Rc<Self>, of_ssh: bool) -> (Rc<dyn Mux>, [u8; 16]) {
        let ssh = self.ssh.as_ref().filter(|_| of_ssh);
        let config = ssh.map_or(&self.session, |ssh| &ssh.session).clone();
        // With GOAWAY, the exit dials for each open, even during the shutdown: the peer sent the
        // open before it received the GOAWAY.
        let says_when_over = config.protocol.can().go_away;
        let exit = Rc::downgrade(self);
        let dialler = Box::new(
            move |target: String, peer: Option<Rc<str>>, source| -> Dial {
                let exit = exit.upgrade();
                Box::pin(async move {
                    match exit.filter(|exit| says_when_over || !exit.turns_down_opens()) {
                        Some(exit) => {
                            let peer = peer.as_deref();
                            exit.dial(&target, peer, source).await
                        }
                        None => Err(draining()),
                    }
                })
            },
        );
        let identity = new_session::identity(self.worker.index);
        let sessions = self.worker.reloadable.borrow().sessions_expected();
        let context = Context {
            config,
            reloadable: self.worker.reloadable.clone(),
            telemetry: Arc::clone(&self.worker.telemetry),
            buffers: self.sessions.pool(),
            memory: (MemoryBudget::of_process(), sessions),
        };
        let mux = new_session::accept(context, identity, dialler);
        self.reverse.serve(&mux);
        if let Some(ssh) = ssh {
            ssh.add(&mux);
        }
        (mux, identity.session_id)
    }

    /// Runs a session to its end. The exit has at most `carriers_max` sessions. To make room for a
    /// further session, the exit evicts a session that waits for a carrier. It chooses a session of
    /// the peer with the most sessions.
    fn run(self: &Rc<Self>, mux: Rc<dyn Mux>, id: [u8; 16]) {
        let sessions_max = self.carriers_max as usize;
        if self.by_id.borrow().len() >= sessions_max
            && let Some(evicted) = self.sessions.evicted_for(mux.identity())
        {
            evicted.shut_down();
        }
        self.by_id.borrow_mut().insert(id, Rc::clone(&mux));
        let exit = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let run = exit.sessions.run(&mux);
            let attach = network::attach_when_ready(exit.network.as_ref(), &mux);
            let end = tokio::select! {
                end = run => end,
                never = attach => match never {},
            };
            exit.by_id.borrow_mut().remove(&id);
            exit.reverse.end(&mux);
            let protocol = match exit.is_of_ssh(&mux) {
                true => Protocol::Ssh,
                false => exit.session.protocol,
            };
            report(&mux.peer(), mux.was_ready(), &end, protocol);
            if let Some(ssh) = &exit.ssh {
                ssh.remove(&mux);
            }
        });
    }

    /// Connects to a target that a peer requests, and sends the PROXY header for `source` if it is
    /// set. `peer` is the identity that the peer's carriers proved.
    async fn dial(
        &self,
        target: &str,
        peer: Option<&str>,
        source: Option<Source>,
    ) -> Result<dial::Dialled, Refusal> {
        let in_force = Arc::clone(&self.worker.reloadable.borrow());
        let refused = |error: DialError| error.report(&self.worker.telemetry, target);
        let place = self.worker.telemetry.peers.admit(peer, Instant::now());
        let place = place.map_err(|code| {
            refused(DialError::new(
                code,
                Reason::General,
                code.cause().to_owned(),
            ))
        })?;
        let authorizer = Authorizer::of_exit(&in_force, &self.worker.protected, peer);
        let dialled = dial::dial(target, authorizer)
            .await
            .and_then(|dialled| match source {
                Some(source) if !dialled.socket.send_at_once(&proxy_header::header(source)) => {
                    let text = "cannot send the PROXY header to the target".to_owned();
                    Err(DialError::new(Code::OpenFailed, Reason::General, text))
                }
                _ => Ok(dialled),
            });
        let dialled =
            dialled.and_then(|dialled| self.permitted_still(&in_force, target, dialled, peer));
        let dialled = dialled.map_err(refused)?;
        Ok(Dialled {
            admission: dialled.admission.with_peer(place),
            ..dialled
        })
    }

    /// Returns the connection, unless a rule that was loaded after `before` denies it.
    fn permitted_still(
        &self,
        before: &Arc<Reloadable>,
        target: &str,
        dialled: Dialled,
        peer: Option<&str>,
    ) -> Result<Dialled, DialError> {
        let now = self.worker.reloadable.borrow();
        let authorizer = Authorizer::of_exit(&now, &self.worker.protected, peer);
        if !Arc::ptr_eq(before, &now) && dial::is_denied(target, &dialled.address, authorizer) {
            let text = format!("a new rule denied {target} while the exit dialled the target");
            return Err(DialError::new(Code::OpenRefused, Reason::NotAllowed, text));
        }
        Ok(dialled)
    }
}

fn draining() -> Refusal {
    let text = format!("{}: the exit is shutting down", Code::Draining);
    Refusal::new(Reason::General, text)
}

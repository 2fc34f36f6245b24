//! The rendezvous: two leaf gateways that cannot reach each other dial it, and the rendezvous joins
//! their connections.
//!
//! A leaf opens a control connection, on which both sides prove their keys by TLS. An exit registers
//! under the key that it has proved, and an entry visits the exit with a key. For each visit, the
//! entry and then the exit receive a ticket, and each opens one more connection that begins with its
//! ticket. Through pipes ([`crate::io::relay`]), the rendezvous then joins both connections. The
//! leaves perform the hello, the security handshake and the session with each other, so a
//! stranger with a stolen ticket fails in the handshake. The members and their keys come from the credentials of
//! the gateway, and a change ends the registrations and the visits that it no longer permits.
//!
//! Bounds: the [handshake limiter](crate::base::handshake_limiter) bounds the connections that have
//! neither proved a key nor presented a ticket. Each of these connections may take at most
//! [`MEET_MAX`], and send at most one message. The registrations of each identity are bounded
//! (`meeting/registrations.rs`). `limits.carriers` bounds the visits, which the visitors share
//! (`meeting/visits.rs`). A visit has at most one valid ticket at a time, which expires after
//! [`MEET_MAX`].

pub(crate) mod leaf;
mod meeting;
mod refusal;
mod wire;

use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{self as config, Role};
use muxtunnel_proto::rendezvous::{KEY_BYTES, MAGIC, OPENING_BYTES, Ticket, Word, ticket_in};
use muxtunnel_proto::{Reason, patience};
use rustls::pki_types::UnixTime;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use crate::base::handshake_limiter::Permit;
use crate::base::open_files::{self, Use};
use crate::base::patience::{Elapsed, Patience};
use crate::ingress::trusted_proxies;
use crate::io::key_refusal::KeyRefusal;
use crate::io::local_socket::canonical;
use crate::io::proof::{Proof, Standing};
use crate::io::security::Credentials;
use crate::io::socket::prepare_relayed;
use crate::io::transport::{Inside, Part, Path, Side, Tcp, Transport};
use crate::io::{duplex, relay};
use crate::net::bind::{ACCEPT_RETRY, listen_shared};
use crate::roles::worker::{Phase, Worker, WorkerError, accept_in_turn, wait_for};
pub(crate) use meeting::Meeting;
use meeting::{Arrival, Arrived, Ended, Issued, Visit};
use refusal::{HandshakeError, Missed, refuse};
use wire::{read, write};

/// Maximum time for a proof and the first message, and again for each connection with a ticket, on
/// ordinary paths.
const MEET_MAX: Duration = Duration::from_secs(5);
/// Interval between checks for expired members.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// One worker of a rendezvous.
struct Rendezvous {
    worker: Worker,
    visits_max: usize,
    meeting: Arc<Meeting>,
}

/// Runs until the shutdown is complete. All workers share `meeting`.
///
/// # Errors
/// [`WorkerError`]: the worker cannot listen on the port.
pub(crate) async fn run(
    worker: Worker,
    configured: config::Rendezvous,
    meeting: Arc<Meeting>,
) -> Result<(), WorkerError> {
    let listener = listen_shared(&configured.listen)?;
    tracing::info!(listen = %configured.listen, "Listening for leaf gateways");
    worker.telemetry.set_listening(worker.index, true);
    let phase = worker.phase.clone();
    let rendezvous = Rc::new(Rendezvous {
        worker,
        visits_max: configured.carriers_max as usize,
        meeting,
    });
    tokio::select! {
        () = accept_in_turn(accept(Rc::clone(&rendezvous), listener)) => {}
        () = rendezvous.follow() => {}
        () = wait_for(phase.clone(), Phase::Closed) => {}
    }
    let worker = &rendezvous.worker;
    worker.telemetry.set_listening(worker.index, false);
    tokio::select! {
        () = rendezvous.meeting.is_empty() => {}
        () = wait_for(phase, Phase::Deadline) => {}
    }
    Ok(())
}

async fn accept(rendezvous: Rc<Rendezvous>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((tcp, peer)) => {
                let (rendezvous, peer) = (Rc::clone(&rendezvous), canonical(peer));
                if let Err(out_of_files) = open_files::check(&tcp, Use::Carrier) {
                    let (code, reason) = (Code::OpenFilesExhausted, out_of_files.to_string());
                    rendezvous.report(&peer.to_string(), "", code, &reason);
                    continue;
                }
                if trusted_proxies::have(&rendezvous.worker.reloadable.borrow(), peer.ip()) {
                    drop(tokio::task::spawn_local(introduce(rendezvous, tcp, peer)));
                    continue;
                }
                let Some(permit) = rendezvous.permit(peer) else {
                    continue;
                };
                drop(tokio::task::spawn_local(async move {
                    rendezvous.serve(tcp, &peer.to_string(), permit).await;
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "Cannot accept a connection; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Serves the client of the load balancer at `proxy`, once the PROXY header has specified the
/// client.
async fn introduce(rendezvous: Rc<Rendezvous>, mut tcp: TcpStream, proxy: SocketAddr) {
    let limiter = &rendezvous.meeting.limiter;
    match trusted_proxies::client(&mut tcp, proxy, limiter).await {
        Ok(Some(client)) => {
            if let Some(permit) = rendezvous.permit(client) {
                rendezvous.serve(tcp, &client.to_string(), permit).await;
            }
        }
        Ok(None) => {}
        Err(error) => {
            let (code, reason) = (Code::CarrierRefused, error.to_string());
            rendezvous.report(&proxy.to_string(), "", code, &reason);
        }
    }
}

impl Rendezvous {
    /// Takes a permit for a connection of `peer`; `None`: the connection must be closed.
    fn permit(&self, peer: SocketAddr) -> Option<Permit> {
        let permit = self.meeting.limiter.enter(Some(peer.ip()));
        permit
            .inspect_err(|dropped| {
                let problem = dropped.to_string();
                self.report(&peer.to_string(), "", Code::MeetingRefused, &problem);
            })
            .ok()
    }

    /// Ends the registrations and the visits of members that the credentials no longer permit. Never
    /// returns.
    async fn follow(&self) {
        if self.worker.index > 0 {
            // The workers share the registrations.
            return std::future::pending().await;
        }
        let mut credentials = self.worker.credentials.clone();
        let mut expiry = tokio::time::interval(EXPIRY_CHECK_INTERVAL);
        expiry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let ended = tokio::select! {
                _ = expiry.tick() => {
                    let (now, credentials) = (UnixTime::now(), Arc::clone(&credentials.borrow()));
                    let good = |proof: &Proof| {
                        credentials.standing_in_time(proof, now) == Standing::Good
                    };
                    self.meeting.verify_again(good)
                }
                Ok(()) = credentials.changed() => {
                    let credentials = Arc::clone(&credentials.borrow_and_update());
                    self.meeting.verify_again(|proof| is_good(&credentials, proof))
                }
            };
            for name in ended {
                tracing::warn!(code = %Code::KeyUnknown, name, "Registration ended: the member is suspended, has expired, or is no longer in members");
            }
        }
    }

    async fn serve(&self, tcp: TcpStream, peer: &str, mut permit: Permit) {
        let credentials = Arc::clone(&self.worker.credentials.borrow());
        let limiter = &self.meeting.limiter;
        let trip = round_trip(&tcp);
        let patience = Patience::with_stranger(MEET_MAX, Some(trip), limiter);
        let heard = {
            let mut hears = pin!(self.hear(tcp, peer, &credentials));
            let heard = patience.within(hears.as_mut());
            tokio::select! {
                biased;
                heard = heard => heard.unwrap_or_else(|Elapsed(time)| {
                    let time = time.as_secs();
                    Err(HandshakeError::failed(format!("the leaf did not authenticate within {time} s")))
                }),
                () = permit.evicted() => Err(HandshakeError::gone(
                    "evicted: too many connections have not authenticated, and this connection was the oldest from its address",
                )),
            }
        };
        match &heard {
            Ok(_) => permit.succeeded(),
            Err(error) if error.is_failure => permit.failed(),
            Err(_) => {}
        }
        drop(permit);
        let done = match heard {
            Ok(Heard::Arrived) => Ok(()),
            Ok(Heard::Register(control, proof)) => {
                self.register(&*control, &proof, (peer, trip)).await
            }
            Ok(Heard::Visit(control, visitor, keys)) => {
                let exits = credentials.keys().into_iter();
                let exits = exits.flat_map(|own| keys.iter().filter_map(|key| own.exit_with(key)));
                let exits: Vec<_> = exits.collect();
                self.visit(control, (&visitor, &exits), (peer, trip)).await
            }
            Err(error) => return self.report(peer, &error.name, error.code, &error.problem),
        };
        if let Err(error) = done {
            tracing::debug!(peer, %error, "Leaf disconnected");
        }
    }

    /// Reads the first message of a connection: a ticket, or the proof and the request of a leaf.
    async fn hear(
        &self,
        mut tcp: TcpStream,
        peer: &str,
        credentials: &Credentials,
    ) -> Result<Heard, HandshakeError> {
        let mut first = [0];
        tcp.peek(&mut first).await?;
        if first[0] == MAGIC[0] {
            let mut opening = [0; OPENING_BYTES];
            tcp.read_exact(&mut opening).await?;
            let arrived = Arrived {
                tcp: tcp.into_std()?,
                peer: peer.to_owned(),
            };
            let ticket: Option<Ticket> = ticket_in(&opening);
            let arrival = ticket.map(|ticket| self.meeting.arrive(&ticket, arrived));
            return match arrival.unwrap_or(Arrival::Unknown) {
                Arrival::Awaited => Ok(Heard::Arrived),
                // A visitor that vanishes must cost the exit no penalty.
                Arrival::Late => Err(HandshakeError::gone(
                    "the visit has ended: the other leaf has gone, or came too late",
                )),
                Arrival::Unknown => Err(HandshakeError::failed(
                    "the ticket is not valid: it was used before, or was never issued",
                )),
            };
        }
        prepare_relayed(&tcp);
        let keys = credentials
            .keys()
            .ok_or_else(|| HandshakeError::failed("the rendezvous has no keys"))?;
        let below = Tcp::through(tcp, peer.to_owned());
        let control = keys
            .secure(below, Part::Accepts, Inside::Rendezvous)
            .await?;
        let proof = control.proof().cloned();
        let proof = proof.ok_or_else(|| HandshakeError::failed("the leaf proved no key"))?;
        let role = keys.key_of(&proof).map(|key| key.role());
        let wrong = match (read(&*control).await?, role) {
            (Word::Register, Some(Role::Exit)) => {
                return Ok(Heard::Register(control, proof));
            }
            (Word::Visit(keys), Some(Role::Entry)) => {
                return Ok(Heard::Visit(control, proof, keys));
            }
            (Word::Register, _) => {
                "only an exit registers, and members lists the key as that of an entry (mte1...)"
            }
            (Word::Visit(_), _) => {
                "only an entry visits, and members lists the key as that of an exit (mtx1...)"
            }
            _ => "the leaf sent an unexpected message",
        };
        refuse(&*control, Reason::NotAllowed, wrong).await;
        Err(HandshakeError {
            name: proof.identity,
            ..HandshakeError::failed(wrong)
        })
    }

    async fn register(
        &self,
        control: &dyn Transport,
        proof: &Proof,
        (peer, trip): (&str, Duration),
    ) -> std::io::Result<()> {
        let name = &*proof.identity;
        let good = |proof: &Proof| is_good(&self.worker.credentials.borrow(), proof);
        let Some((number, mut invitations)) = self.meeting.register(proof, trip, good) else {
            refuse(
                control,
                Reason::NotAllowed,
                "the gateway is no longer in members",
            )
            .await;
            return Ok(());
        };
        let registered = write(control, &Word::Registered).await;
        tracing::info!(name, peer, "Leaf registered");
        let end = match registered {
            Ok(()) => invite(control, &mut invitations).await,
            Err(error) => Err(error),
        };
        self.meeting.unregister(name, number);
        tracing::info!(name, peer, "Leaf no longer registered");
        end
    }

    /// Joins the visitor to the first registered exit of `exits`.
    async fn visit(
        &self,
        control: Box<dyn Transport>,
        (visitor, exits): (&Proof, &[String]),
        (peer, trip): (&str, Duration),
    ) -> std::io::Result<()> {
        let name = &*visitor.identity;
        let good = |proof: &Proof| is_good(&self.worker.credentials.borrow(), proof);
        let begun = self.meeting.visit(visitor, exits, self.visits_max, good);
        let met = match begun {
            Ok((visit, mut end)) => {
                let met = tokio::select! {
                    met = meet(&*control, &visit, trip) => met,
                    ended = ended(&mut end) => Err(Some(Missed::by(&ended))),
                };
                met.map(|joined| (visit, end, joined))
            }
            Err(refused) => Err(Some(Missed::of(refused))),
        };
        let (visit, mut end, [one, other]) = match met {
            Ok(met) => met,
            // The visitor has disconnected.
            Err(None) => return Ok(()),
            Err(Some(missed)) => {
                self.report(peer, name, missed.code, &missed.problem);
                refuse(&*control, missed.reason, &missed.problem).await;
                return Ok(());
            }
        };
        let (tcp, other_tcp) = (
            TcpStream::from_std(one.tcp)?,
            TcpStream::from_std(other.tcp)?,
        );
        prepare_relayed(&tcp);
        prepare_relayed(&other_tcp);
        write(&*control, &Word::Joined).await?;
        drop(control);
        let exit = visit.exit.clone();
        tracing::info!(name, exit, peer = %one.peer, attendant = %other.peer, "Joined the connections of two leaves");
        visit.joined();
        let count = |bytes| self.meeting.bytes.add(bytes);
        let error = tokio::select! {
            joined = relay::join(&tcp, &other_tcp, count) => joined.err().map(|error| error.to_string()),
            ended = ended(&mut end) => Some(format!("{}: {ended}", ended.code())),
        };
        drop(visit);
        tracing::info!(name, exit, peer = %one.peer, error, "The connections of two leaves ended");
        Ok(())
    }

    /// Logs and counts a refusal. `name` is empty if the name is unknown.
    fn report(&self, peer: &str, name: &str, code: Code, reason: &str) {
        if let Some(key) = KeyRefusal::unknown_key(reason) {
            self.worker.telemetry.peers.count_unknown_key(key);
        }
        self.worker.telemetry.streams.refused(code);
        if self.worker.telemetry.may_log_refusal() {
            tracing::warn!(%code, peer, name, reason, "Meeting refused");
        }
    }
}

/// Whether the member with `proof` is still permitted.
fn is_good(credentials: &Credentials, proof: &Proof) -> bool {
    credentials.standing(proof, Side::Accepts) == Standing::Good
}

/// Waits until the rendezvous ends a visit.
async fn ended(end: &mut oneshot::Receiver<Ended>) -> Ended {
    match end.await {
        Ok(ended) => ended,
        // The visit ended by itself.
        Err(_) => std::future::pending().await,
    }
}

/// Waits for the connections of the visitor and of the exit.
///
/// # Errors
/// One of both does not connect; `None`: the visitor has ended its control connection.
async fn meet(
    control: &dyn Transport,
    visit: &Visit,
    trip: Duration,
) -> Result<[Arrived; 2], Option<Missed>> {
    let mut admitted = visit.admit();
    let ticket = Word::Ticket(admitted.ticket);
    write(control, &ticket).await.map_err(|_| None)?;
    let limit = patience(MEET_MAX, trip);
    let one = arrival(control, &mut admitted, limit, "entry").await?;
    let mut invited = visit.invite().map_err(|refused| {
        visit.exit_came(false);
        Some(Missed::of(refused))
    })?;
    let limit = patience(MEET_MAX, visit.round_trip);
    let other = arrival(control, &mut invited, limit, "exit").await;
    if let Ok(_) | Err(Some(_)) = &other {
        visit.exit_came(other.is_ok());
    }
    Ok([one, other?])
}

/// Waits for the connection with a ticket.
///
/// # Errors
/// The errors of [`meet`].
async fn arrival(
    control: &dyn Transport,
    issued: &mut Issued,
    limit: Duration,
    whose: &str,
) -> Result<Arrived, Option<Missed>> {
    let arrived = tokio::select! {
        arrived = tokio::time::timeout(limit, &mut issued.arrived) => arrived,
        () = ends(control) => return Err(None),
    };
    let problem = match arrived {
        Ok(Ok(arrived)) => return Ok(arrived),
        Ok(Err(_)) => "the exit is no longer registered: read the exit's log".to_owned(),
        Err(_) => format!(
            "the {whose} did not connect with its ticket within {} s: read the log of the {whose}",
            limit.as_secs()
        ),
    };
    Err(Some(Missed {
        code: Code::MeetingRefused,
        reason: Reason::TimedOut,
        problem,
    }))
}

/// Sends tickets until the exit has disconnected, or its registration ends.
async fn invite(control: &dyn Transport, tickets: &mut Receiver<Ticket>) -> std::io::Result<()> {
    loop {
        let ticket = tokio::select! {
            ticket = tickets.recv() => ticket,
            () = ends(control) => None,
        };
        let Some(ticket) = ticket else {
            return Ok(());
        };
        tokio::time::timeout(MEET_MAX, write(control, &Word::Ticket(ticket))).await??;
    }
}

/// The first message of a connection.
enum Heard {
    /// A valid ticket. A visit has the connection.
    Arrived,
    /// The exit with the proof registers.
    Register(Box<dyn Transport>, Proof),
    /// The entry with the proof visits an exit with one of the keys.
    Visit(Box<dyn Transport>, Proof, Vec<[u8; KEY_BYTES]>),
}

/// The round trip to a leaf; zero: unknown.
fn round_trip(tcp: &TcpStream) -> Duration {
    tcp.info().map(|info| info.rtt).unwrap_or_default()
}

/// Waits until a leaf that must be silent ends its connection or sends something.
async fn ends(control: &dyn Transport) {
    let _ = duplex::read(control, &mut [0]).await;
}

//! The rendezvous: two leaf gateways that cannot reach each other dial it, and the rendezvous joins
//! their connections.
//!
//! A leaf exit registers under a name, and a leaf entry visits that name. For each visit, the
//! rendezvous invites the exit, which dials one more connection. Through pipes
//! ([`crate::io::relay`]), the rendezvous then joins the connections of the visitor and the exit.
//! The leaves perform the hello, the security handshake and the session with each other. A leaf
//! must prove that it has the secret of the name for its role (`proof.rs`). The secrets come from a
//! file (`secrets.rs`). Changes of the file apply to new proofs within a second.
//!
//! Bounds: the [handshake limiter](crate::base::handshake_limiter) bounds the connections that have
//! not authenticated. Each of these connections may take at most [`MEET_MAX`], and send at most two
//! messages. Each name has at most one registration, and there are at most 4,096 names.
//! `limits.carriers` bounds the visits, including visits that wait up to [`MEET_MAX`] for the exit.

pub(crate) mod leaf;
mod meeting;
mod proof;
mod secrets;
mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::FileUse;
use muxtunnel_gateway_config::{self as config, Config};
use muxtunnel_proto::rendezvous::{Purpose, Ticket, Word};
use muxtunnel_proto::{Reason, patience};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Receiver;

use crate::base::file_states::FileStates;
use crate::base::files::{FollowedFiles, Unusable};
use crate::base::handshake_limiter::{Permit, has_gone};
use crate::base::open_files::{self, Use};
use crate::base::patience::{Elapsed, Patience};
use crate::ingress::trusted_proxies;
use crate::io::local_socket::canonical;
use crate::io::relay;
use crate::io::transport::Path;
use crate::net::bind::{ACCEPT_RETRY, listen_shared};
use crate::roles::worker::{Phase, Worker, WorkerError, accept_in_turn, wait_for};
use leaf::Leaf;
pub(crate) use meeting::Meeting;
use proof::Greeted;
use secrets::Secrets;
use wire::{read, write};

/// Maximum time for a proof, and again for the wait for the other leaf, on ordinary paths.
const MEET_MAX: Duration = Duration::from_secs(5);

/// The rendezvous settings of a process.
#[derive(Clone, Default)]
pub(crate) struct RendezvousRole {
    /// For a rendezvous: its state, and the file with its secrets.
    meeting: Option<(Arc<Meeting>, PathBuf, FollowedFiles)>,
    /// For an entry or exit that uses a rendezvous: its credentials.
    pub(crate) leaf: Option<Leaf>,
}

impl RendezvousRole {
    /// Reads the secrets.
    ///
    /// # Errors
    /// A file is invalid.
    pub(crate) fn of(config: &Config) -> Result<Self, Unusable> {
        let meeting = |file: &String| {
            let file = PathBuf::from(file);
            let followed = FollowedFiles::look(FileUse::Rendezvous, &[&file]);
            Ok((Meeting::new(Secrets::read(&file)?), file, followed))
        };
        let leaf = config.rendezvous.as_ref().map(Leaf::read);
        Ok(Self {
            meeting: config.secrets_file.as_ref().map(meeting).transpose()?,
            leaf: leaf.transpose()?,
        })
    }

    /// Watches the files of secrets until the process ends.
    pub(crate) async fn follow(&self, states: &FileStates) {
        if let Some(leaf) = &self.leaf {
            leaf.follow(states).await;
        }
        if let Some((meeting, file, followed)) = &self.meeting {
            let mut followed = followed.clone();
            followed.publish(states, &Ok::<_, Unusable>(()));
            let changed = || take_over(meeting, Secrets::read(file));
            followed.follow(states, changed).await;
        }
    }

    /// The state of a rendezvous; `None` in other roles.
    pub(crate) fn meeting(&self) -> Option<Arc<Meeting>> {
        self.meeting
            .as_ref()
            .map(|(meeting, ..)| Arc::clone(meeting))
    }
}

/// Applies new secrets. Invalid secrets are reported and have no other effect.
fn take_over(meeting: &Meeting, secrets: Result<Secrets, Unusable>) -> Result<(), Unusable> {
    let secrets = secrets.inspect_err(|error| {
        tracing::error!(%error, "New secrets rejected; the last valid secrets remain in force");
    })?;
    let names = secrets.names();
    let ended = meeting.take_over(secrets);
    tracing::info!(
        names,
        registrations_ended = ended,
        "Secrets reloaded; established connections continue"
    );
    Ok(())
}

/// One worker of a rendezvous.
struct Rendezvous {
    worker: Worker,
    visits_max: usize,
    meeting: Arc<Meeting>,
}

/// Runs until the shutdown is complete.
///
/// # Errors
/// [`WorkerError`]: the worker cannot listen on the port.
pub(crate) async fn run(worker: Worker, configured: config::Rendezvous) -> Result<(), WorkerError> {
    let Some(meeting) = worker.rendezvous_role.meeting() else {
        return Ok(());
    };
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

    async fn serve(&self, mut tcp: TcpStream, peer: &str, mut permit: Permit) {
        // The secrets may change during the exchange. The whole exchange uses the secrets that are
        // in force now.
        let secrets = self.meeting.secrets();
        let limiter = &self.meeting.limiter;
        let patience = Patience::with_stranger(MEET_MAX, Some(round_trip(&tcp)), limiter);
        let heard = {
            let mut hears = pin!(hear(&mut tcp, &secrets));
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
        let greeted = match heard {
            Ok(greeted) => greeted,
            Err(HandshakeError { name, problem, .. }) => {
                return self.report(peer, &name, Code::MeetingRefused, &problem);
            }
        };
        let done = match greeted.purpose {
            Purpose::Register => self.register(tcp, &greeted, &secrets, peer).await,
            Purpose::Visit => self.visit(tcp, &greeted, &secrets, peer).await,
            Purpose::Attend(ticket) => self.attend(tcp, &greeted, &secrets, ticket, peer),
        };
        if let Err(error) = done {
            tracing::debug!(peer, %error, "Leaf disconnected");
        }
    }

    async fn register(
        &self,
        mut tcp: TcpStream,
        greeted: &Greeted,
        secrets: &Secrets,
        peer: &str,
    ) -> std::io::Result<()> {
        let name = &greeted.name;
        let Some((number, mut invitations)) =
            self.meeting.register(name, secrets, round_trip(&tcp))
        else {
            refuse(&mut tcp, Reason::NotAllowed, NOT_PROVED).await;
            return Ok(());
        };
        let accepted = greeted.acceptance(secrets.of(name, greeted.purpose));
        crate::io::socket::prepare_relayed(&tcp);
        write(&mut tcp, &Word::Accepted(accepted)).await?;
        tracing::info!(name, peer, "Leaf registered");
        let end = self.invite(&mut tcp, &mut invitations).await;
        self.meeting.unregister(name, number);
        tracing::info!(name, peer, "Leaf no longer registered");
        end
    }

    /// Sends invitations until the leaf has disconnected, or another leaf registers under its name.
    async fn invite(
        &self,
        tcp: &mut TcpStream,
        invitations: &mut Receiver<Ticket>,
    ) -> std::io::Result<()> {
        loop {
            let ticket = tokio::select! {
                ticket = invitations.recv() => ticket,
                // A registered leaf sends nothing more, so readable data means that the leaf has
                // disconnected.
                _ = ends(tcp) => None,
            };
            let Some(ticket) = ticket else {
                return Ok(());
            };
            tokio::time::timeout(MEET_MAX, write(tcp, &Word::Invite(ticket))).await??;
        }
    }

    async fn visit(
        &self,
        mut tcp: TcpStream,
        greeted: &Greeted,
        secrets: &Secrets,
        peer: &str,
    ) -> std::io::Result<()> {
        let name = &greeted.name;
        let visit = match self.meeting.visit(name, self.visits_max) {
            Ok(visit) => visit,
            Err(refused) => {
                self.report(peer, name, refused.code(), &refused.to_string());
                refuse(&mut tcp, refused.reason(), &refused.to_string()).await;
                return Ok(());
            }
        };
        let meeting::Visit {
            attended,
            place,
            round_trip,
        } = visit;
        let limit = patience(MEET_MAX, round_trip);
        let met = tokio::select! {
            met = tokio::time::timeout(limit, attended) => met,
            _ = ends(&tcp) => return Ok(()),
        };
        let Ok(Ok(attendant)) = met else {
            let text = format!(
                "the exit registered under the name did not connect within {} s: read the exit's log",
                limit.as_secs()
            );
            self.report(peer, name, Code::MeetingRefused, &text);
            refuse(&mut tcp, Reason::TimedOut, &text).await;
            return Ok(());
        };
        let mut other = TcpStream::from_std(attendant.tcp)?;
        let accepted = greeted.acceptance(secrets.of(name, greeted.purpose));
        write(&mut other, &Word::Accepted(attendant.accepted)).await?;
        write(&mut tcp, &Word::Accepted(accepted)).await?;
        crate::io::socket::prepare_relayed(&tcp);
        crate::io::socket::prepare_relayed(&other);
        tracing::info!(name, peer, attendant = %attendant.peer, "Joined the connections of two leaves");
        self.meeting.count_met();
        let count = |bytes| self.meeting.count_bytes(bytes);
        let ended = relay::join(&tcp, &other, count).await;
        drop(place);
        tracing::info!(
            name,
            peer,
            error = ended.err().map(tracing::field::display),
            "The connections of two leaves ended"
        );
        Ok(())
    }

    fn attend(
        &self,
        tcp: TcpStream,
        greeted: &Greeted,
        secrets: &Secrets,
        ticket: Ticket,
        peer: &str,
    ) -> std::io::Result<()> {
        let accepted = greeted.acceptance(secrets.of(&greeted.name, greeted.purpose));
        let attendant = meeting::Attendant {
            tcp: tcp.into_std()?,
            accepted,
            peer: peer.to_owned(),
        };
        if !self.meeting.attend(&greeted.name, ticket, attendant) {
            let text = "the visitor no longer waits";
            self.report(peer, &greeted.name, Code::MeetingRefused, text);
        }
        Ok(())
    }

    /// Logs and counts a refusal. `name` is empty if the name is unknown.
    fn report(&self, peer: &str, name: &str, code: Code, reason: &str) {
        self.worker.telemetry.streams.refused(code);
        if self.worker.telemetry.may_log_refusal() {
            tracing::warn!(%code, peer, name, reason, "Meeting refused");
        }
    }
}

const NOT_PROVED: &str = "the name is unknown, or the secret for this role is wrong: compare both with the secrets \
     of the rendezvous";

/// A leaf that failed to authenticate.
struct HandshakeError {
    /// The name in the leaf's greeting.
    name: String,
    problem: String,
    /// Whether the attempt counts as failed, because of a wrong proof, an invalid message or a
    /// timeout.
    is_failure: bool,
}

impl HandshakeError {
    fn failed(problem: impl ToString) -> Self {
        Self {
            name: String::new(),
            problem: problem.to_string(),
            is_failure: true,
        }
    }

    fn gone(problem: impl ToString) -> Self {
        Self {
            is_failure: false,
            ..Self::failed(problem)
        }
    }
}

impl From<std::io::Error> for HandshakeError {
    fn from(error: std::io::Error) -> Self {
        match has_gone(&error) {
            true => Self::gone(error),
            false => Self::failed(error),
        }
    }
}

/// The round trip to a leaf; zero: unknown.
fn round_trip(tcp: &TcpStream) -> Duration {
    tcp.info().map(|info| info.rtt).unwrap_or_default()
}

/// Reads the greeting and the proof of a leaf, and verifies both.
async fn hear(tcp: &mut TcpStream, secrets: &Secrets) -> Result<Greeted, HandshakeError> {
    let Word::Greeting {
        purpose,
        nonce,
        name,
    } = read(tcp).await?
    else {
        return Err(HandshakeError::failed("expected a greeting from the leaf"));
    };
    let greeted = Greeted {
        purpose,
        nonce,
        name,
        challenge: rand::random(),
    };
    write(tcp, &Word::Challenge(greeted.challenge)).await?;
    let secret = secrets.of(&greeted.name, greeted.purpose);
    let proved = match read(tcp).await? {
        Word::Proof(proof) => greeted.is_proved_by(secret, &proof),
        _ => false,
    };
    if !proved {
        refuse(tcp, Reason::NotAllowed, NOT_PROVED).await;
        return Err(HandshakeError {
            name: greeted.name,
            ..HandshakeError::failed(NOT_PROVED)
        });
    }
    Ok(greeted)
}

/// Waits until a leaf that must be silent ends its connection or sends something. The function
/// peeks at the socket, since readiness alone may be stale and does not prove an event.
async fn ends(tcp: &TcpStream) {
    let _ = tcp.peek(&mut [0]).await;
}

/// Sends the reason of a refusal. If the peer does not read in time, the connection closes without
/// the reason.
async fn refuse(tcp: &mut TcpStream, reason: Reason, text: &str) {
    let word = Word::Refused {
        code: reason.code() as u8,
        reason: format!("{}: {text}", Code::MeetingRefused),
    };
    let _ = tokio::time::timeout(MEET_MAX, write(tcp, &word)).await;
}

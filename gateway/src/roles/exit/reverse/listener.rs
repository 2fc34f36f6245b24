//! One worker's listener on a port that entries requested, and the choice among their sessions.
//!
//! A connection goes to a session that answers ([`Mux::answers`]), on another worker if the sessions
//! of this worker do not answer. If a peer's host has lost power, its former sessions end only after
//! a while, but the sessions of its next process answer at once.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

use muxtunnel_codes::Code;
use muxtunnel_proto::{ListenId, Priority, listen_target};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::base::forward::Forward;
use crate::base::open_files::{self, Use};
use crate::base::telemetry::Telemetry;
use crate::ingress::listener::answer::{Answer, code_of};
use crate::io::local_socket::{LocalSocket, canonical};
use crate::net::bind::ACCEPT_RETRY;
use crate::net::shared_ports::{Handed, Registration, SharedListener};
use crate::roles::entry::refused::{Refused, code_of_open};
use crate::session::mux::{Mux, NotOpened, OpenEnd, Progress};
use crate::stream::account::{Ended, Local};
use crate::stream::early_data::Connection;

/// A listening port.
pub(super) struct Listener {
    /// The one identity of all sessions that share the port; `None`: the sessions have no identity.
    pub(super) peer: Option<Rc<str>>,
    pub(super) forward: Arc<Forward>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) askers: RefCell<Vec<Asker>>,
    /// This worker's place among the workers that share the port.
    pub(super) registration: Rc<Registration>,
    pub(super) task: OnceCell<JoinHandle<()>>,
}

/// A session, its listener, and the priority of its streams.
type Best = (Rc<dyn Mux>, ListenId, Priority);

/// A session that requested the port.
pub(super) struct Asker {
    pub(super) session: Rc<dyn Mux>,
    pub(super) listen: ListenId,
    pub(super) priority: Priority,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl Listener {
    /// The session with the fewest streams of those that answer. If none answers, the session with
    /// the fewest streams; a session without a carrier is chosen only if no session has a carrier.
    /// The result also tells whether the session answers.
    fn best(&self) -> Option<(Best, bool)> {
        let askers = self.askers.borrow();
        let takes =
            |session: &Rc<dyn Mux>| session.progress() == Progress::Ready && !session.has_ended();
        let mut ready: Vec<_> = askers.iter().filter(|one| takes(&one.session)).collect();
        ready.sort_by_key(|asker| asker.session.load());
        let answers = |session: &Rc<dyn Mux>| session.answers() && !session.owes_an_answer();
        let answering = ready.iter().find(|asker| answers(&asker.session));
        let best = answering.or(ready.first())?;
        let session = Rc::clone(&best.session);
        Some(((session, best.listen, best.priority), answering.is_some()))
    }

    /// Requests an answer from each session, since the peer has a further session. The peer may have
    /// restarted without an end of its former sessions.
    pub(super) fn doubt(&self) {
        let askers = self.askers.borrow();
        let sessions: Vec<_> = askers.iter().map(|one| Rc::clone(&one.session)).collect();
        drop(askers);
        sessions.iter().for_each(|session| session.ask());
    }

    /// Opens a stream for a connection that this worker has accepted.
    fn accepted(self: &Rc<Self>, tcp: TcpStream, client: SocketAddr) {
        if let Err(out_of_files) = open_files::check(&tcp, Use::Stream) {
            let refused = Refused::new(&self.telemetry, &self.forward, client);
            return refused.report(Code::OpenFilesExhausted, &out_of_files.to_string());
        }
        let best = self.best();
        if best.as_ref().is_some_and(|(_, answers)| *answers) {
            return self.take(tcp, client);
        }
        match tcp.into_std() {
            Ok(tcp) => self.pass_on(
                Handed {
                    tcp,
                    client,
                    seen: BTreeSet::new(),
                    last_resort: None,
                },
                best.is_some(),
            ),
            Err(error) => tracing::warn!(%error, "Cannot pass a connection to another worker"),
        }
    }

    /// Handles a connection that another worker has accepted.
    fn handed(self: &Rc<Self>, handed: Handed) {
        match self.best() {
            Some((_, true)) => self.take_handed(handed),
            best => self.pass_on(handed, best.is_some()),
        }
    }

    /// Passes a connection to a worker with a session that answers, or keeps the connection.
    fn pass_on(self: &Rc<Self>, handed: Handed, has_session: bool) {
        if let Err(handed) = self.registration.hand_on(handed, has_session) {
            self.take_handed(handed);
        }
    }

    fn take_handed(self: &Rc<Self>, handed: Handed) {
        match TcpStream::from_std(handed.tcp) {
            Ok(tcp) => self.take(tcp, handed.client),
            Err(error) => tracing::warn!(%error, "Cannot take a connection of another worker"),
        }
    }

    fn take(self: &Rc<Self>, tcp: TcpStream, client: SocketAddr) {
        let refused = Refused::new(&self.telemetry, &self.forward, client);
        // If the connection is refused, dropping the socket resets it.
        let socket = Box::new(LocalSocket::from(tcp));
        let now = Instant::now();
        let admitted = self.forward.admit(now).and_then(|admission| {
            let peer = self.telemetry.peers.admit(self.peer.as_deref(), now)?;
            Ok(admission.with_peer(peer))
        });
        match admitted {
            Ok(admission) => {
                let local = Local::Client {
                    address: client.into(),
                    target: self.forward.name.as_str().into(),
                    admission,
                    ended: Ended::default(),
                };
                let connection = Connection {
                    socket,
                    local,
                    early: Vec::new(),
                    answer: Answer::None,
                    source: None,
                    has_next: false,
                };
                self.open(connection, refused);
            }
            Err(code) => refused.report(code, code.cause()),
        }
    }

    /// Opens a stream in a session, or in another session if the first session shuts down.
    fn open(self: &Rc<Self>, connection: Connection, refused: Refused) {
        let Some(((session, listen, priority), _)) = self.best() else {
            connection.turn_away();
            let text = "no entry that requested the port accepts streams";
            return refused.report(Code::CarrierConnecting, text);
        };
        let (listener, report) = (Rc::clone(self), refused.clone());
        let ended = move |end: OpenEnd| match end {
            OpenEnd::Refused(refusal) => {
                report.report(code_of(refusal.reason), &refusal.description);
            }
            // The entry has the targets.
            OpenEnd::Failed(refusal, connection) => {
                report.report(code_of(refusal.reason), &refusal.description);
                connection.turn_away();
            }
            OpenEnd::Abandoned => report.report(Code::OpenAbandoned, Code::OpenAbandoned.cause()),
            OpenEnd::Returned(connection) => {
                listener.telemetry.opens_retried.add(1);
                listener.open(connection, report);
            }
        };
        let target = listen_target(listen);
        if let Err(not_opened) = session.open(&target, priority, connection, Box::new(ended)) {
            let NotOpened { error, connection } = *not_opened;
            refused.report(code_of_open(&error), &error.to_string());
            connection.turn_away();
        }
    }
}

/// Accepts connections, and takes those of the other workers, as long as the listener exists.
pub(super) async fn accept(listener: Weak<Listener>, shared: SharedListener) {
    // Dropped last: the socket is closed before the port is released.
    let SharedListener {
        registration: _registration,
        socket,
        mut handed,
        newcomer,
    } = shared;
    loop {
        let arrived = tokio::select! {
            accepted = socket.accept() => Arrived::Here(accepted),
            Some(handed) = handed.recv() => Arrived::Handed(handed),
            () = newcomer.notified() => Arrived::Newcomer,
        };
        let Some(listener) = listener.upgrade() else {
            return;
        };
        match arrived {
            Arrived::Here(Ok((tcp, client))) => listener.accepted(tcp, canonical(client)),
            Arrived::Handed(handed) => listener.handed(handed),
            Arrived::Newcomer => listener.doubt(),
            Arrived::Here(Err(error)) => {
                drop(listener);
                tracing::warn!(%error, "Cannot accept a connection; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// An event of a worker's listener.
enum Arrived {
    Here(std::io::Result<(TcpStream, SocketAddr)>),
    Handed(Handed),
    Newcomer,
}

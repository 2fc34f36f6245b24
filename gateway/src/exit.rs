//! The exit: accepts carriers, dials targets.
//!
//! Whoever accepts a carrier looks at its hello, where the protocol has one, and passes it on to the
//! worker of the session that it joins. A session without a carrier stays until it is over by itself, or
//! until there are too many.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Protocol;
use muxtunnel_proto::{Reason, Refusal};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Receiver;

use crate::driver::{CarrierEnd, Dial, Driver, NoCarrier};
use crate::handover::{Handed, Handover, Place};
use crate::hello::{self, Greeting};
use crate::process::{ACCEPT_RETRY, Phase, Worker, WorkerError, listen_shared, wait_for};
use crate::sessions::Sessions;
use crate::{dial, process};

struct Exit {
    worker: Worker,
    handover: Arc<Handover>,
    sessions: Sessions,
    /// The same, by their ids.
    by_id: RefCell<BTreeMap<[u8; 16], Rc<Driver>>>,
}

/// Runs until the shutdown is complete.
///
/// # Errors
/// [`WorkerError`]: the carrier port cannot be listened on.
pub(crate) async fn run(
    worker: Worker,
    handover: Arc<Handover>,
    handed: Receiver<Handed>,
) -> Result<(), WorkerError> {
    let address = worker.config.borrow().listen.clone().unwrap_or_default();
    let listener = listen_shared(&address)?;
    tracing::info!(listen = %address, "Listening for carriers");
    worker.telemetry.set_listening(worker.index, true);
    let (phase, workers) = (worker.phase.clone(), worker.workers);
    let exit = Rc::new(Exit {
        worker,
        handover,
        sessions: Sessions::on_one_of(workers),
        by_id: RefCell::default(),
    });
    let serve = async {
        tokio::join!(accept(&exit, listener), take(&exit, handed));
    };
    tokio::pin!(serve);
    tokio::select! {
        () = &mut serve => {}
        () = wait_for(phase.clone(), Phase::Closed) => {}
    }
    exit.worker
        .telemetry
        .set_listening(exit.worker.index, false);
    // Not before: until load balancers know, they may lead an entry that dials anew back here.
    exit.sessions.go_away();
    tokio::select! {
        () = exit.sessions.drained() => {}
        () = &mut serve => {}
        () = wait_for(phase, Phase::Deadline) => {}
    }
    exit.sessions.end_all().await;
    Ok(())
}

/// Accepts carriers for all workers. Once the exit takes no more sessions, only carriers can come that
/// join one; where there is no such thing, the port is closed, and this waits for the end.
async fn accept(exit: &Rc<Exit>, listener: TcpListener) {
    let says_hello = exit.worker.config.borrow().protocol == Protocol::Native;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = wait_for(exit.worker.phase.clone(), Phase::Closed), if !says_hello => {
                drop(listener);
                return std::future::pending().await;
            }
        };
        match accepted {
            Ok((tcp, _)) => match exit.handover.admit() {
                Ok(place) if says_hello => {
                    drop(tokio::task::spawn_local(greet(Rc::clone(exit), tcp, place)));
                }
                Ok(place) => {
                    let begins = Greeting::default();
                    exit.pass_on(tcp, begins, place);
                }
                Err(_) => {
                    exit.worker.telemetry.streams.refused(Code::TooManyCarriers);
                    let limit = exit.worker.config.borrow().limits.carriers;
                    tracing::warn!(code = %Code::TooManyCarriers, limit, "Carrier refused");
                }
            },
            Err(error) => {
                tracing::warn!(%error, "Accepting a carrier failed; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Hears what a carrier wants.
async fn greet(exit: Rc<Exit>, mut tcp: TcpStream, place: Place) {
    match hello::read(&mut tcp).await {
        Ok(greeting) => exit.pass_on(tcp, greeting, place),
        Err(end) => {
            let peer = tcp.peer_addr().map(|peer| peer.to_string());
            report(&peer.unwrap_or_default(), false, &end);
        }
    }
}

/// Takes up the carriers that are this worker's.
async fn take(exit: &Rc<Exit>, mut handed: Receiver<Handed>) {
    while let Some(carrier) = handed.recv().await {
        if let Err(error) = exit.add(carrier) {
            tracing::warn!(%error, "Carrier could not be set up");
        }
    }
}

fn report(peer: &str, ready: bool, reason: &CarrierEnd) {
    let code = Code::CarrierLost;
    match reason {
        // One that only connects and closes is a probe.
        CarrierEnd::Protocol(_) if !ready => {
            tracing::info!(%code, peer, %reason, advice = hello::ADVICE, "Carrier ended before it said hello");
        }
        _ => tracing::info!(%code, peer, ready, %reason, "Carrier ended"),
    }
}

fn refuse(tcp: TcpStream) {
    let peer = tcp.peer_addr().map(|peer| peer.to_string());
    let peer = peer.unwrap_or_default();
    tracing::info!(
        peer,
        "Carrier refused: it asks for a session that is not known here, or not any more"
    );
    drop(tokio::task::spawn_local(hello::refuse_unknown(tcp)));
}

/// It begins a session, and none is taken any more.
fn turn_away(tcp: TcpStream) {
    drop(tokio::task::spawn_local(hello::turn_away(tcp)));
}

impl Exit {
    /// Leads a carrier to its worker.
    fn pass_on(&self, tcp: TcpStream, greeting: Greeting, place: Place) {
        let Greeting { unread, joins } = greeting;
        let passed = tcp.into_std().and_then(|tcp| match joins {
            None if self.is_closed() => TcpStream::from_std(tcp).map(turn_away),
            None => {
                self.handover.begin(tcp, unread, place);
                Ok(())
            }
            Some(id) => {
                let worker = process::worker_of(&id);
                match self.handover.join(worker, id, tcp, unread, place) {
                    Ok(()) => Ok(()),
                    Err(tcp) => TcpStream::from_std(tcp).map(refuse),
                }
            }
        });
        if let Err(error) = passed {
            tracing::warn!(%error, "Carrier could not be passed on");
        }
    }

    /// Whether no sessions and streams are taken any more.
    fn is_closed(&self) -> bool {
        *self.worker.phase.borrow() >= Phase::Closed
    }

    fn add(self: &Rc<Self>, handed: Handed) -> std::io::Result<()> {
        let Handed {
            tcp,
            unread,
            joins,
            place,
        } = handed;
        let tcp = TcpStream::from_std(tcp)?;
        let (driver, begins) = match joins {
            Some(id) => match self.by_id.borrow().get(&id) {
                Some(driver) => (Rc::clone(driver), None),
                None => {
                    refuse(tcp);
                    return Ok(());
                }
            },
            None if self.is_closed() => {
                turn_away(tcp);
                return Ok(());
            }
            None => {
                let (driver, id) = self.session();
                (driver, Some(id))
            }
        };
        match driver.add_carrier(tcp, unread, Some(place)) {
            Ok(_) => {}
            Err(NoCarrier::Io(error)) => return Err(error),
            Err(NoCarrier::Refused(tcp)) => refuse(tcp),
        }
        if let Some(id) = begins {
            self.run(driver, id);
        }
        Ok(())
    }

    /// A new session, and its id.
    fn session(self: &Rc<Self>) -> (Rc<Driver>, [u8; 16]) {
        let exit = Rc::downgrade(self);
        let dialler = Box::new(move |target: String| -> Dial {
            let exit = exit.upgrade();
            Box::pin(async move {
                match exit {
                    Some(exit) => exit.dial(&target).await,
                    None => Err(draining()),
                }
            })
        });
        let identity = process::identity(self.worker.index);
        let driver = Driver::new(
            process::accept(&self.worker.config.borrow(), identity),
            self.sessions.pool(),
            self.worker.config.clone(),
            Arc::clone(&self.worker.telemetry),
            dialler,
        );
        (driver, identity.session_id)
    }

    /// Runs a session to its end. As many as there may be carriers are kept: one more ends one that has
    /// waited for a carrier.
    fn run(self: &Rc<Self>, driver: Rc<Driver>, id: [u8; 16]) {
        let sessions_max = self.worker.config.borrow().limits.carriers as usize;
        if self.by_id.borrow().len() >= sessions_max
            && let Some(waiting) = self.sessions.oldest_waiting()
        {
            waiting.shut_down();
        }
        self.by_id.borrow_mut().insert(id, Rc::clone(&driver));
        let exit = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let end = exit.sessions.run(&driver).await;
            exit.by_id.borrow_mut().remove(&id);
            report(&driver.peer(), driver.was_ready(), &end);
        });
    }

    /// Connects to a target that a peer asks for.
    async fn dial(&self, target: &str) -> Result<dial::Dialled, Refusal> {
        if self.is_closed() {
            self.worker.telemetry.streams.refused(Code::Draining);
            return Err(draining());
        }
        let config = Arc::clone(&self.worker.config.borrow());
        dial::dial(target, &config.allow).await.map_err(|error| {
            self.worker.telemetry.streams.refused(error.code);
            if self.worker.telemetry.may_log_refusal() {
                tracing::warn!(code = %error.code, %target, reason = %error.refusal.description, "Open refused");
            }
            error.refusal
        })
    }
}

fn draining() -> Refusal {
    let text = format!("{}: the exit is shutting down", Code::Draining);
    Refusal::new(Reason::General, text)
}

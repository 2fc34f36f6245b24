//! The exit: accepts carriers, dials targets.

use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_proto::{Reason, Refusal};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Receiver;

use crate::carriers::Carriers;
use crate::dial;
use crate::driver::{Dial, Driver, Progress};
use crate::handover::{Handed, Handover};
use crate::process::{ACCEPT_RETRY, Phase, Worker, WorkerError, listen_shared, session, wait_for};

struct Exit {
    worker: Worker,
    handover: Arc<Handover>,
    carriers: Carriers,
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
    let phase = worker.phase.clone();
    let exit = Rc::new(Exit {
        worker,
        handover,
        carriers: Carriers::default(),
    });
    tokio::select! {
        () = accept(&exit, &listener) => {}
        () = take(&exit, handed) => {}
        () = wait_for(phase.clone(), Phase::Closed) => {}
    }
    drop(listener);
    exit.worker
        .telemetry
        .set_listening(exit.worker.index, false);
    // Not before: until the port is closed, load balancers may lead an entry that dials anew back here.
    exit.carriers.go_away();
    tokio::select! {
        () = exit.carriers.drained() => {}
        () = wait_for(phase, Phase::Deadline) => {}
    }
    exit.carriers.end_all().await;
    Ok(())
}

/// Accepts carriers for all workers.
async fn accept(exit: &Exit, listener: &TcpListener) {
    loop {
        let accepted = listener.accept().await;
        match accepted.and_then(|(tcp, _)| tcp.into_std()) {
            Ok(tcp) => {
                if exit.handover.pass_on(tcp).is_err() {
                    exit.worker.telemetry.streams.refused(Code::TooManyCarriers);
                    let limit = exit.worker.config.borrow().limits.carriers;
                    tracing::warn!(code = %Code::TooManyCarriers, limit, "Carrier refused");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "Accepting a carrier failed; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
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

impl Exit {
    fn add(self: &Rc<Self>, Handed { tcp, place }: Handed) -> std::io::Result<()> {
        let tcp = TcpStream::from_std(tcp)?;
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
        let session = session(&self.worker.config.borrow());
        let config = self.worker.config.clone();
        let telemetry = Arc::clone(&self.worker.telemetry);
        let pool = self.carriers.pool();
        let driver = Driver::new(tcp, session, pool, config, telemetry, dialler)?;
        let exit = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let run = exit.carriers.run(&driver);
            let up = async {
                driver.reached(Progress::Ready).await;
                tracing::info!(peer = driver.peer(), "Carrier is up");
                std::future::pending().await
            };
            let end = tokio::select! {
                end = run => end,
                end = up => end,
            };
            tracing::info!(code = %Code::CarrierLost, peer = driver.peer(), ready = driver.was_ready(), reason = %end, "Carrier ended");
            drop(place);
        });
        Ok(())
    }

    /// Connects to a target that a peer asks for.
    async fn dial(&self, target: &str) -> Result<dial::Dialled, Refusal> {
        if *self.worker.phase.borrow() >= Phase::Closed {
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

//! The exit: accepts carriers, dials targets.

use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Config;
use muxtunnel_proto::{Reason, Refusal};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::carriers::Carriers;
use crate::dial;
use crate::driver::{Dial, Driver, Progress};
use crate::process::{ACCEPT_RETRY, Phase, WorkerError, bind, session, wait_for};
use crate::telemetry::Telemetry;

struct Exit {
    config: watch::Receiver<Arc<Config>>,
    phase: watch::Receiver<Phase>,
    telemetry: Arc<Telemetry>,
    carriers: Carriers,
}

/// Runs until the shutdown is complete.
///
/// # Errors
/// [`WorkerError`]: the carrier port cannot be listened on.
pub(crate) async fn run(
    config: watch::Receiver<Arc<Config>>,
    phase: watch::Receiver<Phase>,
    telemetry: Arc<Telemetry>,
) -> Result<(), WorkerError> {
    let address = config.borrow().listen.clone().unwrap_or_default();
    let listener = bind(&address)?;
    tracing::info!(listen = %address, "Listening for carriers");
    telemetry.set_listening(true);
    let exit = Rc::new(Exit {
        config,
        phase,
        telemetry,
        carriers: Carriers::default(),
    });
    tokio::select! {
        () = accept(&exit, &listener) => {}
        () = wait_for(exit.phase.clone(), Phase::Closed) => {}
    }
    drop(listener);
    exit.telemetry.set_listening(false);
    // Not before: until the port is closed, load balancers may lead an entry that dials anew back here.
    exit.carriers.go_away();
    tokio::select! {
        () = exit.carriers.drained() => {}
        () = wait_for(exit.phase.clone(), Phase::Deadline) => {}
    }
    exit.carriers.end_all().await;
    Ok(())
}

async fn accept(exit: &Rc<Exit>, listener: &TcpListener) {
    loop {
        match listener.accept().await {
            Ok((tcp, _)) => exit.add(tcp),
            Err(error) => {
                tracing::warn!(%error, "Accepting a carrier failed; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

impl Exit {
    fn add(self: &Rc<Self>, tcp: TcpStream) {
        let config = Arc::clone(&self.config.borrow());
        if self.carriers.len() >= config.limits.carriers as usize {
            self.telemetry.count_refused(Code::TooManyCarriers);
            tracing::warn!(code = %Code::TooManyCarriers, limit = config.limits.carriers, "Carrier refused");
            return;
        }
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
        let driver = match Driver::new(tcp, session(&config), Arc::clone(&self.telemetry), dialler)
        {
            Ok(driver) => driver,
            Err(error) => {
                tracing::warn!(%error, "Carrier could not be set up");
                return;
            }
        };
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
        });
    }

    /// Connects to a target that a peer asks for.
    async fn dial(&self, target: &str) -> Result<TcpStream, Refusal> {
        if *self.phase.borrow() >= Phase::Closed {
            self.telemetry.count_refused(Code::Draining);
            return Err(draining());
        }
        let config = Arc::clone(&self.config.borrow());
        dial::dial(target, &config.allow).await.map_err(|error| {
            self.telemetry.count_refused(error.code);
            if self.telemetry.may_log_refusal() {
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

//! The exit: accepts carriers, dials targets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Config;
use muxtunnel_proto::{Reason, Refusal, StreamId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::dial;
use crate::driver::Driver;
use crate::process::{ACCEPT_RETRY, Phase, WorkerError, bind, session, wait_for};
use crate::telemetry::Telemetry;

struct Exit {
    config: watch::Receiver<Arc<Config>>,
    phase: watch::Receiver<Phase>,
    telemetry: Arc<Telemetry>,
    carriers: RefCell<BTreeMap<u64, Rc<Driver>>>,
    next: RefCell<u64>,
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
        carriers: RefCell::default(),
        next: RefCell::new(0),
    });
    tokio::select! {
        () = accept(&exit, &listener) => {}
        () = wait_for(exit.phase.clone(), Phase::Closed) => {}
    }
    drop(listener);
    exit.telemetry.set_listening(false);
    tokio::select! {
        () = drained(&exit) => {}
        () = wait_for(exit.phase.clone(), Phase::Deadline) => {}
    }
    exit.end_all().await;
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

/// Waits until no carrier has a stream.
async fn drained(exit: &Exit) {
    let carriers: Vec<Rc<Driver>> = exit.carriers.borrow().values().cloned().collect();
    for carrier in carriers {
        carrier.idle().await;
    }
}

impl Exit {
    fn add(self: &Rc<Self>, tcp: TcpStream) {
        let config = Arc::clone(&self.config.borrow());
        if self.carriers.borrow().len() >= config.limits.carriers as usize {
            self.telemetry.count_refused(Code::TooManyCarriers);
            tracing::warn!(code = %Code::TooManyCarriers, limit = config.limits.carriers, "Carrier refused");
            return;
        }
        let exit = Rc::downgrade(self);
        let on_incoming = Box::new(move |driver: &Rc<Driver>, stream, target| {
            if let Some(exit) = exit.upgrade() {
                exit.incoming(driver, stream, target);
            }
        });
        let driver = match Driver::new(
            tcp,
            session(&config),
            Arc::clone(&self.telemetry),
            on_incoming,
        ) {
            Ok(driver) => driver,
            Err(error) => {
                tracing::warn!(%error, "Carrier could not be set up");
                return;
            }
        };
        let id = *self.next.borrow();
        *self.next.borrow_mut() += 1;
        self.carriers.borrow_mut().insert(id, Rc::clone(&driver));
        let exit = Rc::clone(self);
        tokio::task::spawn_local(async move {
            tracing::info!(peer = driver.peer(), "Carrier is up");
            let end = driver.run().await;
            tracing::info!(code = %Code::CarrierLost, peer = driver.peer(), reason = %end, "Carrier ended");
            exit.carriers.borrow_mut().remove(&id);
        });
    }

    fn incoming(&self, driver: &Rc<Driver>, stream: StreamId, target: String) {
        if *self.phase.borrow() >= Phase::Closed {
            self.telemetry.count_refused(Code::Draining);
            let text = format!("{}: the exit is shutting down", Code::Draining);
            driver.refuse(stream, Refusal::new(Reason::General, text));
            return;
        }
        let config = Arc::clone(&self.config.borrow());
        let (driver, telemetry) = (Rc::clone(driver), Arc::clone(&self.telemetry));
        tokio::task::spawn_local(async move {
            match dial::dial(&target, &config.allow).await {
                Ok(tcp) => driver.accept(stream, tcp),
                Err(error) => {
                    telemetry.count_refused(error.code);
                    if telemetry.may_log_refusal() {
                        tracing::warn!(code = %error.code, %target, reason = %error.refusal.description, "Open refused");
                    }
                    driver.refuse(stream, error.refusal);
                }
            }
        });
    }

    async fn end_all(&self) {
        let carriers: Vec<Rc<Driver>> = self.carriers.borrow().values().cloned().collect();
        for carrier in &carriers {
            carrier.shut_down();
        }
        while !self.carriers.borrow().is_empty() {
            tokio::task::yield_now().await;
        }
        for carrier in &carriers {
            carrier.streams_gone().await;
        }
    }
}

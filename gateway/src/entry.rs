//! The entry: keeps a carrier to the exit, listens for the forwards.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{Config, Forward, status};
use muxtunnel_proto::{OpenError, Reason, Refusal};
use rand::RngExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::dial;
use crate::driver::Driver;
use crate::process::{ACCEPT_RETRY, Phase, WorkerError, bind, session, wait_for};
use crate::telemetry::Telemetry;

/// First pause before a carrier is dialled again; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A carrier that lived this long ends the row of failures.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// One attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

struct Entry {
    telemetry: Arc<Telemetry>,
    carrier: RefCell<Option<Rc<Driver>>>,
    listeners: RefCell<BTreeMap<String, Listener>>,
}

/// One port that is listened on. Its forward is looked up anew for each connection, so a changed
/// target needs no new listener.
struct Listener {
    forward: Rc<RefCell<Forward>>,
    task: JoinHandle<()>,
}

/// Runs until the shutdown is complete.
///
/// # Errors
/// [`WorkerError`]: a forward's port cannot be listened on at the start.
pub(crate) async fn run(
    mut config: watch::Receiver<Arc<Config>>,
    phase: watch::Receiver<Phase>,
    telemetry: Arc<Telemetry>,
) -> Result<(), WorkerError> {
    let entry = Rc::new(Entry {
        telemetry,
        carrier: RefCell::default(),
        listeners: RefCell::default(),
    });
    let first = Arc::clone(&config.borrow_and_update());
    if let Some(error) = entry.listen(&first.forwards).into_iter().next() {
        return Err(error);
    }
    entry.telemetry.set_listening(true);
    let dialler = tokio::task::spawn_local(keep_carrier(Rc::clone(&entry), first));
    tokio::select! {
        () = follow(&entry, config) => {}
        () = wait_for(phase.clone(), Phase::Closed) => {}
    }
    entry.stop_listening();
    let carrier = entry.carrier.borrow().clone();
    if let Some(carrier) = carrier {
        tokio::select! {
            () = carrier.idle() => {}
            () = wait_for(phase, Phase::Deadline) => {}
        }
        carrier.shut_down();
        while entry.carrier.borrow().is_some() {
            tokio::task::yield_now().await;
        }
        carrier.streams_gone().await;
    }
    dialler.abort();
    Ok(())
}

/// Takes over changed forwards for as long as the configuration can change.
async fn follow(entry: &Rc<Entry>, mut config: watch::Receiver<Arc<Config>>) {
    while config.changed().await.is_ok() {
        let forwards = config.borrow_and_update().forwards.clone();
        for error in entry.listen(&forwards) {
            tracing::error!(%error, "Forward does not listen");
        }
    }
    std::future::pending::<()>().await;
}

/// Dials, runs, waits, dials again.
async fn keep_carrier(entry: Rc<Entry>, config: Arc<Config>) {
    let exit = config.connect.clone().unwrap_or_default();
    let mut failures = 0;
    loop {
        match connect(&entry, &exit, &config).await {
            Ok(driver) => {
                tracing::info!(exit = %exit, peer = driver.peer(), "Carrier is up");
                let since = Instant::now();
                entry.carrier.replace(Some(Rc::clone(&driver)));
                let end = driver.run().await;
                entry.carrier.replace(None);
                tracing::warn!(code = %Code::CarrierLost, exit = %exit, reason = %end, "Carrier ended");
                failures = if since.elapsed() >= STABLE_AFTER {
                    0
                } else {
                    failures + 1
                };
            }
            Err(error) => {
                tracing::warn!(code = %Code::CarrierConnecting, exit = %exit, %error, "No carrier");
                failures += 1;
            }
        }
        tokio::time::sleep(backoff(failures, rand::rng().random())).await;
    }
}

/// Full range: half to all of the doubled pause, so that entries do not come back in step.
/// `random`: 0..1.
fn backoff(failures: u32, random: f64) -> Duration {
    let pause = BACKOFF_MIN
        .saturating_mul(1 << failures.saturating_sub(1).min(10))
        .min(BACKOFF_MAX);
    pause.mul_f64(0.5 + random / 2.0)
}

async fn connect(entry: &Entry, exit: &str, config: &Config) -> std::io::Result<Rc<Driver>> {
    let tcp = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(exit))
        .await
        .map_err(|_| {
            std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
            )
        })??;
    let on_incoming = Box::new(|driver: &Rc<Driver>, stream, _| {
        driver.refuse(
            stream,
            Refusal::new(
                Reason::NotAllowed,
                format!("{}: an entry dials nothing", Code::OpenRefused),
            ),
        );
    });
    Driver::new(
        tcp,
        session(config),
        Arc::clone(&entry.telemetry),
        on_incoming,
    )
}

impl Entry {
    /// Listens on exactly what `forwards` ask for; those that stay keep their listener. Returns the
    /// ports that could not be had; the others work.
    fn listen(self: &Rc<Self>, forwards: &[Forward]) -> Vec<WorkerError> {
        let mut errors = Vec::new();
        let mut reports = Vec::new();
        let mut listeners = self.listeners.borrow_mut();
        listeners.retain(|address, listener| {
            let stays = forwards.iter().any(|forward| forward.listen == *address);
            if !stays {
                listener.task.abort();
            }
            stays
        });
        for forward in forwards {
            let mut error = None;
            if let Some(listener) = listeners.get(&forward.listen) {
                listener.forward.replace(forward.clone());
            } else {
                match self.start(forward) {
                    Ok(listener) => drop(listeners.insert(forward.listen.clone(), listener)),
                    Err(refused) => {
                        error = Some(refused.to_string());
                        errors.push(refused);
                    }
                }
            }
            reports.push(status::Forward {
                name: forward.name.clone(),
                listen: forward.listen.clone(),
                target: format!("{}:{}", forward.target.host, forward.target.port),
                error,
            });
        }
        self.telemetry.set_forwards(reports);
        errors
    }

    fn start(self: &Rc<Self>, forward: &Forward) -> Result<Listener, WorkerError> {
        let socket = bind(&forward.listen)?;
        tracing::info!(forward = %forward.name, listen = %forward.listen, "Listening");
        let forward = Rc::new(RefCell::new(forward.clone()));
        let task = tokio::task::spawn_local(accept(Rc::clone(self), socket, Rc::clone(&forward)));
        Ok(Listener { forward, task })
    }

    fn stop_listening(&self) {
        self.telemetry.set_listening(false);
        for listener in std::mem::take(&mut *self.listeners.borrow_mut()).into_values() {
            listener.task.abort();
        }
    }

    /// Sends a new connection on its way, or resets it.
    fn take(&self, tcp: TcpStream, forward: &Forward) {
        let carrier = self.carrier.borrow().clone();
        let Some(carrier) = carrier else {
            let _ = tcp.set_zero_linger();
            self.refused(
                &forward.name,
                Code::CarrierConnecting,
                "there is no carrier to the exit",
            );
            return;
        };
        match carrier.open(&dial::url(&forward.target.host, forward.target.port), tcp) {
            Err(error) => {
                let code = match error {
                    OpenError::NotReady | OpenError::GoingAway => Code::CarrierConnecting,
                    OpenError::TooManyStreams { .. } | OpenError::PeerStreamLimit { .. } => {
                        Code::TooManyStreams
                    }
                    OpenError::BudgetExhausted { .. } => Code::MemoryExhausted,
                    OpenError::TargetTooLong { .. } => Code::ConfigInvalid,
                };
                self.refused(&forward.name, code, &error.to_string());
            }
            Ok(answer) => {
                let (telemetry, name) = (Arc::clone(&self.telemetry), forward.name.clone());
                tokio::task::spawn_local(async move {
                    if let Ok(Err(refusal)) = answer.await {
                        refused(
                            &telemetry,
                            &name,
                            code_of(refusal.reason),
                            &refusal.description,
                        );
                    }
                });
            }
        }
    }

    fn refused(&self, forward: &str, code: Code, reason: &str) {
        refused(&self.telemetry, forward, code, reason);
    }
}

async fn accept(entry: Rc<Entry>, socket: TcpListener, forward: Rc<RefCell<Forward>>) {
    loop {
        match socket.accept().await {
            Ok((tcp, _)) => entry.take(tcp, &forward.borrow()),
            Err(error) => {
                tracing::warn!(%error, "Accepting failed; is the limit of open files reached?");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

fn refused(telemetry: &Telemetry, forward: &str, code: Code, reason: &str) {
    telemetry.count_refused(code);
    if telemetry.may_log_refusal() {
        tracing::warn!(%code, forward, reason, "Connection refused");
    }
}

fn code_of(reason: Reason) -> Code {
    match reason {
        Reason::NotAllowed => Code::OpenRefused,
        Reason::TimedOut => Code::OpenTimedOut,
        _ => Code::OpenFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_its_bound_and_is_jittered() {
        assert_eq!(backoff(0, 1.0), BACKOFF_MIN);
        assert_eq!(backoff(1, 1.0), BACKOFF_MIN);
        assert_eq!(backoff(3, 1.0), BACKOFF_MIN * 4);
        assert_eq!(backoff(3, 0.0), BACKOFF_MIN * 2);
        assert_eq!(backoff(1000, 1.0), BACKOFF_MAX);
    }
}

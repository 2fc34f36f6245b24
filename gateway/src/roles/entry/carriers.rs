//! Keeps as many carriers in a session as are needed: dials those that are lost, more where the network
//! holds all of them up, and retires what is of no use.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config as config;
use rand::RngExt;
use tokio::sync::watch;

use super::dial_context::{DialContext, connect};
use super::{exit_liveness, trial};
use crate::net::egress::Address;
use crate::session::mux::{CarrierPool, Mux, NoCarrier, PoolState};

/// First pause before a carrier is dialled again; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// The same for a session without a carrier, whose streams wait: the process of an exit that was killed comes back, and
/// says that it does not know the session. Such a session ends after 30 s, so an exit is not dialled so often for long.
const WAITING_BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A carrier that is lost sooner after another came up is replaced after a short pause, else at once.
const REDIAL_AFTER: Duration = Duration::from_secs(1);
/// A carrier beyond the least number that does not come up is not dialled again sooner.
const MORE_AFTER: Duration = Duration::from_secs(60);
/// Entries whose certificates are renewed together dial within this.
const RENEWAL_JITTER: Duration = Duration::from_secs(10);
/// One that cannot be retired for now may be after this.
const RETIRE_AGAIN: Duration = Duration::from_secs(1);

/// Full range: half to all of the doubled pause, so that entries do not come back in step.
pub(crate) async fn pause(failures: u32) {
    pause_at_most(failures, BACKOFF_MAX).await;
}

async fn pause_at_most(failures: u32, most: Duration) {
    tokio::time::sleep(backoff(failures, most, rand::rng().random())).await;
}

/// `random`: 0..1.
fn backoff(failures: u32, most: Duration, random: f64) -> Duration {
    let pause = BACKOFF_MIN
        .saturating_mul(1 << failures.saturating_sub(1).min(10))
        .min(most);
    pause.mul_f64(0.5 + random / 2.0)
}

/// Has carriers replaced that were made before this end's certificate was renewed, so that none outlives its
/// certificate, and a session that cannot resume left for another one; never ends. After a while of its own, since many
/// entries may be renewed at once.
pub(super) async fn renew(mux: &dyn Mux, dial_context: &DialContext) -> Infallible {
    let mut credentials = dial_context.credentials.clone();
    let mut shown = credentials.borrow_and_update().certificate();
    loop {
        if credentials.changed().await.is_err() {
            return std::future::pending().await;
        }
        let shows = credentials.borrow_and_update().certificate();
        if shows == shown {
            continue;
        }
        shown = shows;
        let renewed = Instant::now();
        tokio::time::sleep(RENEWAL_JITTER.mul_f64(rand::rng().random())).await;
        match mux.carriers() {
            Some(carriers) if carriers.resumes() => {
                carriers.outdate(&|carrier| carrier.since < renewed);
            }
            _ => mux.leave(),
        }
    }
}

/// How many carriers there are to be, whatever the peer says.
fn wanted(bounds: config::Pool, pool: &PoolState) -> usize {
    pool.wanted().clamp(bounds.min.into(), bounds.max.into())
}

/// Dials and retires one carrier after another, until none is left and the exit is gone for good. `at`: where the
/// first one led.
pub(super) async fn keep(
    mux: &dyn Mux,
    exit: &Address,
    at: &Address,
    bounds: config::Pool,
    dial_context: &DialContext,
) {
    let Some(carriers) = mux.carriers() else {
        return std::future::pending().await;
    };
    let failed = watch::Sender::new(0);
    let mut failures = failed.subscribe();
    tokio::select! {
        never = keep_dialling(mux, carriers, (exit, at), bounds, dial_context, &failed) => match never {},
        () = exit_liveness::until_gone(mux, exit, &mut failures, dial_context) => {}
    }
}

/// The same without an end. `failed`: dials in a row that came to nothing.
async fn keep_dialling(
    mux: &dyn Mux,
    carriers: &dyn CarrierPool,
    (exit, at): (&Address, &Address),
    bounds: config::Pool,
    dial_context: &DialContext,
    failed: &watch::Sender<u32>,
) -> Infallible {
    let (mut failures, mut latest) = (0_u32, Instant::now());
    let mut at = at.clone();
    loop {
        let PoolState { up, outdated, .. } = carriers.numbers();
        let wanted = wanted(bounds, &carriers.numbers());
        if up > wanted {
            shrink(carriers, bounds).await;
            continue;
        }
        if up == wanted && outdated == 0 {
            let differs =
                |pool: &PoolState| pool.up != self::wanted(bounds, pool) || pool.outdated > 0;
            tokio::select! {
                () = carriers.until(&differs) => {}
                other = trial::is_due(carriers, &dial_context.ways) => {
                    trial::run(carriers, other, &at, dial_context).await;
                }
            }
            if latest.elapsed() < REDIAL_AFTER {
                pause(1).await;
            }
            continue;
        }
        if failures > 0 {
            let most = if mux.waits() {
                WAITING_BACKOFF_MAX
            } else {
                BACKOFF_MAX
            };
            pause_at_most(failures, most).await;
        }
        let before = carriers.numbers().up;
        let least = bounds.min.into();
        match add(carriers, exit, &mut at, dial_context, failures).await {
            Ok(true) => (failures, latest) = (0, Instant::now()),
            Ok(false) | Err(NoCarrier::Io(_)) if before >= least => {
                tracing::info!(%exit, carriers = before, "No further carrier");
                let _ = tokio::time::timeout(MORE_AFTER, carriers.lacks(least)).await;
            }
            Ok(false) => failures += 1,
            Err(NoCarrier::Refused(_)) if before > 0 => {
                let peer = mux.peer();
                tracing::info!(%exit, %peer, carriers = before, "The session takes no more carriers");
                carriers.lacks(before).await;
            }
            Err(error) => {
                tracing::warn!(code = %Code::CarrierConnecting, %exit, %error, "No carrier for a session that goes on");
                failures += 1;
            }
        }
        failed.send_replace(failures);
    }
}

/// One carrier fewer.
async fn shrink(carriers: &dyn CarrierPool, bounds: config::Pool) {
    if !carriers.retire_one() {
        // Another one is being retired, or a lost one is not settled.
        let enough = |pool: &PoolState| pool.up <= wanted(bounds, pool);
        let _ = tokio::time::timeout(RETIRE_AGAIN, carriers.until(&enough)).await;
    }
}

/// Whether it came up.
async fn add(
    carriers: &dyn CarrierPool,
    exit: &Address,
    at: &mut Address,
    dial_context: &DialContext,
    failures: u32,
) -> Result<bool, NoCarrier> {
    // Where a name leads to several exits, the session is at one of them; but that one may have moved.
    let at_peer = carriers.numbers().up > 0 || failures <= 1;
    let carrier = connect(if at_peer { at } else { exit }, dial_context).await?;
    if !at_peer {
        *at = exit.at(&carrier.peer());
    }
    Ok(carriers.add(carrier, Vec::new(), None)?.await)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::ways::Ways;
    use super::*;
    use crate::roles::worker::Worker;
    use crate::session::mux::memory::silent;

    /// Dials that come to nothing within 20 s, where one more carrier than `up` is wanted.
    async fn dials(up: usize) -> u32 {
        let yaml = "role: Entry\nprotocol: Native\nsecurity: {mode: None}\nconnect: far:1\n";
        let session = config::Config::from_yaml(yaml).unwrap().session();
        let worker = Worker::of(yaml);
        let dial_context = DialContext {
            credentials: worker.credentials,
            protocol: config::Protocol::Native,
            web_socket: None,
            ways: Rc::new(Ways::of(config::Transport::Tcp, false, true)),
            exits: config::Exits::Addresses {
                connect: "far:1".to_owned(),
                fallback: None,
            },
            quic: crate::io::quic::Settings::new(&session),
            ssh: crate::io::ssh::Settings::new(session.memory.receive.0),
            egress: worker.egress,
            leaf: None,
        };
        let memory = silent(None);
        memory.carried_by(up);
        let mux = memory.shared();
        let nobody = Address::unresolved("unix:/nobody/listens/here");
        let least = u8::try_from(up + 1).unwrap();
        let bounds = config::Pool {
            min: least,
            max: least,
        };
        let failed = watch::Sender::new(0);
        let carriers = mux.carriers().unwrap();
        let dialling = keep_dialling(
            &*mux,
            carriers,
            (&nobody, &nobody),
            bounds,
            &dial_context,
            &failed,
        );
        let _ = tokio::time::timeout(Duration::from_secs(20), dialling).await;
        *failed.borrow()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_without_a_carrier_is_dialled_at_least_once_a_second() {
        let (waiting, carried) = (dials(0).await, dials(1).await);
        assert!((20..60).contains(&waiting), "{waiting} dials");
        assert!(
            (4..20).contains(&carried),
            "{carried} dials beside a carrier that is up"
        );
    }

    #[test]
    fn the_pause_doubles_up_to_its_bound_and_is_jittered() {
        let at = |failures, random| backoff(failures, BACKOFF_MAX, random);
        assert_eq!(at(0, 1.0), BACKOFF_MIN);
        assert_eq!(at(1, 1.0), BACKOFF_MIN);
        assert_eq!(at(3, 1.0), BACKOFF_MIN * 4);
        assert_eq!(at(3, 0.0), BACKOFF_MIN * 2);
        assert_eq!(at(1000, 1.0), BACKOFF_MAX);
        assert_eq!(backoff(1000, WAITING_BACKOFF_MAX, 1.0), WAITING_BACKOFF_MAX);
    }
}

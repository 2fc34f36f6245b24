//! Keeps as many carriers in a session as are needed: dials those that are lost, more where the network
//! holds all of them up, and retires what is of no use.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config as config;
use muxtunnel_gateway_config::status::CarrierTransport;
use rand::RngExt;
use tokio::sync::watch;

use super::dial_context::{DialContext, connect, connect_by};
use super::{exit_liveness, trial};
use crate::io::carrier::Carrier;
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

/// Where the carriers of a session lead, and what they run on.
#[derive(Debug, Clone)]
pub(super) struct Route {
    /// The exit, which may have moved.
    pub(super) exit: Address,
    /// Where the latest one led.
    pub(super) at: Address,
    /// All of them run on one transport, but while that changes.
    pub(super) by: CarrierTransport,
}

/// Dials and retires one carrier after another, until none is left and the exit is gone for good. `route`: of the first one.
pub(super) async fn keep(
    mux: &dyn Mux,
    route: Route,
    bounds: config::Pool,
    dial_context: &DialContext,
) {
    let Some(carriers) = mux.carriers() else {
        return std::future::pending().await;
    };
    let failed = watch::Sender::new(0);
    let (exit, mut failures) = (route.exit.clone(), failed.subscribe());
    tokio::select! {
        never = keep_dialling(mux, carriers, route, bounds, dial_context, &failed) => match never {},
        () = exit_liveness::until_gone(mux, &exit, &mut failures, dial_context) => {}
    }
}

/// The same without an end. `failed`: dials in a row that came to nothing.
async fn keep_dialling(
    mux: &dyn Mux,
    carriers: &dyn CarrierPool,
    mut route: Route,
    bounds: config::Pool,
    dial_context: &DialContext,
    failed: &watch::Sender<u32>,
) -> Infallible {
    let (mut failures, mut latest) = (0_u32, Instant::now());
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
                trial = trial::is_due(carriers, route.by, &dial_context.ways) => {
                    let changed = trial::run(trial, carriers, &route.at, dial_context).await;
                    route.by = changed.unwrap_or(route.by);
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
        let (exit, least) = (&route.exit.clone(), bounds.min.into());
        match add(mux, carriers, &mut route, least, dial_context, failures).await {
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
    mux: &dyn Mux,
    carriers: &dyn CarrierPool,
    route: &mut Route,
    least: usize,
    dial_context: &DialContext,
    failures: u32,
) -> Result<bool, NoCarrier> {
    let ways = &dial_context.ways;
    // Where a name resolves to several exits, the session is at one of them; but that one may have moved.
    let at_peer = carriers.numbers().up > 0 || failures <= 1;
    let to = if at_peer { &route.at } else { &route.exit };
    let (by, carrier) = dial(carriers, route.by, to, least, dial_context, failures).await?;
    let led_to = route.exit.at(&carrier.peer());
    let added = if by == route.by {
        carriers.add(carrier, Vec::new(), None)
    } else {
        carriers.add_by_another_way(carrier)
    };
    let is_up = match added {
        Ok(added) => added.await,
        Err(error @ NoCarrier::Stranger(_)) => {
            ways.unheard(by, tokio::time::Instant::now());
            return Err(error);
        }
        Err(error) => return Err(error),
    };
    if !is_up {
        if !mux.has_ended() {
            ways.unheard(by, tokio::time::Instant::now());
        }
        if by != route.by && carriers.numbers().up == 0 {
            // Its exit is out of reach, and another one may be within: new streams are not to wait for it.
            mux.leave();
        }
        return Ok(false);
    }
    ways.heard(by);
    if !at_peer {
        route.at = led_to;
    }
    if by != route.by {
        // All of them run on what can be dialled.
        carriers.outdate(&|carrier| carrier.transport != by);
        route.by = by;
    }
    Ok(true)
}

/// Connects to `to` by what the others run on; by whatever the path allows where nothing else carries, and where too few do.
async fn dial(
    carriers: &dyn CarrierPool,
    by: CarrierTransport,
    to: &Address,
    least: usize,
    dial_context: &DialContext,
    failures: u32,
) -> std::io::Result<(CarrierTransport, Carrier)> {
    let PoolState { up, outdated, .. } = carriers.numbers();
    if up == 0 || failures > 0 {
        return connect(to, dial_context).await;
    }
    let too_few = up.saturating_sub(outdated) < least;
    match connect_by(by, to, dial_context).await {
        Ok(carrier) => Ok((by, carrier)),
        Err(_) if too_few && dial_context.ways.are_several() => connect(to, dial_context).await,
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;

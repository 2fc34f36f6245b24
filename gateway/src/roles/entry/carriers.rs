//! Keeps the required number of carriers in a session. This module redials lost carriers, adds
//! carriers while the network limits the rate of all carriers, and retires carriers that do not
//! increase the throughput.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use futures::future::join_all;
use muxtunnel_gateway_config as config;
use muxtunnel_gateway_config::status::CarrierTransport;
use rand::RngExt;
use tokio::sync::watch;

use super::dial_context::{DialContext, connect, connect_by};
use super::{exit_liveness, trial};
use crate::io::carrier::Carrier;
use crate::net::egress::Address;
use crate::net::race::Reached;
use crate::session::mux::{CarrierPool, Mux, NoCarrier, PoolState};

/// Minimum pause before a carrier is redialled. The pause doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Maximum pause before a carrier is redialled.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Maximum pause for a session without a carrier. The pause is short because the streams of the
/// session wait. If the exit was killed, it restarts and rejects the session, which it does not
/// know. A session without a carrier ends after 30 s, which bounds the number of dials.
const WAITING_BACKOFF_MAX: Duration = Duration::from_secs(1);
/// If a carrier is lost sooner than this time after the newest carrier was established, the entry
/// redials after a short pause. Otherwise the entry redials at once.
const REDIAL_AFTER: Duration = Duration::from_secs(1);
/// Maximum pause after a failed attempt to add a carrier above the minimum number. The first pause
/// is 1 s, and the pause doubles.
const MORE_AFTER: Duration = Duration::from_secs(60);
/// Maximum delay before an entry redials after a renewal, since many certificates may be renewed at
/// the same time.
const RENEWAL_JITTER: Duration = Duration::from_secs(10);
/// Maximum number of carriers that are dialled at the same time.
const DIALS_MAX: usize = 5;
/// Maximum time of a dial that runs beside the dial of another carrier.
const FURTHER_DIAL_MAX: Duration = Duration::from_secs(3);
/// Pause before another attempt to retire a carrier.
const RETIRE_AGAIN: Duration = Duration::from_secs(1);

/// Waits before the next dial. The pause doubles with each failure. A random factor between 0.5 and
/// 1 prevents that all entries redial at the same time.
pub(crate) async fn pause(failures: u32) {
    pause_at_most(failures, BACKOFF_MAX).await;
}

pub(super) async fn pause_at_most(failures: u32, most: Duration) {
    tokio::time::sleep(backoff(failures, most, rand::rng().random())).await;
}

/// `random` is between 0 and 1.
fn backoff(failures: u32, most: Duration, random: f64) -> Duration {
    let pause = BACKOFF_MIN
        .saturating_mul(1 << failures.saturating_sub(1).min(10))
        .min(most);
    pause.mul_f64(0.5 + random / 2.0)
}

/// Replaces carriers after a renewal of this entry's certificate or key, so that no carrier outlives
/// what it presented. If the session cannot resume, another session replaces it. Each renewal is handled
/// after a random delay, since many entries may be renewed at the same time. Never returns.
pub(super) async fn renew(mux: &dyn Mux, dial_context: &DialContext) -> Infallible {
    let mut credentials = dial_context.credentials.clone();
    let mut shown = credentials.borrow_and_update().shown();
    loop {
        if credentials.changed().await.is_err() {
            return std::future::pending().await;
        }
        let before = shown;
        shown = credentials.borrow_and_update().shown();
        if shown.presents_as(&before) {
            continue;
        }
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

/// The number of carriers to maintain: the number that the session could use, within the configured
/// bounds.
fn wanted(bounds: config::Pool, pool: &PoolState) -> usize {
    pool.wanted().clamp(bounds.min.into(), bounds.max().into())
}

/// The route of a session's carriers: exit and transport.
#[derive(Debug, Clone)]
pub(super) struct Route {
    /// The exit, whose address may change.
    pub(super) exit: Address,
    /// The address of the newest carrier.
    pub(super) at: Address,
    /// The transport of all carriers, except while the session changes its transport.
    pub(super) by: CarrierTransport,
}

/// Dials and retires carriers, one after another, until no carrier is left and the exit is
/// permanently gone. `route` is the route of the first carrier.
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

/// Works as [`keep`], but never returns. `failed` is the number of consecutive failed dials.
async fn keep_dialling(
    mux: &dyn Mux,
    carriers: &dyn CarrierPool,
    mut route: Route,
    bounds: config::Pool,
    dial_context: &DialContext,
    failed: &watch::Sender<u32>,
) -> Infallible {
    let (mut failures, mut latest) = (0_u32, Instant::now());
    // Consecutive failed attempts to add a carrier above the minimum, and the number of carriers
    // after the last success.
    let (mut refused, mut reached) = (0_u32, 0);
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
        if up < reached && latest.elapsed() < REDIAL_AFTER {
            // The exit accepted carriers and did not keep them.
            pause(1).await;
        }
        let before = carriers.numbers().up;
        let (exit, least) = (&route.exit.clone(), bounds.min.into());
        let changes = |pool: &PoolState| {
            pool.up < least || pool.up < before || pool.up > self::wanted(bounds, pool)
        };
        let count = match failures {
            0 if refused == 0 && before >= least => {
                wanted.saturating_sub(before).clamp(1, DIALS_MAX)
            }
            _ => 1,
        };
        let adds = add(
            mux,
            carriers,
            &mut route,
            (count, least),
            dial_context,
            failures,
        );
        match adds.await {
            Ok(true) => {
                (failures, latest) = (0, Instant::now());
                (refused, reached) = (0, carriers.numbers().up);
            }
            Ok(false) | Err(NoCarrier::Io(_)) if before >= least => {
                tracing::info!(%exit, carriers = before, "Cannot add a carrier");
                let _ = tokio::time::timeout(more_after(refused), carriers.until(&changes)).await;
                refused += 1;
            }
            Ok(false) => failures += 1,
            Err(NoCarrier::Refused(_)) if before > 0 => {
                let peer = mux.peer();
                tracing::info!(%exit, %peer, carriers = before, "The exit accepts no further carriers for the session");
                let _ = tokio::time::timeout(more_after(refused), carriers.until(&changes)).await;
                refused += 1;
            }
            Err(error) => {
                tracing::warn!(code = %error.code(), %exit, %error, "Cannot dial a carrier for an established session");
                failures += 1;
            }
        }
        failed.send_replace(failures);
    }
}

/// The pause after an attempt to add a carrier above the minimum number has failed, after `refused`
/// earlier failures in a row.
fn more_after(refused: u32) -> Duration {
    Duration::from_secs(1 << refused.min(6)).min(MORE_AFTER)
}

/// Retires one carrier.
async fn shrink(carriers: &dyn CarrierPool, bounds: config::Pool) {
    if !carriers.retire_one() {
        // No carrier can be retired while another is being retired, or before the session has
        // handled the loss of a carrier. Waits until the retirement or the loss has lowered the
        // number of carriers.
        let enough = |pool: &PoolState| pool.up <= wanted(bounds, pool);
        let _ = tokio::time::timeout(RETIRE_AGAIN, carriers.until(&enough)).await;
    }
}

/// Adds up to `count` carriers. Returns whether the first of them was established.
async fn add(
    mux: &dyn Mux,
    carriers: &dyn CarrierPool,
    route: &mut Route,
    (count, least): (usize, usize),
    dial_context: &DialContext,
    failures: u32,
) -> Result<bool, NoCarrier> {
    let ways = &dial_context.ways;
    // A session belongs to one exit, so the entry first dials the last address of this exit (`at`).
    // The address may have changed, so after two failures without a carrier the entry dials `exit`,
    // which may be a name.
    let at_peer = carriers.numbers().up > 0 || failures <= 1;
    let to = if at_peer { &route.at } else { &route.exit };
    let alone = Reached::default();
    // The exit limits the time between a connection and its hello.
    let further = (1..count).map(|_| {
        let connects = connect_by(route.by, to, dial_context, &alone);
        tokio::time::timeout(FURTHER_DIAL_MAX, connects)
    });
    let first = dial(carriers, route.by, to, least, dial_context, failures);
    let (first, further) = tokio::join!(first, join_all(further));
    let (by, carrier) = first?;
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
            // New streams must not wait for this session: its exit is unreachable, but another exit
            // may be reachable.
            mux.leave();
        }
        return Ok(false);
    }
    ways.heard(by);
    if !at_peer {
        route.at = led_to;
    }
    if by != route.by {
        // All carriers change to the transport that connected.
        carriers.outdate(&|carrier| carrier.transport != by);
        route.by = by;
        return Ok(true);
    }
    // The session completes one hello after another.
    for carrier in further.into_iter().flatten().flatten() {
        let Ok(added) = carriers.add(carrier, Vec::new(), None) else {
            break;
        };
        if !added.await {
            break;
        }
    }
    Ok(true)
}

/// Connects to `to` over the transport of the other carriers. Any transport may be used if no
/// carrier is left, if the previous dial failed, or if fewer than `least` carriers are left.
async fn dial(
    carriers: &dyn CarrierPool,
    by: CarrierTransport,
    to: &Address,
    least: usize,
    dial_context: &DialContext,
    failures: u32,
) -> std::io::Result<(CarrierTransport, Carrier)> {
    let PoolState { up, outdated, .. } = carriers.numbers();
    let alone = Reached::default();
    if up == 0 || failures > 0 {
        return connect(to, dial_context, &alone).await;
    }
    let too_few = up.saturating_sub(outdated) < least;
    match connect_by(by, to, dial_context, &alone).await {
        Ok(carrier) => Ok((by, carrier)),
        Err(_) if too_few && dial_context.ways.are_several() => {
            connect(to, dial_context, &alone).await
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;

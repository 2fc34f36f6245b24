//! Keeps as many carriers in a session as are needed: dials those that are lost, more where the network
//! holds all of them up, and retires what is of no use.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config as config;
use rand::RngExt;
use tokio::net::TcpStream;

use crate::driver::{Driver, NoCarrier, PoolState};

/// First pause before a carrier is dialled again; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A carrier that is lost sooner after another came up is replaced after a short pause, else at once.
const REDIAL_AFTER: Duration = Duration::from_secs(1);
/// A carrier beyond the least number that does not come up is not dialled again sooner.
const MORE_AFTER: Duration = Duration::from_secs(60);
/// One that cannot be retired for now may be after this.
const RETIRE_AGAIN: Duration = Duration::from_secs(1);
/// One attempt to connect, or to find a name's addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Full range: half to all of the doubled pause, so that entries do not come back in step.
pub(super) async fn pause(failures: u32) {
    tokio::time::sleep(backoff(failures, rand::rng().random())).await;
}

/// `random`: 0..1.
fn backoff(failures: u32, random: f64) -> Duration {
    let pause = BACKOFF_MIN
        .saturating_mul(1 << failures.saturating_sub(1).min(10))
        .min(BACKOFF_MAX);
    pause.mul_f64(0.5 + random / 2.0)
}

/// The addresses of all names in `exits`; those that lead nowhere count only where all do.
pub(super) async fn resolve(exits: &str) -> std::io::Result<Vec<SocketAddr>> {
    let (mut addresses, mut last) = (Vec::new(), None);
    for exit in exits.split(',') {
        match in_time(tokio::net::lookup_host(exit)).await {
            Ok(found) => addresses.extend(found),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) if addresses.is_empty() => Err(error),
        _ => Ok(addresses),
    }
}

pub(super) async fn connect(exit: &str) -> std::io::Result<TcpStream> {
    in_time(TcpStream::connect(exit)).await
}

async fn in_time<T>(attempt: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    tokio::time::timeout(CONNECT_TIMEOUT, attempt)
        .await
        .map_err(|_| {
            std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
            )
        })?
}

/// How many carriers there are to be, whatever the peer says.
fn wanted(bounds: config::Pool, pool: &PoolState) -> usize {
    pool.wanted().clamp(bounds.min.into(), bounds.max.into())
}

/// Dials and retires one carrier after another; never ends.
pub(super) async fn keep(driver: &Rc<Driver>, exit: &str, bounds: config::Pool) -> Infallible {
    let (mut failures, mut latest) = (0_u32, Instant::now());
    loop {
        let PoolState { up, .. } = driver.pool();
        let wanted = wanted(bounds, &driver.pool());
        if up > wanted {
            shrink(driver, bounds).await;
            continue;
        }
        if up == wanted {
            driver
                .until_pool(|pool| pool.up != self::wanted(bounds, pool))
                .await;
            if latest.elapsed() < REDIAL_AFTER {
                pause(1).await;
            }
            continue;
        }
        if failures > 0 {
            pause(failures).await;
        }
        let before = driver.pool().up;
        let least = bounds.min.into();
        match add(driver, exit, failures).await {
            Ok(true) => (failures, latest) = (0, Instant::now()),
            Ok(false) | Err(NoCarrier::Io(_)) if before >= least => {
                tracing::info!(%exit, carriers = before, "No further carrier");
                let _ = tokio::time::timeout(MORE_AFTER, driver.lacks(least)).await;
            }
            Ok(false) => failures += 1,
            Err(NoCarrier::Refused(_)) if before > 0 => {
                let peer = driver.peer();
                tracing::info!(%exit, %peer, carriers = before, "The session takes no more carriers");
                driver.lacks(before).await;
            }
            Err(error) => {
                tracing::warn!(code = %Code::CarrierConnecting, %exit, %error, "No carrier for a session that goes on");
                failures += 1;
            }
        }
    }
}

/// One carrier fewer.
async fn shrink(driver: &Rc<Driver>, bounds: config::Pool) {
    if !driver.retire_newest() {
        // Another one is being retired, or a lost one is not settled.
        let enough = driver.until_pool(|pool| pool.up <= wanted(bounds, pool));
        let _ = tokio::time::timeout(RETIRE_AGAIN, enough).await;
    }
}

/// Whether it came up.
async fn add(driver: &Rc<Driver>, exit: &str, failures: u32) -> Result<bool, NoCarrier> {
    // Where a name leads to several exits, the session is at one of them; but that one may have moved.
    let peer = driver.peer();
    let at_peer = driver.pool().up > 0 || failures <= 1;
    let tcp = connect(if at_peer { &peer } else { exit }).await?;
    let carrier = driver.add_carrier(tcp, Vec::new(), None)?;
    Ok(carrier.settled().await)
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

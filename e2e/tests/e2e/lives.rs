//! Short lifetimes of certificates and join bundles, for the tests of renewal.

use anyhow::Result;
use muxtunnel_e2e::turn::{Both, Turn};
use muxtunnel_e2e::{Cluster, turn};
use tokio::sync::Mutex;

/// The chart's default lifetimes of certificates and of join bundles.
const LIVES: [&str; 2] = ["24h", "8760h"];
/// Short lifetimes. A certificate is renewed after two thirds of its lifetime. The kubelet must
/// deliver the new certificate within the last third of the lifetime. It reads Secrets every 10 s.
const SHORT: [&str; 2] = ["90s", "270s"];

/// The number of tests that currently use short lifetimes, and their turn. Changed authorities must
/// not affect other tests.
static USERS: Mutex<(u32, Option<Turn<Both>>)> = Mutex::const_new((0, None));

/// Runs `test` while the operators of both clusters issue certificates with short lifetimes.
/// Several such tests run in parallel and use the clusters exclusively. The last of these tests
/// restores the default lifetimes.
pub(crate) async fn with_short_lives<T>(test: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    {
        let mut users = USERS.lock().await;
        if users.0 == 0 {
            users.1 = Some(turn::both().await?);
            set(SHORT).await?;
        }
        users.0 += 1;
    }
    let outcome = test().await;
    let mut users = USERS.lock().await;
    users.0 -= 1;
    if users.0 == 0 {
        let last = set(LIVES).await;
        users.1 = None;
        last?;
    }
    outcome
}

async fn set([life, authority_life]: [&str; 2]) -> Result<()> {
    let value = format!("certificates.life={life:?},certificates.authorityLife={authority_life:?}");
    let _installation = turn::installation().await;
    tokio::try_join!(
        Cluster::First.set_value(&value),
        Cluster::Second.set_value(&value)
    )?;
    Ok(())
}

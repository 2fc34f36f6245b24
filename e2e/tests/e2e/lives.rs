//! Short lives of certificates and join bundles, for the tests of renewal.

use anyhow::Result;
use muxtunnel_e2e::turn::{Both, Turn};
use muxtunnel_e2e::{Cluster, turn};
use tokio::sync::Mutex;

/// What the chart says of the lives of certificates, and of the bundles that they are issued by.
const LIVES: [&str; 2] = ["24h", "8760h"];
/// Two thirds of a life are its use, the last third is what a kubelet has for a renewed Secret: it looks every 10 s.
const SHORT: [&str; 2] = ["90s", "270s"];

/// The tests that want short lives now, and their turn: other authorities are no others' business.
static USERS: Mutex<(u32, Option<Turn<Both>>)> = Mutex::const_new((0, None));

/// Runs `test` while both clusters' operators issue for short lives. Several such tests run side by side, and have the
/// clusters to themselves; the last one puts the usual lives back.
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

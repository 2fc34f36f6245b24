//! Tunnels whose operators are away on both sides, while the clocks of the gateways are wrong.

use muxtunnel_e2e::clock::Clock;

use super::*;

/// Duration of the traffic without operators.
const AWAY: Duration = Duration::from_secs(10);
/// Days by which the clocks are moved.
const CLOCK_DAYS: i64 = 400;

#[tokio::test]
async fn without_operators_and_with_clocks_moved_by_400_days_gateways_come_back() -> Result<()> {
    let _turn = turn::both().await?;
    with_temp_ns_in_both("alone", PodSecurity::Restricted, async |near, far| {
        let site = Site::up(near, far).await?;
        let (_, key) = site.entry("near").await?;
        admit(far, "near", &[key]).await?;
        tunnel::ready(near, "near").await?;
        let replicas = [
            operator::replicas(near).await?,
            operator::replicas(far).await?,
        ];
        let away = async {
            tokio::try_join!(operator::scale(near, 0), operator::scale(far, 0))?;
            gateways_come_back(near, far).await
        };
        let away = away.await;
        let [first, second] = replicas;
        tokio::try_join!(operator::scale(near, first), operator::scale(far, second))?;
        away?;
        tunnel::ready_of::<MuxExit>(far, "far").await?;
        tunnel::ready(near, "near").await?;
        works(near, "after", "near").await
    })
    .await
}

async fn gateways_come_back(near: &TestNamespace, far: &TestNamespace) -> Result<()> {
    let [exit, entry] = [
        tunnel::selector::<MuxExit>("far", "exit"),
        tunnel::selector::<MuxTunnel>("near", "entry"),
    ];
    let exit = Clock::install(far, "far-exit", exit).await?;
    let entry = Clock::install(near, "near-entry", entry).await?;
    load(near, "load", "near", 20, OTHER_STREAMS).await?;
    exit.set(CLOCK_DAYS).await.context("the exit's clock")?;
    entry.set(CLOCK_DAYS).await.context("the entry's clock")?;
    tokio::time::sleep(AWAY).await;
    let load = pods::end_load(near, "load", LOAD_ENDS).await?;
    ensure!(load.failed_opens() + load.lost_streams() == 0, "{load:?}");
    comes_back::<MuxExit>(far, "far", "exit").await?;
    // The load waits until the carriers are up again.
    works(near, "after-exit", "near").await?;
    comes_back::<MuxTunnel>(near, "near", "entry").await?;
    works(near, "after-entry", "near").await?;
    exit.remove().await?;
    entry.remove().await
}

/// Deletes the only gateway of an end, and waits for its successor.
async fn comes_back<K: Object>(ns: &TestNamespace, name: &str, end: &str) -> Result<()> {
    let old = gateway::<K>(ns, name, end).await?;
    let pods = ns.api::<Pod>();
    let how = DeleteParams::default().grace_period(0);
    pods.delete(&old.name_any(), &how).await?;
    let what = format!("another {end} is ready");
    wait::until(&what, WITHIN, async || {
        let new = gateway::<K>(ns, name, end).await.ok();
        let new = new.filter(|new| new.uid() != old.uid() && pods::is_ready(new));
        Ok(new.map(drop))
    })
    .await
}

//! Short forms of the faults of `make faults`. The tests check that a fault affects no other
//! connections and streams. They also limit the number of opens that fail after an exit is killed.

use anyhow::{Context, Result, ensure};
use muxtunnel_bench_api::load::Report;
use muxtunnel_e2e::faults::{Outcome, Scale, control_plane, gateways};
use muxtunnel_e2e::{Cluster, turn};

/// The scale of a fault whose load ends soon after the fault.
const fn scale(cluster: Cluster, away_seconds: u32) -> Scale {
    Scale {
        cluster,
        load_seconds: 0,
        away_seconds,
    }
}

fn load(outcome: &Outcome) -> Result<&Report> {
    outcome.load.as_ref().context("a load")
}

/// Asserts that no connection failed and no stream was lost.
fn nothing_is_lost(outcome: &Outcome) -> Result<()> {
    let load = load(outcome)?;
    ensure!(
        load.failed_opens() + load.lost_streams() == 0,
        "{outcome:?}"
    );
    Ok(())
}

#[tokio::test]
async fn gateways_of_both_sides_restart_one_by_one_and_no_connection_fails() -> Result<()> {
    let _turn = turn::both().await?;
    // The function of the fault returns an error if a connection failed.
    gateways::both_restarted(scale(Cluster::First, 0)).await?;
    Ok(())
}

/// Maximum number of opens that fail after an exit is killed. These are pending opens, and opens
/// that the entries send before they detect the failure: at most the opens of one second
/// (docs/reliability.md). The test counts opens and does not measure time, because a busy machine
/// takes longer.
const FAILED_OPENS_MAX: u64 = 200;

#[tokio::test]
async fn a_killed_exit_takes_no_more_than_its_own_streams() -> Result<()> {
    let _turn = turn::both().await?;
    // The function of each fault checks that no connection fails after recovery, and that no lost
    // connection ends like a complete connection.
    let outcome = gateways::process_killed("exit", scale(Cluster::First, 0)).await?;
    let load = load(&outcome)?;
    ensure!(load.failed_opens() <= FAILED_OPENS_MAX, "{outcome:?}");
    ensure!(
        (1..=20).contains(&load.lost_streams()),
        "expected that the killed exit had some of the streams, but not all: {outcome:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_killed_leader_is_followed_by_another_and_nothing_is_lost() -> Result<()> {
    let _turn = turn::both().await?;
    let outcome = control_plane::leader_killed(scale(Cluster::Second, 0)).await?;
    println!("{:.1} s {}", outcome.whole_seconds, outcome.note);
    nothing_is_lost(&outcome)
}

#[tokio::test]
async fn tunnels_need_no_operator() -> Result<()> {
    let _turn = turn::both().await?;
    nothing_is_lost(&control_plane::operator_away(scale(Cluster::Second, 20)).await?)
}

#[tokio::test]
async fn tunnels_need_no_api_server() -> Result<()> {
    let _turn = turn::both().await?;
    nothing_is_lost(&control_plane::api_server_away(scale(Cluster::Second, 20)).await?)
}

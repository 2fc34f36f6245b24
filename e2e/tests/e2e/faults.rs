//! Short forms of the faults that `make faults` measures: what must not fail does not. Of times one is judged: for how
//! long opens fail.

use anyhow::{Context, Result, ensure};
use muxtunnel_bench_api::load::Report;
use muxtunnel_e2e::faults::{Outcome, Scale, control_plane, gateways};
use muxtunnel_e2e::{Cluster, turn};

/// The load goes on for as long as the fault.
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

/// No connection failed and no stream was lost.
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
    // A failed connection is an error of the fault itself.
    gateways::both_restarted(scale(Cluster::First, 0)).await?;
    Ok(())
}

/// Of a killed exit's opens those fail that were under way, and what its entries send to it until they see its end: at
/// most the opens of a second, from docs/reliability.md. Here they are counted, since a busy machine makes seconds longer.
const FAILED_OPENS_MAX: u64 = 200;

#[tokio::test]
async fn a_killed_exit_takes_no_more_than_its_own_streams() -> Result<()> {
    let _turn = turn::both().await?;
    // That nothing fails afterwards, and nothing ends early as if it were well, is a part of each fault.
    let outcome = gateways::process_killed("exit", scale(Cluster::First, 0)).await?;
    let load = load(&outcome)?;
    ensure!(load.failed_opens() <= FAILED_OPENS_MAX, "{outcome:?}");
    ensure!(
        (1..=20).contains(&load.lost_streams()),
        "a killed exit has streams, and is not the only one: {outcome:?}"
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

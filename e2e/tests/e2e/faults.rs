//! Short forms of the faults that `make faults` measures: what must not fail does not. Times are not judged.

use anyhow::{Context, Result, ensure};
use muxtunnel_bench_api::load::Report;
use muxtunnel_e2e::faults::{Outcome, Scale, control_plane, gateways};

const fn scale(load_seconds: u32, away_seconds: u32) -> Scale {
    Scale {
        load_seconds,
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
    // A failed connection is an error of the fault itself.
    gateways::both_restarted(scale(40, 0)).await?;
    Ok(())
}

#[tokio::test]
async fn a_killed_exit_takes_no_more_than_its_own_streams() -> Result<()> {
    // That nothing fails afterwards, and nothing ends early as if it were well, is a part of each fault.
    let outcome = gateways::process_killed("exit", scale(20, 0)).await?;
    let load = load(&outcome)?;
    ensure!(load.failed_opens() < load.opens / 10, "{outcome:?}");
    Ok(())
}

#[tokio::test]
async fn a_killed_leader_is_followed_by_another_and_nothing_is_lost() -> Result<()> {
    // The load outlasts the Lease.
    let outcome = control_plane::leader_killed(scale(30, 0)).await?;
    println!("{:.1} s {}", outcome.whole_seconds, outcome.note);
    nothing_is_lost(&outcome)
}

#[tokio::test]
async fn tunnels_need_no_operator() -> Result<()> {
    nothing_is_lost(&control_plane::operator_away(scale(35, 20)).await?)
}

#[tokio::test]
async fn tunnels_need_no_api_server() -> Result<()> {
    nothing_is_lost(&control_plane::api_server_away(scale(60, 20)).await?)
}

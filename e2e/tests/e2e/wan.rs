//! An emulated WAN has the requested delay.

use std::time::Duration;

use anyhow::{Result, ensure};
use muxtunnel_crds::condition;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, tunnel, turn, wait, with_temp_ns};

use crate::{EMULATED_RTT_MS, tunnel_to_web};

#[tokio::test]
async fn fifty_milliseconds_each_way_make_a_round_trip_of_one_hundred() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("wan", PodSecurity::Privileged, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        let up = tunnel::up(ns, &tunnel_to_web("wanEmulation: {delayMilliseconds: 50}")).await?;
        ensure!(
            tunnel::is_true(&up, condition::WAN_EMULATED),
            "WANEmulated is not true"
        );

        let probe = ["round-trips.sh", "t-entry", "8080", "20"];
        let printed = pods::run(ns, "client", &probe, Duration::from_secs(180)).await?;
        let mut microseconds = printed
            .lines()
            .map(str::parse)
            .collect::<Result<Vec<u32>, _>>()?;
        ensure!(
            microseconds.len() == 20,
            "expected 20 round trips, measured {}",
            microseconds.len()
        );
        microseconds.sort_unstable();
        // Load on the machine can only lengthen a round trip, so the shortest round trip shows the
        // delay.
        let least_ms = f64::from(microseconds[0]) / 1000.0;
        println!("round-trip time: least {least_ms} ms of {microseconds:?} us");
        ensure!(
            EMULATED_RTT_MS.contains(&least_ms),
            "the shortest round trip takes {least_ms} ms"
        );

        let entry = tunnel::gateways(ns, "t", "entry").await?.remove(0);
        let what = "the gateway reports the carrier's round-trip time";
        wait::until(what, Duration::from_secs(180), async || {
            let status = tunnel::status(ns, &entry).await?;
            let carriers = status["carriers"].as_array().into_iter().flatten();
            let mut rtts_ms = carriers.filter_map(|one| one["rttMilliseconds"].as_f64());
            Ok(rtts_ms
                .any(|rtt_ms| EMULATED_RTT_MS.contains(&rtt_ms))
                .then_some(()))
        })
        .await?;
        Ok(())
    })
    .await
}

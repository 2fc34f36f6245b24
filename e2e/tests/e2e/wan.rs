//! An emulated WAN has the requested delay.

use std::time::Duration;

use anyhow::{Result, ensure};
use muxtunnel_crds::tunnel_condition;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, tunnel, turn, wait, with_temp_ns};

use crate::{EMULATED_RTT_MS, tunnel_to_web};

#[tokio::test]
async fn fifty_milliseconds_each_way_make_a_round_trip_of_one_hundred() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("wan", PodSecurity::Privileged, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        let up = tunnel::up(ns, &tunnel_to_web("wan: {delay: 50ms}")).await?;
        ensure!(
            tunnel::is_true(&up, tunnel_condition::WAN_EMULATED),
            "WanEmulated is not true"
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

        let tunnels = ns.api();
        let what = "the status has the carrier's round-trip time";
        wait::for_object(
            &tunnels,
            "t",
            what,
            Duration::from_secs(180),
            |tunnel: &muxtunnel_crds::MuxTunnel| {
                let carriers = tunnel
                    .status
                    .as_ref()
                    .and_then(|status| status.carriers.as_ref());
                let rtt_ms = carriers.and_then(|carriers| carriers.rtt_milliseconds);
                rtt_ms.is_some_and(|rtt_ms| EMULATED_RTT_MS.contains(&rtt_ms))
            },
        )
        .await?;
        Ok(())
    })
    .await
}

//! A MuxBenchmark completes, and the log of its Job contains the matrix.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ListParams;
use muxtunnel_crds::{MuxTunnel, condition};
use muxtunnel_e2e::{PodSecurity, benchmark, turn, wait, with_temp_ns};
use serde_json::{Value, json};

use crate::EMULATED_RTT_MS;

#[tokio::test]
async fn a_small_matrix_completes_with_every_cell_measured_at_the_delay_asked_for() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("benchmark", PodSecurity::Privileged, async |ns| {
        let yaml = "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxBenchmark
metadata: {name: small}
spec:
  tunnel: {security: {mode: None}}
  connections: [1, 2]
  delayMilliseconds: [50, 0]
  profiles: [WAN]
  protocols: [JMUX, Native]
  durationSeconds: 3
  warmUpSeconds: 1
  rounds: 1
";
        let name = benchmark::create(ns, yaml).await?;
        let outcome = benchmark::end(ns, &name, Duration::from_secs(420)).await?;
        println!("{}", outcome.log);
        assert!(benchmark::is_true(&outcome.benchmark, condition::COMPLETE));
        let status = outcome.benchmark.status.as_ref().context("a status")?;
        let cells = status.cells.as_ref().context("cells")?;
        assert_eq!((cells.total, cells.ok), (12, 12));

        assert_eq!(outcome.cells().count(), 12);
        for protocol in [Value::Null, json!("jmux"), json!("native")] {
            let of_protocol = outcome.cells().filter(|cell| cell["protocol"] == protocol);
            assert_eq!(of_protocol.count(), 4, "{protocol}");
        }
        for cell in outcome.cells() {
            assert_eq!(cell["status"], "ok", "{cell}");
            // The rate itself depends on the machine.
            assert!(
                cell["mbit_s"]["median"].as_f64().context("a figure")? > 0.0,
                "{cell}"
            );
            let rtt_ms = cell["rtt_ms"].as_f64().context("a round-trip time")?;
            match cell["one_way_delay_ms"].as_f64() {
                Some(50.0) => assert!(EMULATED_RTT_MS.contains(&rtt_ms), "{cell}"),
                _ => println!("round-trip time without emulation: {rtt_ms} ms"),
            }
        }
        assert_eq!(
            outcome.lines.last().context("a last line")?["type"],
            "summary"
        );
        let widest = outcome
            .log
            .lines()
            .filter(|line| !line.starts_with("MUXBENCH "))
            .map(|line| line.chars().count())
            .max();
        assert!(widest <= Some(100), "a line of {widest:?} columns");
        assert!(outcome.results.data.is_some_and(|data| !data.is_empty()));

        wait::until(
            "the environments are removed",
            Duration::from_secs(180),
            async || {
                let tunnels = ns
                    .api::<MuxTunnel>()
                    .list(&ListParams::default())
                    .await?
                    .items;
                let deployments = ns
                    .api::<Deployment>()
                    .list(&ListParams::default())
                    .await?
                    .items;
                Ok((tunnels.is_empty() && deployments.is_empty()).then_some(()))
            },
        )
        .await
    })
    .await
}

#[tokio::test]
async fn ip_packets_are_measured_between_the_pods_of_the_gateways() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("benchmark", PodSecurity::Privileged, async |ns| {
        let yaml = "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxBenchmark
metadata: {name: routed}
spec:
  tunnel: {security: {mode: None}}
  connections: [1, 2]
  delayMilliseconds: [50, 0]
  profiles: [None]
  paths: [Direct, Network]
  udp: {bitsPerSecond: 20M}
  durationSeconds: 3
  warmUpSeconds: 1
  rounds: 1
";
        let name = benchmark::create(ns, yaml).await?;
        let outcome = benchmark::end(ns, &name, Duration::from_secs(420)).await?;
        println!("{}", outcome.log);
        let network = outcome.cells().filter(|cell| cell["path"] == "network");
        let network: Vec<_> = network.collect();
        assert_eq!((outcome.cells().count(), network.len()), (8, 4));
        for cell in outcome.cells() {
            datagrams_are_plausible(cell)?;
        }
        for cell in network {
            assert_eq!(
                (&cell["status"], &cell["protocol"]),
                (&json!("ok"), &json!("native")),
                "{cell}"
            );
            let rate = cell["mbit_s"]["median"].as_f64().context("a figure")?;
            assert!(rate > 0.0, "{cell}");
            let rtt_ms = cell["rtt_ms"].as_f64().context("a round-trip time")?;
            if cell["one_way_delay_ms"] == 50 {
                assert!(EMULATED_RTT_MS.contains(&rtt_ms), "{cell}");
            }
        }
        assert!(outcome.log.contains("| network|"), "a row of the table");
        let table = outcome.log.split_once("UDP and ping-pong on the idle path");
        let (_, table) = table.context("the table of UDP and ping-pong")?;
        let rows = table.lines();
        let rows = rows.filter(|line| line.contains("| network|    20.0 "));
        assert_eq!(rows.count(), 2, "rows of UDP and ping-pong");
        Ok(())
    })
    .await
}

/// Asserts that the figures of datagrams in a cell agree with one another and with the requested
/// rate of 20 Mbit/s, and that the round trips have the delay of the cell. The number of datagrams
/// and losses depends on the machine, so the test does not judge these figures.
fn datagrams_are_plausible(cell: &Value) -> Result<()> {
    let figure = |group: &str, name: &str| {
        let figure = cell[group][name].as_f64();
        figure.with_context(|| format!("no {group}.{name}: {cell}"))
    };
    assert_eq!(cell["udp"]["datagram_bytes"], 1400, "{cell}");
    assert!((figure("udp", "sent_mbit_s")? - 20.0).abs() < 0.5, "{cell}");
    let (received, datagrams) = (figure("udp", "mbit_s")?, figure("udp", "datagrams")?);
    let lost_percent = figure("udp", "lost_percent")?;
    assert!(received > 0.0 && datagrams >= 1.0, "{cell}");
    assert!((0.0..100.0).contains(&lost_percent), "{cell}");
    // No more than the requested rate arrives. 20 Mbit/s * 3 s / (8 * 1400 bit) = 5357 datagrams.
    // The margin is for the datagrams that wait in queues when the warm-up ends.
    assert!(received < 25.0 && datagrams < 6500.0, "{cell}");
    assert!(figure("udp", "out_of_order")? <= datagrams, "{cell}");

    assert!(
        (1.0..=1000.0).contains(&figure("ping_pong", "exchanges")?),
        "{cell}"
    );
    let (p50_us, p99_us) = (
        figure("ping_pong", "p50_us")?,
        figure("ping_pong", "p99_us")?,
    );
    assert!(p50_us > 0.0 && p50_us <= p99_us, "{cell}");
    if cell["one_way_delay_ms"] == 50 {
        assert!(EMULATED_RTT_MS.contains(&(p50_us / 1e3)), "{cell}");
    }
    Ok(())
}

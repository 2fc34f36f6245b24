//! Measures UDP and ping-pong on an idle route, once for each environment, before its runs of TCP.

use std::time::Duration;

use anyhow::{Context, ensure};
use muxtunnel_bench_api::agent::{ClientRun, ServerReport, UdpLoad};
use muxtunnel_bench_api::result::{PingPong, Status, Udp};
use muxtunnel_bench_api::runner::Unavailable;
use muxtunnel_bench_api::{Matrix, PING_PONGS_MIN, PROBES_MAX};
use muxtunnel_codes::Code;

use super::environment::Survey;
use super::transfer::{complaints, transfer};
use crate::http_client::Client;
use crate::statistics::{percentile, rounded};

/// Least duration of UDP in seconds. iperf prints a total only after the line of a whole second. A
/// run of one second can end a few microseconds too early for that line.
const UDP_SECONDS_MIN: u32 = 2;

/// Measures UDP and ping-pong. A failure is stored as the reason (`trouble`) why the route cannot
/// be measured, so the cells of the route are not measured.
pub(super) async fn measure(client: &Client, matrix: &Matrix, survey: &mut Survey) {
    if let Err(error) = fill(client, matrix, survey).await {
        survey.trouble = Some(Unavailable {
            status: Status::Failed,
            code: Code::BenchmarkToolFailed.to_string(),
            reason: format!("{error:#}"),
        });
    }
}

async fn fill(client: &Client, matrix: &Matrix, survey: &mut Survey) -> anyhow::Result<()> {
    let rtt_ms = survey.rtt_ms.unwrap_or_default();
    let exchanges = exchanges(matrix.duration_s, rtt_ms);
    let longest = Duration::from_secs_f64(f64::from(exchanges) * rtt_ms / 1e3);
    let rtts_ms = survey.round_trips(client, exchanges, longest).await;
    survey.ping_pong = Some(ping_pong(&rtts_ms.context("ping-pong")?)?);

    let load = UdpLoad {
        bits_per_second: matrix.udp_bits_per_second,
        datagram_bytes: matrix.datagram_bytes(),
    };
    let request = ClientRun {
        host: survey.pair.host.clone(),
        port: survey.pair.iperf_port,
        connections: 1,
        seconds: matrix.duration_s.max(UDP_SECONDS_MIN),
        udp: Some(load),
    };
    let sent_and_received = transfer(client, &survey.pair, &request).await;
    let (sent, received) = sent_and_received.context("UDP")?;
    let figures = udp(load, &received).with_context(|| format!("UDP: {}", complaints(&sent)));
    survey.udp = Some(figures?);
    Ok(())
}

/// The number of round trips that fit into a run, but at least [`PING_PONGS_MIN`] and at most
/// [`PROBES_MAX`].
fn exchanges(duration_s: u32, rtt_ms: f64) -> u32 {
    let fitting = f64::from(duration_s) * 1e3 / rtt_ms.max(0.001);
    (fitting as u32).clamp(PING_PONGS_MIN, PROBES_MAX)
}

fn ping_pong(rtts_ms: &[f64]) -> anyhow::Result<PingPong> {
    let micros = |share| {
        let value = percentile(rtts_ms, share).context("no round trip")?;
        anyhow::Ok(rounded(value * 1e3, 1))
    };
    Ok(PingPong {
        exchanges: rtts_ms.len() as u32,
        p50_us: micros(0.5)?,
        p99_us: micros(0.99)?,
    })
}

fn udp(load: UdpLoad, received: &ServerReport) -> anyhow::Result<Udp> {
    let (connected, ended) = (received.connected, received.ended);
    ensure!(connected > 0, "no datagram reached the iperf server");
    let datagrams = received.datagrams.with_context(|| {
        format!("{ended} of {connected} streams of datagrams ended at the iperf server, so it reported no figures")
    })?;
    ensure!(
        datagrams.sent > 0 && datagrams.seconds > 0.0,
        "the iperf server counted no datagrams"
    );
    Ok(Udp {
        sent_mbit_s: load.bits_per_second as f64 / 1e6,
        datagram_bytes: load.datagram_bytes,
        mbit_s: rounded(received.bytes as f64 * 8.0 / datagrams.seconds / 1e6, 3),
        datagrams: datagrams.sent,
        lost_percent: rounded(100.0 * datagrams.lost as f64 / datagrams.sent as f64, 4),
        out_of_order: datagrams.out_of_order,
    })
}

#[cfg(test)]
mod tests {
    use muxtunnel_bench_api::agent::Datagrams;

    use super::*;

    const LOAD: UdpLoad = UdpLoad {
        bits_per_second: 5_000_000,
        datagram_bytes: 1400,
    };

    #[test]
    fn round_trips_fit_into_a_run_but_suffice_for_a_percentile() {
        assert_eq!(exchanges(60, 100.0), 600);
        assert_eq!(exchanges(6, 100.0), 100);
        assert_eq!(exchanges(6, 0.1), 1000);
        assert_eq!(exchanges(6, 0.0), 1000);
    }

    #[test]
    fn ping_pongs_are_in_microseconds() {
        let mut rtts_ms = vec![0.1; 98];
        rtts_ms.extend([7.25, 9.0]);
        let expected = PingPong {
            exchanges: 100,
            p50_us: 100.0,
            p99_us: 7250.0,
        };
        assert_eq!(ping_pong(&rtts_ms).unwrap(), expected);
        assert!(ping_pong(&[]).is_err());
    }

    #[test]
    fn datagrams_are_a_rate_and_a_share() {
        let received = ServerReport {
            connected: 1,
            ended: 1,
            bytes: 1_251_600,
            datagrams: Some(Datagrams {
                sent: 896,
                lost: 2,
                out_of_order: 8,
                seconds: 2.0026,
            }),
            ..ServerReport::default()
        };
        let expected = Udp {
            sent_mbit_s: 5.0,
            datagram_bytes: 1400,
            mbit_s: 5.0,
            datagrams: 896,
            lost_percent: 0.2232,
            out_of_order: 8,
        };
        assert_eq!(udp(LOAD, &received).unwrap(), expected);
    }

    #[test]
    fn datagrams_that_never_arrived_are_an_error() {
        let error = udp(LOAD, &ServerReport::default()).unwrap_err();
        assert_eq!(error.to_string(), "no datagram reached the iperf server");
        let open = ServerReport {
            connected: 1,
            ..ServerReport::default()
        };
        let error = udp(LOAD, &open).unwrap_err();
        assert_eq!(
            error.to_string(),
            "0 of 1 streams of datagrams ended at the iperf server, so it reported no figures"
        );
    }
}

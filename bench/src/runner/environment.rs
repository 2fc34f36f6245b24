//! Surveys an environment before its measurements: the agents' versions, the round trip of each
//! route, and whether it matches the requested delay.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use muxtunnel_bench_api::agent::{Info, RttProbe, RttReport};
use muxtunnel_bench_api::result::{PingPong, Status, Udp};
use muxtunnel_bench_api::runner::{Environment, Pair, Unavailable};
use muxtunnel_bench_api::{EnvironmentKey, Matrix, PROBES, Path, Route};
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Role;
use muxtunnel_gateway_config::status::Status as GatewayStatus;

use super::board::ends;
use crate::http_client::Client;
use crate::statistics::rounded;

/// Time-out of requests that an agent or gateway answers from memory.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out for all probes of a path: enough for the largest delay on a busy machine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(600);
/// Time-out for the first probe of a path. After the pods are ready, every node needs a short time
/// to configure the entry's Service. Until then, the Service refuses connections.
const FIRST_PROBE_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between attempts of the first probe.
const FIRST_PROBE_PAUSE: Duration = Duration::from_secs(1);
/// Least number of measurements before a round trip is judged as wrong, because other load on the
/// machine can falsify a measurement.
const PROBE_ATTEMPTS_MIN: u32 = 3;
/// If a round trip is wrong, further measurements begin until this time has passed.
const PROBING: Duration = Duration::from_secs(20);
/// Pause between two measurements.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// Tolerance of the round trip, as a share of the requested round trip (twice the one-way delay).
/// The tolerance is at least 5 ms.
const RTT_TOLERANCE: f64 = 0.1;
const RTT_TOLERANCE_MS_MIN: f64 = 5.0;

/// The survey of a route.
#[derive(Debug, Clone)]
pub(super) struct Survey {
    pub(super) route: Route,
    pub(super) pair: Pair,
    pub(super) rtt_ms: Option<f64>,
    pub(super) iperf: Option<String>,
    pub(super) kernel: Option<String>,
    pub(super) congestion_control: Option<String>,
    pub(super) carriers: Option<u32>,
    pub(super) sysctls: BTreeMap<String, String>,
    pub(super) udp: Option<Udp>,
    pub(super) ping_pong: Option<PingPong>,
    /// Status documents of the gateways on this route.
    pub(super) gateway_status_urls: Vec<String>,
    /// Why the route cannot be measured; `None` if it can be measured.
    pub(super) trouble: Option<Unavailable>,
}

/// Surveys the routes of the matrix one after another, so that probes do not disturb one another.
pub(super) async fn survey(
    client: &Client,
    matrix: &Matrix,
    key: &EnvironmentKey,
    environment: &Environment,
) -> Vec<Survey> {
    let mut surveys = Vec::new();
    for route in matrix.routes() {
        // The board rejects environments without the pairs of the matrix.
        let Some((pair, gateway_status_urls)) = ends(environment, &route) else {
            continue;
        };
        let mut survey = Survey::new(route, pair.clone(), gateway_status_urls.to_vec());
        if let Err(error) = survey.fill(client, key).await {
            survey.trouble = Some(Unavailable {
                status: Status::Failed,
                code: Code::BenchmarkEnvironmentFailed.to_string(),
                reason: format!("{error:#}"),
            });
        }
        surveys.push(survey);
    }
    surveys
}

impl Survey {
    fn new(route: Route, pair: Pair, gateway_status_urls: Vec<String>) -> Self {
        Self {
            route,
            pair,
            rtt_ms: None,
            iperf: None,
            kernel: None,
            congestion_control: None,
            carriers: None,
            sysctls: BTreeMap::new(),
            udp: None,
            ping_pong: None,
            gateway_status_urls,
            trouble: None,
        }
    }

    async fn fill(&mut self, client: &Client, key: &EnvironmentKey) -> anyhow::Result<()> {
        let ask = |url: &str| format!("{url}/v1/info");
        let info: Info = client.get(&ask(&self.pair.client_url), ASK_TIMEOUT).await?;
        let _: Info = client.get(&ask(&self.pair.server_url), ASK_TIMEOUT).await?;
        self.iperf = Some(info.iperf);
        self.kernel = Some(info.kernel);
        match self.route.path() {
            Path::Direct => {
                self.congestion_control = Some(info.congestion_control);
                self.sysctls = info.sysctls;
            }
            Path::Tunnel | Path::Network => self.fill_from_gateways(client).await?,
        }
        self.wait_until_open(client).await?;
        let until = Instant::now() + PROBING;
        for attempt in 1.. {
            let rtt_ms = self.probe(client, PROBES).await?;
            self.rtt_ms = Some(rounded(rtt_ms, 3));
            self.trouble = judge_rtt(rtt_ms, key.one_way_delay_ms);
            let is_last = attempt >= PROBE_ATTEMPTS_MIN && Instant::now() >= until;
            if self.trouble.is_none() || is_last {
                break;
            }
            tokio::time::sleep(PROBE_PAUSE).await;
        }
        Ok(())
    }

    async fn fill_from_gateways(&mut self, client: &Client) -> anyhow::Result<()> {
        let statuses = gateway_statuses(client, &self.gateway_status_urls).await?;
        self.carriers = carriers(&statuses);
        // Takes the figures of an entry, because entries send the payload over the delayed path.
        let mut entries = statuses.iter().filter(|status| status.role == Role::Entry);
        if let Some(entry) = entries.next() {
            self.sysctls = entry.sysctls.clone();
            let mut carriers = entry.carriers.iter();
            self.congestion_control = carriers.next().map(|c| c.congestion_control.clone());
        }
        Ok(())
    }

    /// Returns when the path has carried a probe.
    async fn wait_until_open(&self, client: &Client) -> anyhow::Result<()> {
        let begun = Instant::now();
        while let Err(error) = self.probe(client, 1).await {
            if begun.elapsed() > FIRST_PROBE_TIMEOUT {
                return Err(error.context(format!(
                    "no probe was answered within {} s",
                    FIRST_PROBE_TIMEOUT.as_secs()
                )));
            }
            tokio::time::sleep(FIRST_PROBE_PAUSE).await;
        }
        Ok(())
    }

    /// The least of the idle round trips, milliseconds. Other load on the machine can only lengthen
    /// a round trip.
    async fn probe(&self, client: &Client, probes: u32) -> anyhow::Result<f64> {
        let rtts_ms = self.round_trips(client, probes, Duration::ZERO).await?;
        let least = rtts_ms.into_iter().min_by(f64::total_cmp);
        least.with_context(|| format!("{} returned no round-trip time", self.pair.client_url))
    }

    /// Measures round trips of 64 bytes, in milliseconds. `longest`: additional time-out for many
    /// round trips.
    pub(super) async fn round_trips(
        &self,
        client: &Client,
        probes: u32,
        longest: Duration,
    ) -> anyhow::Result<Vec<f64>> {
        let request = RttProbe {
            host: self.pair.host.clone(),
            port: self.pair.echo_port,
            probes,
        };
        let url = format!("{}/v1/rtt", self.pair.client_url);
        let report: RttReport = client.post(&url, &request, PROBE_TIMEOUT + longest).await?;
        Ok(report.rtts_ms)
    }
}

/// Reads the status documents of gateways.
pub(super) async fn gateway_statuses(
    client: &Client,
    urls: &[String],
) -> anyhow::Result<Vec<GatewayStatus>> {
    let mut statuses = Vec::new();
    for url in urls {
        statuses.push(client.get(url, ASK_TIMEOUT).await?);
    }
    Ok(statuses)
}

/// Number of carriers of all entries; `None` without an entry.
pub(super) fn carriers(statuses: &[GatewayStatus]) -> Option<u32> {
    let entries = statuses.iter().filter(|status| status.role == Role::Entry);
    let counts = entries.map(|entry| entry.carriers.len() as u32);
    counts.reduce(|sum, count| sum + count)
}

/// Returns the refusal of a path with a wrong delay. Without emulation every round trip is
/// accepted.
fn judge_rtt(rtt_ms: f64, one_way_delay_ms: u32) -> Option<Unavailable> {
    let asked_ms = 2.0 * f64::from(one_way_delay_ms);
    let tolerance_ms = (asked_ms * RTT_TOLERANCE).max(RTT_TOLERANCE_MS_MIN);
    if one_way_delay_ms == 0 || (rtt_ms - asked_ms).abs() <= tolerance_ms {
        return None;
    }
    Some(Unavailable {
        status: Status::Refused,
        code: Code::BenchmarkDelayRefused.to_string(),
        reason: format!(
            "the idle path has an RTT of {rtt_ms:.1} ms; expected {asked_ms:.0} ms, twice the one-way delay"
        ),
    })
}

/// A log line about each route.
pub(super) fn describe(surveys: &[Survey]) -> Vec<String> {
    surveys.iter().map(describe_route).collect()
}

fn describe_route(survey: &Survey) -> String {
    let route = &survey.route;
    if let Some(trouble) = &survey.trouble {
        return format!("{route}: {} {}", trouble.code, trouble.reason);
    }
    let mut words = vec![format!("RTT {:.2} ms", survey.rtt_ms.unwrap_or_default())];
    let optional = [
        survey.congestion_control.clone(),
        survey
            .carriers
            .map(|count| format!("{count} carrier{}", if count == 1 { "" } else { "s" })),
        survey
            .iperf
            .as_ref()
            .map(|version| format!("iperf {version}")),
        survey
            .kernel
            .as_ref()
            .map(|kernel| format!("kernel {kernel}")),
    ];
    words.extend(optional.into_iter().flatten());
    let sysctls = survey
        .sysctls
        .iter()
        .map(|(name, value)| format!("{}={value}", name.strip_prefix("net.ipv4.").unwrap_or(name)));
    words.extend(
        sysctls.filter(|text| text.starts_with("tcp_rmem") || text.starts_with("tcp_wmem")),
    );
    format!("{route}: {}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_delay_is_refused_and_none_asked_is_never_wrong() {
        assert_eq!(judge_rtt(100.4, 50), None);
        assert_eq!(judge_rtt(91.0, 50), None);
        assert_eq!(judge_rtt(8.0, 5), None);
        assert_eq!(judge_rtt(30.0, 0), None);
        let refusal = judge_rtt(0.1, 50).unwrap();
        assert_eq!(refusal.status, Status::Refused);
        assert_eq!(
            refusal.reason,
            "the idle path has an RTT of 0.1 ms; expected 100 ms, twice the one-way delay"
        );
        assert!(judge_rtt(111.0, 50).is_some());
    }
}

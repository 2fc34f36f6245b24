//! Bulk by iperf 3. The client's JSON has the figures of the receiver. iperf itself omits the
//! warm-up.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{Outcome, Run};
use crate::{
    metric::{Figures, Metric},
    process::{self, Process, wait_until},
    system::Service,
    topology::Place,
};

/// Time-out for iperf to listen, and for iperf to end.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The fields of the client's JSON that the lab reads.
#[derive(Debug, Deserialize)]
struct Output {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    end: End,
}

#[derive(Debug, Default, Deserialize)]
struct End {
    sum_received: Option<Sum>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    pub(super) bits_per_second: f64,
}

impl Run<'_> {
    pub(super) fn bulk_iperf3(&self) -> Result<Outcome> {
        let network = &self.bench.network;
        let port = Service::Iperf3.port();
        let iperf =
            process::find(&self.bench.programs.iperf3).context("iperf3 (Debian: iperf3)")?;
        let mut command = process::command(&iperf, &words(&format!("-s -1 -4 -p {port}")))?;
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let _server = Process::spawn(network.namespace(Place::Server), &mut command)?;
        wait_until(PATIENCE, "the iperf3 server", || {
            network.listens(Place::Server, port)
        })?;
        let addresses = network.topology.addresses();
        let to = self.running.system.address(Service::Iperf3, &addresses);
        let window = self.window();
        let seconds = window.duration_s - window.warm_up_s;
        let line = format!(
            "-c {} -p {} -t {seconds} -O {} -P {} -J",
            to.ip(),
            to.port(),
            window.warm_up_s,
            self.connections
        );
        let (program, arguments) = self.running.client(&iperf, words(&line));
        let mut command = process::command(&program, &arguments)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let client = Process::spawn(network.namespace(Place::Client), &mut command)?;
        let patience = PATIENCE + Duration::from_secs(window.duration_s.into());
        let finished = client.finish(patience).context("the iperf3 client")?;
        let received = parse(&finished.output)?;
        // The CPU time includes the warm-up. So the lab adds the bytes of the warm-up, which it
        // estimates from the measured rate.
        let whole = f64::from(window.duration_s) / f64::from(seconds);
        Ok(Outcome {
            bytes: (received.bytes as f64 * whole) as u64,
            figures: Figures::from([(Metric::MbitS, received.bits_per_second / 1e6)]),
        })
    }
}

pub(super) fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Parses the receiver's figures in the client's JSON.
pub(super) fn parse(output: &str) -> Result<Sum> {
    let parsed: Output = serde_json::from_str(output).context("cannot parse iperf3's JSON")?;
    match (parsed.error, parsed.end.sum_received) {
        (Some(error), _) => bail!("iperf3: {error}"),
        (None, Some(sum)) if sum.bytes > 0 => Ok(sum),
        _ => bail!("the iperf3 server received no byte"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receivers_sum_is_read() {
        let output = r#"{"start":{},"end":{"sum_sent":{"bytes":9,"bits_per_second":9.0},
            "sum_received":{"start":0,"bytes":250000000,"bits_per_second":1e9}}}"#;
        let sum = parse(output).unwrap();
        assert_eq!((sum.bytes, sum.bits_per_second), (250_000_000, 1e9));
    }

    #[test]
    fn an_error_is_told_in_its_own_words() {
        let output = r#"{"start":{},"end":{},"error":"unable to connect to server"}"#;
        let error = parse(output).unwrap_err().to_string();
        assert_eq!(error, "iperf3: unable to connect to server");
        assert!(parse("{}").is_err());
        assert!(parse("").is_err());
    }
}

//! Bulk by iperf 2. The figures come from the receiver, after the warm-up.
//!
//! As in the benchmarks in Kubernetes, `muxbench::iperf` parses the output, and
//! `muxbench::statistics` removes the warm-up.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{Receiver as Lines, RecvTimeoutError, sync_channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use muxbench::{iperf::Receiver, statistics::rate_mbit_s};

use super::{Outcome, Run};
use crate::{
    metric::{Figures, Metric},
    process::{self, Process},
    system::Service,
    topology::Place,
};

/// Time-out for iperf to listen, and for its streams to end after the client. A stalled stream
/// never ends. On a path that loses frames, the delivery of the megabytes in the sockets can take
/// half a minute.
const PATIENCE: Duration = Duration::from_secs(90);

/// Capacity of the queue of output lines. iperf waits while the queue is full.
const LINES_MAX: usize = 1024;

impl Run<'_> {
    pub(super) fn bulk_iperf2(&self) -> Result<Outcome> {
        let mut server = Server::start(self)?;
        self.run_client()?;
        server.read_until(|receiver| receiver.ended() >= self.connections as usize)?;
        let report = server.receiver.report();
        let mbit_s = rate_mbit_s(&report, self.window(), self.connections)?;
        Ok(Outcome {
            bytes: report.bytes,
            figures: Figures::from([(Metric::MbitS, mbit_s)]),
        })
    }

    fn run_client(&self) -> Result<()> {
        let addresses = self.bench.network.topology.addresses();
        let to = self.running.system.address(Service::Iperf2, &addresses);
        // iperf runs slightly longer than the measured seconds, because the receiver's last
        // interval is incomplete.
        let seconds = self.window().duration_s;
        let line = format!(
            "-c {} -p {} -t {seconds}.3 -P {}",
            to.ip(),
            to.port(),
            self.connections
        );
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let iperf = process::find(&self.bench.programs.iperf2);
        let iperf = iperf.context("iperf (Debian: iperf, version 2)")?;
        let (program, arguments) = self.running.client(&iperf, arguments);
        let mut command = process::command(&program, &arguments)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let client = self.bench.network.namespace(Place::Client);
        let client = Process::spawn(client, &mut command)?;
        let patience = PATIENCE + Duration::from_secs(seconds.into());
        let finished = client.finish(patience).context("the iperf client")?;
        let said = &finished.errors;
        ensure!(finished.succeeded, "the iperf client failed: {said}");
        Ok(())
    }
}

/// The version that `iperf -v` prints.
///
/// # Errors
/// If iperf is not installed or is not version 2.
pub(crate) fn version(iperf: &Path) -> Result<String> {
    let output = Command::new(iperf).arg("-v").output();
    let output = output.context("cannot start `iperf`: install iperf 2 (Debian package iperf)")?;
    // iperf 2.1.8 prints the version to standard output, older versions to standard error.
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    parse_version(&text).with_context(|| format!("not iperf 2: {}", text.trim()))
}

fn parse_version(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        ["iperf", "version", version, ..] if version.starts_with("2.") => {
            Some((*version).to_owned())
        }
        _ => None,
    }
}

/// An iperf server, which ends when this value is dropped.
struct Server {
    _process: Process,
    lines: Lines<String>,
    receiver: Receiver,
}

impl Server {
    fn start(run: &Run<'_>) -> Result<Self> {
        let line = format!("-s -i 1 -f b -p {}", Service::Iperf2.port());
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let mut command = process::command(&run.bench.programs.iperf2, &arguments)
            .context("iperf (Debian: iperf, version 2)")?;
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let place = run.bench.network.namespace(Place::Server);
        let mut process = Process::spawn(place, &mut command)?;
        let output = process.child().stdout.take();
        let output = output.context("the iperf server has no output")?;
        let (sender, lines) = sync_channel(LINES_MAX);
        thread::spawn(move || {
            // The thread ends with the process, or when the receiver of the lines is dropped.
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut server = Self {
            _process: process,
            lines,
            receiver: Receiver::default(),
        };
        server.read_until(Receiver::is_listening)?;
        Ok(server)
    }

    fn read_until(&mut self, is_enough: impl Fn(&Receiver) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_enough(&self.receiver) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.receiver.handle_line(&line),
                Err(RecvTimeoutError::Timeout) => bail!(
                    "the iperf server did not print the expected lines within {PATIENCE:?}; its output: {}",
                    self.receiver.tail()
                ),
                Err(RecvTimeoutError::Disconnected) => bail!(
                    "the iperf server ended before it printed the expected lines; its output: {}",
                    self.receiver.tail()
                ),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_of_iperf_is_told_from_version_3() {
        let two = "iperf version 2.1.8 (12 August 2022) pthreads\n";
        assert_eq!(parse_version(two).as_deref(), Some("2.1.8"));
        assert_eq!(parse_version("iperf 3.12 (cJSON 1.7.15)\n"), None);
    }
}

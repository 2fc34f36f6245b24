//! One iperf run through one system: the receiver's rate and the CPU time of the system.
//!
//! Owns the two iperf processes of a run. Lines are read by `muxbench::iperf`, the warm-up is left out
//! by `muxbench::statistics`, as in the benchmarks in Kubernetes.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver as Lines, sync_channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use muxbench::{
    iperf::Receiver,
    statistics::{Window, rate_mbit_s},
};

use crate::{
    cpu,
    system::{IPERF_PORT, Running},
};

/// How long iperf may take to listen, and its streams to end after the client has.
const PATIENCE: Duration = Duration::from_secs(15);

/// Lines of output that wait to be read; iperf waits when there are more.
const LINES_MAX: usize = 1024;

/// One run to be made.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) iperf: &'a Path,
    pub(crate) window: Window,
    pub(crate) connections: u32,
}

/// What one run gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    /// Received payload in the window, 10^6 bit/s.
    pub(crate) mbit_s: f64,
    /// CPU seconds of the system's processes for 10^9 bytes of payload, warm-up included; `None`
    /// for a system without processes.
    pub(crate) cpu_s_per_gb: Option<f64>,
    /// The part of all processors that other programs took meanwhile, 0 to 1.
    pub(crate) foreign_share: f64,
}

impl Run<'_> {
    /// Runs iperf through the system.
    ///
    /// # Errors
    /// When iperf fails, not all connections arrive, or the streams end early.
    pub(crate) fn measure(&self, running: &Running) -> Result<Measured> {
        let pids = running.pids();
        let mut server = Server::start(self.iperf)?;
        let mut all_pids = pids.clone();
        all_pids.push(server.child.id());
        let before = (cpu::used(&pids)?, cpu::used(&all_pids)?.user);
        let (start, programs) = (Instant::now(), cpu::machine_in_programs()?);
        self.run_client(running.system.iperf_port())?;
        server.read_until(|receiver| receiver.ended() >= self.connections as usize)?;
        let after = (cpu::used(&pids)?, cpu::used(&all_pids)?.user);
        let programs = cpu::machine_in_programs()?.saturating_sub(programs);
        let foreign = programs.saturating_sub(after.1.saturating_sub(before.1));
        let processors = thread::available_parallelism().map_or(1, usize::from) as f64;
        let foreign_share = foreign.as_secs_f64() / (start.elapsed().as_secs_f64() * processors);
        let used = (after.0.user + after.0.system).saturating_sub(before.0.user + before.0.system);
        let report = server.receiver.report();
        let mbit_s = rate_mbit_s(&report, self.window, self.connections)?;
        let gigabytes = report.bytes as f64 / 1e9;
        let cpu_s_per_gb = (!pids.is_empty()).then(|| used.as_secs_f64() / gigabytes);
        Ok(Measured {
            mbit_s,
            cpu_s_per_gb,
            foreign_share,
        })
    }

    fn run_client(&self, port: u16) -> Result<()> {
        // A second more than counts: the receiver's last second is cut.
        let seconds = self.window.warm_up_s + self.window.duration_s + 1;
        let arguments = format!(
            "-c 127.0.0.1 -p {port} -t {seconds} -P {}",
            self.connections
        );
        let output = Command::new(self.iperf)
            .args(arguments.split(' '))
            .stdin(Stdio::null())
            .output()
            .context("starting the iperf client")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!(
                "the iperf client failed ({}): {}",
                output.status,
                said.trim()
            );
        }
        Ok(())
    }
}

/// The first line that `iperf -v` prints, without the program's name.
///
/// # Errors
/// When iperf is not installed or is not version 2.
pub(crate) fn version(iperf: &Path) -> Result<String> {
    let output = Command::new(iperf).arg("-v").output();
    let output = output.context("starting `iperf` (Debian: iperf, version 2)")?;
    // iperf 2.1.8 prints it to its standard output, older ones to standard error.
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    parse_version(&text).with_context(|| format!("this is no iperf 2: {}", text.trim()))
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

/// An iperf server; it ends with this value.
struct Server {
    child: Child,
    lines: Lines<String>,
    receiver: Receiver,
}

impl Server {
    fn start(iperf: &Path) -> Result<Self> {
        let mut child = Command::new(iperf)
            .args(["-s", "-i", "1", "-f", "b", "-p", &IPERF_PORT.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the iperf server")?;
        let output = child
            .stdout
            .take()
            .context("the iperf server has no output")?;
        let (sender, lines) = sync_channel(LINES_MAX);
        thread::spawn(move || {
            // Ends with the process, or when nobody reads the lines any more.
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut server = Self {
            child,
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
                Err(error) => bail!(
                    "the iperf server: {error}; it said: {}",
                    self.receiver.tail()
                ),
            }
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error says that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
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

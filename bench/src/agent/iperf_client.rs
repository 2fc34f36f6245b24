//! One run of an iperf client.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use muxtunnel_bench_api::agent::{ClientReport, ClientRun};
use muxtunnel_bench_api::{CONNECTIONS_MAX, DURATION_SECONDS_MAX};

use super::lines::for_each_line;
use super::process;
use crate::iperf::{Tail, is_complaint};

/// Time beyond the asked seconds in which a client must end: buffers drain at the path's rate.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Most complaints that are reported.
const COMPLAINTS_MAX: usize = 8;
/// Longest name of a host, bytes (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

/// Whether the request can be a command line.
///
/// # Errors
/// A number is out of bounds, or the host is no name or address.
pub(super) fn check(request: &ClientRun) -> anyhow::Result<()> {
    check_host(&request.host)?;
    if !(1..=CONNECTIONS_MAX).contains(&request.connections) {
        bail!(
            "{} connections; 1 to {CONNECTIONS_MAX} are possible",
            request.connections
        );
    }
    if !(1..=DURATION_SECONDS_MAX).contains(&request.seconds) {
        bail!(
            "{} seconds; 1 to {DURATION_SECONDS_MAX} are possible",
            request.seconds
        );
    }
    Ok(())
}

/// Whether `host` is a name or address, and no option of a command.
///
/// # Errors
/// It is neither.
pub(super) fn check_host(host: &str) -> anyhow::Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".:-".contains(c);
    let good = (1..=HOST_BYTES_MAX).contains(&host.len())
        && host.chars().all(plain)
        && !host.starts_with('-');
    if !good {
        bail!("{host:?} is no host name or address");
    }
    Ok(())
}

/// Runs iperf to its end. Cancelling it ends the process.
///
/// # Errors
/// It cannot be started or does not end in time.
pub(super) async fn run(iperf: &Path, request: &ClientRun) -> anyhow::Result<ClientReport> {
    let [port, seconds, connections] = [
        u32::from(request.port),
        request.seconds,
        request.connections,
    ]
    .map(|number| number.to_string());
    let to = ["-f", "b", "-c", &request.host, "-p", &port];
    let how = ["-t", &seconds, "-P", &connections];
    let (mut child, stdout, stderr) = process::start(iperf, &[&to[..], &how].concat())?;
    let deadline = Duration::from_secs(request.seconds.into()) + DRAIN_TIMEOUT;
    let (mut out, mut errors) = (Collected::default(), Collected::default());
    let reading = async {
        tokio::join!(out.read(stdout), errors.read(stderr));
        child.wait().await
    };
    let Ok(status) = tokio::time::timeout(deadline, reading).await else {
        bail!("iperf -c did not end within {} s", deadline.as_secs());
    };
    let status = status.context("iperf -c")?;
    let mut complaints = errors.complaints;
    complaints.extend(out.complaints);
    if !status.success() {
        complaints.push(format!("iperf ended with {status}"));
    }
    complaints.truncate(COMPLAINTS_MAX);
    Ok(ClientReport {
        complaints,
        tail: out.tail.text(),
    })
}

#[derive(Default)]
struct Collected {
    complaints: Vec<String>,
    tail: Tail,
}

impl Collected {
    async fn read(&mut self, output: impl tokio::io::AsyncRead + Unpin) {
        for_each_line(output, |line| {
            self.tail.push(line);
            if is_complaint(line) && self.complaints.len() < COMPLAINTS_MAX {
                self.complaints
                    .push(line.trim().chars().take(200).collect());
            }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ClientRun {
        ClientRun {
            host: "10.0.0.1".into(),
            port: 5001,
            connections: 1,
            seconds: 1,
        }
    }

    #[test]
    fn options_smuggled_in_as_a_host_are_refused() {
        for host in ["-s", "", "a b", "$(x)", &"a".repeat(254)] {
            assert!(
                check(&ClientRun {
                    host: host.into(),
                    ..request()
                })
                .is_err(),
                "{host:?}"
            );
        }
        for host in ["10.0.0.1", "fd00::1", "bench-e1-entry.default.svc"] {
            assert!(
                check(&ClientRun {
                    host: host.into(),
                    ..request()
                })
                .is_ok(),
                "{host:?}"
            );
        }
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        assert!(
            check(&ClientRun {
                connections: 129,
                ..request()
            })
            .is_err()
        );
        assert!(
            check(&ClientRun {
                connections: 0,
                ..request()
            })
            .is_err()
        );
        assert!(
            check(&ClientRun {
                seconds: 3601,
                ..request()
            })
            .is_err()
        );
        assert!(
            check(&ClientRun {
                seconds: 3600,
                ..request()
            })
            .is_ok()
        );
    }
}

//! One run of an iperf client.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use muxtunnel_bench_api::agent::{ClientReport, ClientRun};
use muxtunnel_bench_api::{
    CONNECTIONS_MAX, DATAGRAM_BYTES, DURATION_SECONDS_MAX, UDP_BITS_PER_SECOND_MAX,
    UDP_BITS_PER_SECOND_MIN,
};

use super::lines::for_each_line;
use super::process;
use crate::iperf::{Tail, is_complaint};

/// Time-out of a client after the requested seconds. The time-out is long, because buffers drain at
/// the path's rate.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of reported error lines.
const COMPLAINTS_MAX: usize = 8;
/// Least payload of a datagram in bytes: iperf writes a number and a time into each datagram.
const DATAGRAM_BYTES_MIN: u32 = 64;
/// Longest name of a host, bytes (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

/// Checks a request before it becomes a command line.
///
/// # Errors
/// If a number is out of bounds, or the host is not a name or address.
pub(super) fn check(request: &ClientRun) -> anyhow::Result<()> {
    check_host(&request.host)?;
    if !(1..=CONNECTIONS_MAX).contains(&request.connections) {
        bail!(
            "connections is {}: expected 1 to {CONNECTIONS_MAX}",
            request.connections
        );
    }
    if !(1..=DURATION_SECONDS_MAX).contains(&request.seconds) {
        bail!(
            "seconds is {}: expected 1 to {DURATION_SECONDS_MAX}",
            request.seconds
        );
    }
    let Some(udp) = request.udp else {
        return Ok(());
    };
    if !(UDP_BITS_PER_SECOND_MIN..=UDP_BITS_PER_SECOND_MAX).contains(&udp.bits_per_second) {
        bail!(
            "the rate is {} bit/s: expected {UDP_BITS_PER_SECOND_MIN} to {UDP_BITS_PER_SECOND_MAX} bit/s",
            udp.bits_per_second
        );
    }
    if !(DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES).contains(&udp.datagram_bytes) {
        bail!(
            "a datagram has {} bytes: expected {DATAGRAM_BYTES_MIN} to {DATAGRAM_BYTES} bytes",
            udp.datagram_bytes
        );
    }
    Ok(())
}

/// Checks that `host` is a name or address, not an option of a command.
///
/// # Errors
/// If it is neither a name nor an address.
pub(super) fn check_host(host: &str) -> anyhow::Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".:-".contains(c);
    let good = (1..=HOST_BYTES_MAX).contains(&host.len())
        && host.chars().all(plain)
        && !host.starts_with('-');
    if !good {
        bail!("{host:?} is not a host name or address");
    }
    Ok(())
}

/// Runs iperf to its end. If the future is dropped, the process ends.
///
/// # Errors
/// If iperf cannot be started or does not end in time.
pub(super) async fn run(iperf: &Path, request: &ClientRun) -> anyhow::Result<ClientReport> {
    let [port, seconds, connections] = [
        u32::from(request.port),
        request.seconds,
        request.connections,
    ]
    .map(|number| number.to_string());
    let to = ["-f", "b", "-c", &request.host, "-p", &port];
    let how = ["-t", &seconds, "-P", &connections];
    let udp = request.udp.map(|udp| {
        [
            udp.bits_per_second.to_string(),
            udp.datagram_bytes.to_string(),
        ]
    });
    let mut arguments = [&to[..], &how].concat();
    if let Some([rate, length]) = &udp {
        arguments.extend(["-u", "-b", rate, "-l", length]);
    }
    let (mut child, stdout, stderr) = process::start(iperf, &arguments)?;
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
    use muxtunnel_bench_api::agent::UdpLoad;

    use super::*;

    fn request() -> ClientRun {
        ClientRun {
            host: "10.0.0.1".into(),
            port: 5001,
            connections: 1,
            seconds: 1,
            udp: None,
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
    fn datagrams_out_of_bounds_are_refused() {
        let with = |bits_per_second, datagram_bytes| ClientRun {
            udp: Some(UdpLoad {
                bits_per_second,
                datagram_bytes,
            }),
            ..request()
        };
        assert!(check(&with(100_000_000, 1400)).is_ok());
        for request in [
            with(99_999, 1400),
            with(10_000_000_001, 1400),
            with(100_000_000, 63),
            with(100_000_000, 1401),
        ] {
            assert!(check(&request).is_err(), "{request:?}");
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

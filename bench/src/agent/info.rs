//! Facts about an agent's machine: iperf, kernel, congestion control, sysctls.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use muxtunnel_bench_api::agent::Info;
use tokio::process::Command;

/// The sysctls that affect throughput and can be read in a pod.
const SYSCTLS: [&str; 3] = [
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
/// Time-out of `iperf -v`.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads all facts.
///
/// # Errors
/// iperf is missing, or is not iperf 2.
pub(super) async fn read(iperf: &Path) -> anyhow::Result<Info> {
    let asked = Command::new(iperf)
        .arg("-v")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(VERSION_TIMEOUT, asked)
        .await
        .context("iperf -v")?;
    let output = output.with_context(|| {
        format!(
            "cannot run {}: install iperf 2 (Debian package iperf)",
            iperf.display()
        )
    })?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let Some(version) = version(&text) else {
        bail!(
            "{} is not iperf 2: it prints {:?}",
            iperf.display(),
            text.trim()
        );
    };
    let congestion_control = sysctl(SYSCTLS[0]).unwrap_or_default();
    let sysctls = SYSCTLS[1..]
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), sysctl(name)?)))
        .collect();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Ok(Info {
        iperf: version,
        kernel: kernel.trim().to_owned(),
        congestion_control,
        sysctls,
    })
}

/// Parses `iperf version 2.1.8 (12 August 2022) pthreads`; `None` for iperf 3 and any other text.
fn version(text: &str) -> Option<String> {
    let version = text
        .trim()
        .strip_prefix("iperf version ")?
        .split_whitespace()
        .next()?;
    version.starts_with("2.").then(|| version.to_owned())
}

/// The effective value in this network namespace, with folded white space; `None` if the sysctl
/// does not exist.
fn sysctl(name: &str) -> Option<String> {
    let path = Path::new("/proc/sys").join(name.replace('.', "/"));
    let value = std::fs::read_to_string(path).ok()?;
    Some(value.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_iperf_2_is_taken() {
        let debian = "iperf version 2.1.8 (12 August 2022) pthreads\n";
        assert_eq!(version(debian).as_deref(), Some("2.1.8"));
        assert_eq!(version("iperf 3.12 (cJSON 1.7.15)"), None);
    }
}

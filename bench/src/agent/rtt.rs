//! Round trips over an idle path: sends 64 bytes and waits for their echo, repeatedly, on one
//! connection.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use muxtunnel_bench_api::PROBES_MAX;
use muxtunnel_bench_api::agent::{RttProbe, RttReport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::iperf_client::check_host;

/// Bytes of one probe.
const PROBE_BYTES: usize = 64;
/// Time-out of the connection, and of each round trip.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Measures the round trips. The first round trip is left out, because the first bytes through a
/// tunnel wait until the exit has dialled the target.
///
/// # Errors
/// If the number is out of bounds, or the echo port is not reached or does not answer in time.
pub(super) async fn probe(request: &RttProbe) -> anyhow::Result<RttReport> {
    if !(1..=PROBES_MAX).contains(&request.probes) {
        bail!("probes is {}: expected 1 to {PROBES_MAX}", request.probes);
    }
    check_host(&request.host)?;
    let target = (request.host.as_str(), request.port);
    let name = format!("echo {}:{}", request.host, request.port);
    let stream = tokio::time::timeout(STEP_TIMEOUT, TcpStream::connect(target)).await;
    let mut stream = stream
        .with_context(|| format!("{name}: no connection within {} s", STEP_TIMEOUT.as_secs()))??;
    stream.set_nodelay(true)?;
    let mut rtts_ms = Vec::with_capacity(request.probes as usize);
    for number in 0..=request.probes {
        let round_trip = round_trip(&mut stream);
        let rtt = tokio::time::timeout(STEP_TIMEOUT, round_trip).await;
        let rtt =
            rtt.with_context(|| format!("{name}: no answer within {} s", STEP_TIMEOUT.as_secs()))?;
        let rtt = rtt.with_context(|| name.clone())?;
        if number > 0 {
            rtts_ms.push(rtt.as_secs_f64() * 1e3);
        }
    }
    Ok(RttReport { rtts_ms })
}

async fn round_trip(stream: &mut TcpStream) -> std::io::Result<Duration> {
    let mut probe = [0x5a; PROBE_BYTES];
    let start = Instant::now();
    stream.write_all(&probe).await?;
    stream.read_exact(&mut probe).await?;
    Ok(start.elapsed())
}

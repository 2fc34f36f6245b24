//! Round trips over an idle path: 64 bytes there and back, one after another, on one connection.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use muxtunnel_bench_api::PROBES_MAX;
use muxtunnel_bench_api::agent::{RttProbe, RttReport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::iperf_client::check_host;

/// Bytes of one probe.
const PROBE_BYTES: usize = 64;
/// Time for the connection, and for each round trip.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Measures the round trips. One more goes ahead and does not count: through a tunnel the first
/// bytes wait until the far side has dialled.
///
/// # Errors
/// The number is out of bounds, the echo cannot be reached, or does not answer in time.
pub(super) async fn probe(request: &RttProbe) -> anyhow::Result<RttReport> {
    if !(1..=PROBES_MAX).contains(&request.probes) {
        bail!("{} probes; 1 to {PROBES_MAX} are possible", request.probes);
    }
    check_host(&request.host)?;
    let target = (request.host.as_str(), request.port);
    let name = format!("echo {}:{}", request.host, request.port);
    let stream = tokio::time::timeout(STEP_TIMEOUT, TcpStream::connect(target)).await;
    let mut stream = stream.with_context(|| format!("{name}: no connection in time"))??;
    stream.set_nodelay(true)?;
    let mut rtts_ms = Vec::with_capacity(request.probes as usize);
    for number in 0..=request.probes {
        let round_trip = round_trip(&mut stream);
        let rtt = tokio::time::timeout(STEP_TIMEOUT, round_trip).await;
        let rtt = rtt.with_context(|| format!("{name}: no answer in time"))?;
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

//! The rate: measures how long a burst takes.

use std::time::{Duration, Instant};

use super::{HEADERS_BYTES, ProbeError, Sockets};
use crate::impairments::{Impairments, Rate};

/// Time that the narrowest link needs for the burst: half of the least default buffer.
const BURST: Duration = Duration::from_millis(25);
/// Number of packets of the burst, if the rate is high enough.
const PACKETS: u64 = 50;
/// Least payload of a packet in bytes.
const PAYLOAD_MIN: u64 = 200;
const PAYLOAD_MAX: u64 = 60_000;
/// Least number of packets.
const PACKETS_MIN: u64 = 4;
/// A packet is lost if it has not arrived this long after its due time.
const PATIENCE: Duration = Duration::from_secs(1);
/// Greatest relative error of the rate, without jitter and late wake-ups.
const TOLERANCE: f64 = 0.1;
/// A process may wake up this late. This adds to the error of the rate.
const LATE: Duration = Duration::from_millis(1);

/// Measures the rate in bits per second; `None` if no rate was requested.
pub(super) fn measure(path: &Impairments) -> Result<Option<f64>, ProbeError> {
    let Some(rate) = path.rate else {
        return Ok(None);
    };
    let sockets = Sockets::open()?;
    let burst = rate.bytes(BURST);
    let payload = (burst / PACKETS).clamp(PAYLOAD_MIN, PAYLOAD_MAX);
    let packets = (burst / payload).max(PACKETS_MIN);
    let bytes = vec![0; payload as usize];
    for _ in 0..packets {
        sockets.sender.send(&bytes)?;
    }
    let way = rate.time(packets * (payload + HEADERS_BYTES)) + path.one_way_delay + path.jitter;
    let until = Instant::now() + way + PATIENCE;
    let mut arrivals = Vec::new();
    while (arrivals.len() as u64) < packets && sockets.receive(until)?.is_some() {
        arrivals.push(Instant::now());
    }
    // Each packet except the first arrives one sending time after the previous packet.
    match arrivals[..] {
        [first, .., last] => {
            let bits = (arrivals.len() as u64 - 1) * (payload + HEADERS_BYTES) * 8;
            let time = last.saturating_duration_since(first).as_secs_f64();
            Ok(Some(bits as f64 / time.max(1e-9)))
        }
        _ => Err(ProbeError::Lost {
            arrived: arrivals.len(),
            sent: packets as usize,
        }),
    }
}

/// Whether the measured rate fits the requested rate, with the precision of a burst of [`BURST`].
pub(super) fn is_near(measured: f64, asked: Rate, jitter: Duration) -> bool {
    let noise = (2 * jitter + LATE).as_secs_f64() / BURST.as_secs_f64();
    let asked = asked.bits_per_second() as f64;
    (measured - asked).abs() <= asked * (TOLERANCE + noise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_may_be_off_by_a_tenth_and_what_the_clock_costs() {
        let near = |measured| is_near(measured, "100M".parse().unwrap(), Duration::ZERO);
        assert!(near(100e6) && near(113e6) && near(87e6));
        assert!(!near(120e6) && !near(80e6));
    }
}

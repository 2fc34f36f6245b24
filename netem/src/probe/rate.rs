//! The rate: how long a burst takes to come through.

use std::time::{Duration, Instant};

use super::{HEADERS_BYTES, ProbeError, Sockets};
use crate::impairments::{Impairments, Rate};

/// What the narrowest link should need for the burst; half of the least buffer.
const BURST: Duration = Duration::from_millis(25);
/// Packets of the burst, where it is large enough.
const PACKETS: u64 = 50;
/// Payload of a packet, bytes.
const PAYLOAD_MIN: u64 = 200;
const PAYLOAD_MAX: u64 = 60_000;
/// Packets at least.
const PACKETS_MIN: u64 = 4;
/// A packet that has not come this long after its time does not come.
const PATIENCE: Duration = Duration::from_secs(1);
/// How far the rate may be off...
const TOLERANCE: f64 = 0.1;
/// ...beside what a process may be woken late.
const LATE: Duration = Duration::from_millis(1);

/// Bits a second; `None` where any rate will do.
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
    // Each packet but the first comes one sending time after the one before.
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

/// Whether the rate is the one asked for, as far as a burst of [`BURST`] can tell.
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
        let near = |measured| is_near(measured, "100Mbit".parse().unwrap(), Duration::ZERO);
        assert!(near(100e6) && near(113e6) && near(87e6));
        assert!(!near(120e6) && !near(80e6));
    }
}

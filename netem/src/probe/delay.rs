//! The delay: the median of 20 packets.

use std::time::{Duration, Instant};

use super::{HEADERS_BYTES, ProbeError, Sockets};
use crate::impairments::Impairments;

/// Packets of a measurement. Nine late packets do not change the median of 20.
pub const PROBES: usize = 20;

/// The pause between two packets, so that each packet finds an idle line.
const SPACING: Duration = Duration::from_millis(10);

/// Time after a packet's due time until the probe gives up.
const PATIENCE: Duration = Duration::from_secs(2);

/// Least number of packets that must arrive on a path with loss, for a median.
const ARRIVED_MIN: usize = 5;

/// Bytes of a packet's number.
const NUMBER_BYTES: u64 = 8;

/// The expected time of a packet of the probe.
pub(super) fn expected(path: &Impairments) -> Duration {
    let sending = path
        .rate
        .map(|rate| rate.time(HEADERS_BYTES + NUMBER_BYTES));
    path.one_way_delay + sending.unwrap_or_default()
}

/// Measures the median delay.
pub(super) fn measure(path: &Impairments) -> Result<Duration, ProbeError> {
    let sockets = Sockets::open()?;
    let start = Instant::now();
    let deadline = start + SPACING * PROBES as u32 + expected(path) + path.jitter + PATIENCE;
    let mut sent = Vec::with_capacity(PROBES);
    let mut delays = Vec::with_capacity(PROBES);
    while delays.len() < PROBES {
        let now = Instant::now();
        if now >= deadline {
            break;
        }
        let next_send = start + SPACING * sent.len() as u32;
        if sent.len() < PROBES && now >= next_send {
            sent.push(now);
            sockets
                .sender
                .send(&(sent.len() as u64 - 1).to_be_bytes())?;
            continue;
        }
        let until = if sent.len() < PROBES {
            next_send
        } else {
            deadline
        };
        if let Some((_, number)) = sockets.receive(until)?
            && let Some(sent_at) = usize::try_from(number).ok().and_then(|n| sent.get(n))
        {
            delays.push(sent_at.elapsed());
        }
    }
    let needed = if path.loss.is_zero() {
        PROBES
    } else {
        ARRIVED_MIN
    };
    if delays.len() < needed {
        return Err(ProbeError::Lost {
            arrived: delays.len(),
            sent: PROBES,
        });
    }
    Ok(median(&mut delays))
}

/// The middle value, or the mean of the two middle values. `values` must not be empty.
#[must_use]
pub fn median(values: &mut [Duration]) -> Duration {
    values.sort_unstable();
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => (values[middle - 1] + values[middle]) / 2,
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_median_shrugs_off_stragglers() {
        assert_eq!(
            median(&mut [ms(50), ms(900), ms(51), ms(50), ms(700)]),
            ms(51)
        );
        assert_eq!(median(&mut [ms(52), ms(50)]), ms(51));
    }

    #[test]
    fn a_narrow_link_takes_its_time_for_the_probe_too() {
        let path = Impairments {
            rate: Some("288k".parse().unwrap()),
            ..Impairments::delay(ms(50))
        };
        assert_eq!(expected(&path), ms(51));
    }
}

//! The self-probe: UDP packets on `lo` through the delay just made, timed.
//!
//! Owns the measurement and the verdict over it. Every start has to pass it before anything is
//! reported: a delay that is configured but not made would falsify all that is measured later. It
//! works before the other side of a tunnel exists, since it never leaves the network namespace.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::{Duration, Instant},
};

use crate::plan::PROBE_PORT;

/// Packets a probe sends; the median of 20 shrugs off nine stragglers.
pub const PROBES: usize = 20;

/// Measurements at most, each of [`PROBES`] packets, until one is within the tolerance. On a machine
/// whose processors are all taken packets are late because processes wait, not because the emulation
/// is wrong; one good median shows that it is right. No emulation that is wrong has one.
const MEASUREMENTS_MAX: usize = 5;

/// The pause between two packets, so that each finds an idle line.
const SPACING: Duration = Duration::from_millis(10);

/// How long after its due time a packet may come before the probe gives up.
const PATIENCE: Duration = Duration::from_secs(2);

/// Three percent of the delay, or one millisecond where that is more: on a busy machine a process
/// is woken up to a millisecond late.
#[must_use]
pub fn tolerance(one_way_delay: Duration) -> Duration {
    (one_way_delay * 3 / 100).max(Duration::from_millis(1))
}

/// Whether a measured delay is the one asked for.
#[must_use]
pub fn within_tolerance(asked: Duration, measured: Duration) -> bool {
    asked.abs_diff(measured) <= tolerance(asked)
}

/// The probe gave no figure.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A socket call failed.
    #[error("probing on lo: {0}")]
    Io(#[from] io::Error),
    /// Packets were lost, or came later than two seconds after their time.
    #[error("probing on lo: {arrived} of {PROBES} packets arrived")]
    Lost {
        /// How many came.
        arrived: usize,
    },
}

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// The one-way delay: the median of the last measurement's packets.
    pub one_way_delay: Duration,
    /// How many measurements were made.
    pub measurements: usize,
}

/// Measures the one-way delay on `lo` to port 64003, up to five times until it is `asked` within the
/// tolerance. Whether it was in the end is the caller's to judge.
///
/// # Errors
/// See [`ProbeError`].
pub fn measure(asked: Duration) -> Result<Measured, ProbeError> {
    repeat(asked, || measure_once(asked))
}

fn repeat(
    asked: Duration,
    mut once: impl FnMut() -> Result<Duration, ProbeError>,
) -> Result<Measured, ProbeError> {
    let mut measurements = 1;
    let mut one_way_delay = once()?;
    while !within_tolerance(asked, one_way_delay) && measurements < MEASUREMENTS_MAX {
        one_way_delay = once()?;
        measurements += 1;
    }
    Ok(Measured {
        one_way_delay,
        measurements,
    })
}

/// The median of [`PROBES`] packets. `one_way_delay`: what is expected, which sets how long to wait.
fn measure_once(one_way_delay: Duration) -> Result<Duration, ProbeError> {
    let receiver = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, PROBE_PORT))?;
    let sender = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    sender.connect(receiver.local_addr()?)?;
    let start = Instant::now();
    let deadline = start + SPACING * PROBES as u32 + one_way_delay + PATIENCE;
    let mut sent = Vec::with_capacity(PROBES);
    let mut delays = Vec::with_capacity(PROBES);
    while delays.len() < PROBES {
        let now = Instant::now();
        if now >= deadline {
            return Err(ProbeError::Lost {
                arrived: delays.len(),
            });
        }
        let next_send = start + SPACING * sent.len() as u32;
        if sent.len() < PROBES && now >= next_send {
            sent.push(now);
            sender.send(&(sent.len() as u64 - 1).to_be_bytes())?;
            continue;
        }
        let until = if sent.len() < PROBES {
            next_send
        } else {
            deadline
        };
        if let Some(number) = receive(&receiver, until)?
            && let Some(&sent_at) = sent.get(number)
        {
            delays.push(sent_at.elapsed());
        }
    }
    Ok(median(&mut delays))
}

/// The number in the next packet, or `None` when none came until then.
fn receive(receiver: &UdpSocket, until: Instant) -> io::Result<Option<usize>> {
    let timeout = until.saturating_duration_since(Instant::now());
    receiver.set_read_timeout(Some(timeout.max(Duration::from_micros(1))))?;
    let mut number = [0; 8];
    match receiver.recv(&mut number) {
        Ok(8) => Ok(usize::try_from(u64::from_be_bytes(number)).ok()),
        Ok(_) => Ok(None),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

/// The mean of the two middle values, or the middle one. `values`: at least one.
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
    fn a_late_measurement_is_repeated_up_to_five_times_and_a_good_one_is_not() {
        let after = |late: usize| {
            let mut left = late;
            repeat(ms(50), || {
                let this = if left > 0 { ms(60) } else { ms(50) };
                left = left.saturating_sub(1);
                Ok(this)
            })
            .unwrap()
        };
        let measured = |delay, measurements| Measured {
            one_way_delay: ms(delay),
            measurements,
        };
        assert_eq!(after(0), measured(50, 1));
        assert_eq!(after(4), measured(50, 5));
        assert_eq!(after(5), measured(60, 5));
    }

    #[test]
    fn the_tolerance_is_three_percent_but_at_least_a_millisecond() {
        assert!(within_tolerance(ms(100), ms(103)));
        assert!(within_tolerance(ms(100), ms(97)));
        assert!(!within_tolerance(ms(100), Duration::from_micros(103_001)));
        assert!(!within_tolerance(ms(50), ms(0)));
        assert!(within_tolerance(ms(1), ms(2)));
        assert!(!within_tolerance(ms(1), Duration::from_micros(2001)));
    }
}

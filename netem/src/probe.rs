//! The self-probe: sends UDP packets on `lo` through the new path, measures their times and counts
//! them.
//!
//! The module has the measurements and their verdict. Every start must pass the probe before it
//! writes a report, because an emulation without effect would falsify later measurements. The probe
//! does not leave the network namespace, so it works before the other side of a tunnel exists. The
//! probe always measures the delay ([`delay`]). It measures loss and rate only if they were
//! requested ([`loss`], [`rate`]).

mod delay;
mod loss;
mod rate;

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::{Duration, Instant},
};

use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};

pub use delay::{PROBES, median};

use crate::{duration::milliseconds, impairments::Impairments, plan::PROBE_PORT};

/// Least number of measurements before the probe gives up. Before that, the probe repeats the
/// measurement until a result is within the tolerance.
const MEASUREMENTS_MIN: usize = 5;
/// Least time before the probe gives up. On a busy machine packets are late because processes wait,
/// not because the emulation is wrong. One good measurement proves the emulation, because a wrong
/// emulation never gives a good measurement.
const MEASURING: Duration = Duration::from_secs(10);

/// Room for all packets of a measurement: 10,000 small packets take 8 MB of kernel memory.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;

/// Bytes of the headers of IPv4 and UDP.
const HEADERS_BYTES: u64 = 20 + 8;

/// The probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A socket call failed.
    #[error("the probe on lo failed: {0}")]
    Io(#[from] io::Error),
    /// Packets were lost although no loss was requested, or arrived more than two seconds late.
    #[error("the probe on lo failed: {arrived} of {sent} packets arrived")]
    Lost {
        /// Packets that arrived.
        arrived: usize,
        /// Packets that were sent.
        sent: usize,
    },
}

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The one-way delay: the median of the last measurement's packets.
    pub one_way_delay: Duration,
    /// Share of lost packets, if loss was requested.
    pub loss: Option<Loss>,
    /// Measured rate in bits per second, if a rate was requested.
    pub rate: Option<f64>,
    /// Number of measurements.
    pub measurements: usize,
}

/// Lost packets of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Number of lost packets.
    pub lost: u32,
    /// Number of sent packets.
    pub sent: u32,
}

impl Loss {
    /// The loss in per cent.
    #[must_use]
    pub fn percent(self) -> f64 {
        100.0 * f64::from(self.lost) / f64::from(self.sent)
    }
}

/// The measured path differs from the requested path.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Off {
    /// The delay is wrong.
    #[error(
        "requested a one-way delay of {} ms, measured {} ms (the tolerance is {} ms)",
        milliseconds(*asked),
        milliseconds(*measured),
        milliseconds(*tolerance)
    )]
    Delay {
        /// Requested delay.
        asked: Duration,
        /// Median of the measured delays.
        measured: Duration,
        /// Greatest permitted difference.
        tolerance: Duration,
    },
    /// The loss is wrong.
    #[error("requested a loss of {asked} %, but {} of {} packets were lost", measured.lost, measured.sent)]
    Loss {
        /// Requested loss in per cent.
        asked: f64,
        /// Measured loss.
        measured: Loss,
    },
    /// The rate is wrong.
    #[error("requested a rate of {asked:.3} Mbit/s, measured {measured:.3} Mbit/s")]
    Rate {
        /// Requested rate in Mbit/s.
        asked: f64,
        /// Measured rate in Mbit/s.
        measured: f64,
    },
}

impl Measured {
    /// Checks the result against the requested path.
    ///
    /// # Errors
    /// The first wrong figure ([`Off`]).
    pub fn judge(&self, path: &Impairments) -> Result<(), Off> {
        let (asked, tolerance) = (delay::expected(path), tolerance(path));
        if asked.abs_diff(self.one_way_delay) > tolerance {
            return Err(Off::Delay {
                asked,
                measured: self.one_way_delay,
                tolerance,
            });
        }
        if let Some(measured) = self.loss
            && !loss::is_plausible(measured, path.loss)
        {
            let asked = path.loss.percent();
            return Err(Off::Loss { asked, measured });
        }
        if let (Some(asked), Some(measured)) = (path.rate, self.rate)
            && !rate::is_near(measured, asked, path.jitter)
        {
            return Err(Off::Rate {
                asked: asked.bits_per_second() as f64 / 1e6,
                measured: measured / 1e6,
            });
        }
        Ok(())
    }
}

/// Tolerance of the median delay: three per cent, but at least one millisecond, because a busy
/// machine wakes a process up to a millisecond late. With jitter, half of the jitter is added,
/// because the median of 20 packets stays within that range.
#[must_use]
pub fn tolerance(path: &Impairments) -> Duration {
    (path.one_way_delay * 3 / 100).max(Duration::from_millis(1)) + path.jitter / 2
}

/// Measures `path` on `lo` at port 64003 until a result is within the tolerance, or until it has
/// made at least five measurements in at least ten seconds. The caller judges the last result.
///
/// # Errors
/// See [`ProbeError`].
pub fn measure(path: &Impairments) -> Result<Measured, ProbeError> {
    repeat(path, Instant::now() + MEASURING, || {
        Ok(Measured {
            one_way_delay: delay::measure(path)?,
            loss: loss::measure(path)?,
            rate: rate::measure(path)?,
            measurements: 1,
        })
    })
}

fn repeat(
    path: &Impairments,
    until: Instant,
    mut once: impl FnMut() -> Result<Measured, ProbeError>,
) -> Result<Measured, ProbeError> {
    let mut measured = once()?;
    let mut measurements = 1;
    while measured.judge(path).is_err()
        && (measurements < MEASUREMENTS_MIN || Instant::now() < until)
    {
        measured = once()?;
        measurements += 1;
    }
    Ok(Measured {
        measurements,
        ..measured
    })
}

/// The sockets of the sender and of the receiver, on `lo`.
struct Sockets {
    sender: UdpSocket,
    receiver: UdpSocket,
}

impl Sockets {
    fn open() -> io::Result<Self> {
        let receiver = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, PROBE_PORT))?;
        setsockopt(&receiver, RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
        let sender = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        sender.connect(receiver.local_addr()?)?;
        Ok(Self { sender, receiver })
    }

    /// Waits for the next packet. Returns the length of its payload and the first 8 bytes of the
    /// payload, or `None` if no packet arrives before `until`.
    fn receive(&self, until: Instant) -> io::Result<Option<(usize, u64)>> {
        let timeout = until.saturating_duration_since(Instant::now());
        self.receiver
            .set_read_timeout(Some(timeout.max(Duration::from_micros(1))))?;
        let mut payload = [0; 1 << 16];
        match self.receiver.recv(&mut payload) {
            Ok(length) => {
                let mut number = [0; 8];
                number.copy_from_slice(&payload[..8]);
                Ok((length >= 8).then(|| (length, u64::from_be_bytes(number))))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn measured(one_way_delay: Duration) -> Measured {
        Measured {
            one_way_delay,
            loss: None,
            rate: None,
            measurements: 1,
        }
    }

    #[test]
    fn a_late_measurement_is_repeated_for_a_while_and_a_good_one_is_not() {
        let path = Impairments::delay(ms(50));
        let after = |late: usize, until: Instant| {
            let mut left = late;
            repeat(&path, until, || {
                let this = if left > 0 { ms(60) } else { ms(50) };
                left = left.saturating_sub(1);
                Ok(measured(this))
            })
            .map(|measured| (measured.one_way_delay, measured.measurements))
            .unwrap()
        };
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(600));
        assert_eq!(after(0, later), (ms(50), 1));
        assert_eq!(after(4, now), (ms(50), 5));
        assert_eq!(after(5, now), (ms(60), 5));
        assert_eq!(after(50, later), (ms(50), 51));
    }

    #[test]
    fn the_tolerance_is_three_percent_but_at_least_a_millisecond_and_half_the_jitter() {
        let good = |asked, jitter, delay| {
            let path = Impairments {
                jitter,
                ..Impairments::delay(asked)
            };
            measured(delay).judge(&path).is_ok()
        };
        assert!(good(ms(100), ms(0), ms(103)));
        assert!(good(ms(100), ms(0), ms(97)));
        assert!(!good(ms(100), ms(0), Duration::from_micros(103_001)));
        assert!(!good(ms(50), ms(0), ms(0)));
        assert!(good(ms(1), ms(0), ms(2)));
        assert!(!good(ms(1), ms(0), Duration::from_micros(2001)));
        assert!(good(ms(100), ms(20), ms(113)));
        assert!(!good(ms(100), ms(20), ms(114)));
    }

    #[test]
    fn a_path_is_off_by_its_loss_and_by_its_rate_too() {
        let path = Impairments {
            loss: "1%".parse().unwrap(),
            rate: Some("100M".parse().unwrap()),
            ..Impairments::delay(ms(50))
        };
        let with = |lost, rate| Measured {
            loss: Some(Loss { lost, sent: 5000 }),
            rate: Some(rate),
            ..measured(ms(50))
        };
        assert_eq!(with(50, 1e8).judge(&path), Ok(()));
        assert!(matches!(with(0, 1e8).judge(&path), Err(Off::Loss { .. })));
        assert!(matches!(with(50, 2e8).judge(&path), Err(Off::Rate { .. })));
    }
}

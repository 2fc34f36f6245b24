//! The self-probe: UDP packets on `lo` through the path just made, timed and counted.
//!
//! Owns the measurements and the verdict over them. Every start has to pass it before anything is
//! reported: a path that is configured but not made would falsify all that is measured later. It
//! works before the other side of a tunnel exists, since it never leaves the network namespace. The
//! delay is measured always ([`delay`]), loss and rate where they were asked for ([`loss`], [`rate`]).

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

/// Measurements are repeated until one is good: at least this many,
const MEASUREMENTS_MIN: usize = 5;
/// and more of them until this time is over. On a machine whose processors are all taken packets are
/// late because processes wait, not because the emulation is wrong; one good one shows that it is
/// right. No emulation that is wrong has one.
const MEASURING: Duration = Duration::from_secs(10);

/// Room for all packets of a measurement: 10,000 small ones are 8 MB of kernel memory.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;

/// The headers of IPv4 and UDP, bytes.
const HEADERS_BYTES: u64 = 20 + 8;

/// The probe gave no figure.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A socket call failed.
    #[error("probing on lo: {0}")]
    Io(#[from] io::Error),
    /// Packets were lost that should not have been, or came later than two seconds after their time.
    #[error("probing on lo: {arrived} of {sent} packets arrived")]
    Lost {
        /// How many came.
        arrived: usize,
        /// How many were on their way.
        sent: usize,
    },
}

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The one-way delay: the median of the last measurement's packets.
    pub one_way_delay: Duration,
    /// The share that was lost, where loss was asked for.
    pub loss: Option<Loss>,
    /// Bits a second, where a rate was asked for.
    pub rate: Option<f64>,
    /// How many measurements were made.
    pub measurements: usize,
}

/// Packets that did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// How many.
    pub lost: u32,
    /// Of how many.
    pub sent: u32,
}

impl Loss {
    /// In per cent.
    #[must_use]
    pub fn percent(self) -> f64 {
        100.0 * f64::from(self.lost) / f64::from(self.sent)
    }
}

/// The path made is not the path asked for.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Off {
    /// It takes longer, or less long.
    #[error(
        "asked for {} ms, measured {} ms (the tolerance is {} ms)",
        milliseconds(*asked),
        milliseconds(*measured),
        milliseconds(*tolerance)
    )]
    Delay {
        /// Asked for.
        asked: Duration,
        /// The median.
        measured: Duration,
        /// How far they may be apart.
        tolerance: Duration,
    },
    /// More is lost, or less.
    #[error("asked for a loss of {asked} %, {} of {} packets were lost", measured.lost, measured.sent)]
    Loss {
        /// In per cent.
        asked: f64,
        /// What was lost.
        measured: Loss,
    },
    /// More passes, or less.
    #[error("asked for {asked:.3} Mbit/s, measured {measured:.3} Mbit/s")]
    Rate {
        /// In Mbit/s.
        asked: f64,
        /// In Mbit/s.
        measured: f64,
    },
}

impl Measured {
    /// Whether this is the path asked for.
    ///
    /// # Errors
    /// What is [`Off`].
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

/// How far the median delay may be off: three per cent, or one millisecond where that is more, since
/// on a busy machine a process is woken up to a millisecond late; and half of the jitter, which the
/// median of 20 stays within.
#[must_use]
pub fn tolerance(path: &Impairments) -> Duration {
    (path.one_way_delay * 3 / 100).max(Duration::from_millis(1)) + path.jitter / 2
}

/// Measures `path` on `lo` at port 64003 until it has the requested values, for ten seconds at most. The
/// caller judges whether the last result has them.
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

/// Sender and receiver, on `lo`.
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

    /// The length of the next packet's payload and what it begins with, or `None` when none came until
    /// then.
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
            rate: Some("100Mbit".parse().unwrap()),
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

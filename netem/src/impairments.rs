//! The impairments of an emulated path in one direction: delay, jitter, loss and rate.
//!
//! The module has [`Impairments`] with its limits, and parses a share of packets (`0.5%`) and a
//! rate (`100M`).

use std::{fmt, str::FromStr, time::Duration};

/// The longest one-way delay: ten seconds, far above any terrestrial or satellite path.
pub const ONE_WAY_DELAY_MAX: Duration = Duration::from_secs(10);

/// Least value of the default of [`Impairments::buffer`].
const BUFFER_MIN: Duration = Duration::from_millis(50);

/// The impairments of each packet. The default has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Impairments {
    /// One-way delay of each packet.
    pub one_way_delay: Duration,
    /// Greatest deviation from the delay, uniformly distributed. Packets keep their order.
    pub jitter: Duration,
    /// Share of lost packets. Losses are independent.
    pub loss: Loss,
    /// Rate of the narrowest link; `None`: unlimited.
    pub rate: Option<Rate>,
    /// Longest time that packets wait for the narrowest link. Packets that would wait longer are
    /// dropped. `None`: the default of [`Impairments::buffer`].
    pub buffer: Option<Duration>,
}

/// Why a set of impairments is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImpairmentsError {
    /// The delay exceeds [`ONE_WAY_DELAY_MAX`].
    #[error(
        "the one-way delay of {0:?} is over the limit of {ONE_WAY_DELAY_MAX:?}: set a shorter delay"
    )]
    TooLong(Duration),
    /// The buffer exceeds [`ONE_WAY_DELAY_MAX`].
    #[error("the buffer of {0:?} is over the limit of {ONE_WAY_DELAY_MAX:?}: set a shorter buffer")]
    Buffer(Duration),
    /// The jitter exceeds the delay, so a packet would arrive before it was sent.
    #[error("the jitter of {jitter:?} is more than the delay of {delay:?}: set a smaller jitter")]
    Jitter {
        /// Requested jitter.
        jitter: Duration,
        /// Requested delay.
        delay: Duration,
    },
}

impl Impairments {
    /// A path with only a delay.
    #[must_use]
    pub fn delay(one_way_delay: Duration) -> Self {
        Self {
            one_way_delay,
            ..Self::default()
        }
    }

    /// Whether packets pass unchanged.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether packets must be single frames. The loss of one super-packet of 64 KiB would mean 45
    /// lost frames in a row.
    #[must_use]
    pub fn needs_frames(&self) -> bool {
        !self.loss.is_zero() || self.rate.is_some()
    }

    /// Longest time that packets wait for the narrowest link. The default is twice the delay, but
    /// at least 50 ms, because routers usually have a buffer of one round-trip time.
    #[must_use]
    pub fn buffer(&self) -> Duration {
        self.buffer
            .unwrap_or_else(|| (2 * self.one_way_delay).max(BUFFER_MIN))
    }

    pub(crate) fn check(&self) -> Result<(), ImpairmentsError> {
        if self.one_way_delay > ONE_WAY_DELAY_MAX {
            return Err(ImpairmentsError::TooLong(self.one_way_delay));
        }
        if let Some(buffer) = self.buffer.filter(|buffer| *buffer > ONE_WAY_DELAY_MAX) {
            return Err(ImpairmentsError::Buffer(buffer));
        }
        if self.jitter > self.one_way_delay {
            return Err(ImpairmentsError::Jitter {
                jitter: self.jitter,
                delay: self.one_way_delay,
            });
        }
        Ok(())
    }
}

/// A share of packets in millionths, at most one half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loss(u32);

/// Greatest loss in millionths: half of all packets.
const LOSS_MILLIONTHS_MAX: u32 = 500_000;
/// Millionths in one per cent.
const MILLIONTHS: u32 = 10_000;

impl Loss {
    /// Whether no packet is lost.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The probability that a packet is lost, 0 to 0.5.
    #[must_use]
    pub fn probability(self) -> f64 {
        f64::from(self.0) / 1e6
    }

    /// The share in per cent.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / f64::from(MILLIONTHS)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.percent())
    }
}

/// The text is not a share of packets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a share of packets; write 0% to 50% with up to four digits behind the point, such as 0.5%"
)]
pub struct ParseLossError(String);

impl FromStr for Loss {
    type Err = ParseLossError;

    fn from_str(text: &str) -> Result<Self, ParseLossError> {
        millionths(text)
            .filter(|millionths| *millionths <= LOSS_MILLIONTHS_MAX)
            .map(Self)
            .ok_or_else(|| ParseLossError(text.to_owned()))
    }
}

fn millionths(text: &str) -> Option<u32> {
    let number = text.strip_suffix('%')?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |text: &str, most| {
        (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    if !is_digits(whole, 2) || !is_digits(fraction, 4) {
        return None;
    }
    let whole: u32 = whole.parse().ok()?;
    let fraction: u32 = format!("{fraction:0<4}").parse().ok()?;
    Some(whole * MILLIONTHS + fraction)
}

/// A rate in bits per second of whole IP packets, greater than zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(u64);

impl Rate {
    /// The rate in bits per second.
    #[must_use]
    pub fn bits_per_second(self) -> u64 {
        self.0
    }

    /// The time that the link needs for `bytes`.
    #[must_use]
    pub fn time(self, bytes: u64) -> Duration {
        let nanoseconds = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// The number of bytes that pass the link in `time`.
    #[must_use]
    pub fn bytes(self, time: Duration) -> u64 {
        let bytes = u128::from(self.0) * time.as_nanos() / 8 / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The text is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a rate; write bits per second such as 500k, 100M or 1G, at least 100k and at most 1T"
)]
pub struct ParseRateError(String);

impl FromStr for Rate {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        let parse = || {
            let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, unit) = text.split_at(digits);
            let factor = match unit {
                "" => 1,
                "k" => 1_000,
                "M" => 1_000_000,
                "G" => 1_000_000_000,
                "T" => 1_000_000_000_000,
                _ => return None,
            };
            let number: u64 = number.parse().ok()?;
            let rate = number.checked_mul(factor)?;
            (100_000..=1_000_000_000_000)
                .contains(&rate)
                .then_some(Self(rate))
        };
        parse().ok_or_else(|| ParseRateError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_packets_are_read_and_written() {
        for (text, probability) in [
            ("0%", 0.0),
            ("1%", 0.01),
            ("0.5%", 0.005),
            ("50%", 0.5),
            ("0.0001%", 1e-6),
        ] {
            let loss: Loss = text.parse().unwrap();
            assert!((loss.probability() - probability).abs() < 1e-12, "{text}");
            assert_eq!(loss.to_string(), text);
        }
        for text in [
            "", "1", "%", "51%", "100%", "-1%", "1.%", ".5%", "0.00001%", "1 %",
        ] {
            assert!(text.parse::<Loss>().is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_read() {
        for (text, bits) in [
            ("500k", 500_000),
            ("100M", 100_000_000),
            ("1000G", 1_000_000_000_000),
            ("1T", 1_000_000_000_000),
            ("100001", 100_001),
        ] {
            assert_eq!(text.parse::<Rate>().unwrap().bits_per_second(), bits);
        }
        for text in [
            "",
            "100",
            "0M",
            "1k",
            "1001G",
            "1m",
            "100Mbit",
            "99999999999999999999G",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_says_how_long_bytes_take_and_how_many_pass() {
        let rate: Rate = "100M".parse().unwrap();
        assert_eq!(rate.time(1250), Duration::from_micros(100));
        assert_eq!(rate.bytes(Duration::from_millis(1)), 12_500);
    }

    #[test]
    fn a_packet_cannot_arrive_before_it_was_sent() {
        let delay = Duration::from_millis(5);
        let jitter = Duration::from_millis(6);
        let path = Impairments {
            jitter,
            ..Impairments::delay(delay)
        };
        assert_eq!(
            path.check(),
            Err(ImpairmentsError::Jitter { jitter, delay })
        );
    }
}

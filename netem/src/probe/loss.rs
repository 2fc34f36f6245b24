//! The loss: the probe sends up to 10,000 packets and counts those that do not arrive.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{HEADERS_BYTES, Loss, ProbeError, Sockets};
use crate::impairments::{self, Impairments};

/// Expected number of lost packets. With 50 lost packets, the probe can distinguish the requested
/// loss from twice and from half the requested loss.
const EXPECTED: f64 = 50.0;
/// Least number of packets, except on a narrow link.
const SENT_MIN: f64 = 500.0;
/// Greatest number of packets. Below a loss of 0.5 %, the probe therefore expects fewer lost
/// packets than [`EXPECTED`]. For example, it expects 10 lost packets at 0.1 %.
const SENT_MAX: f64 = 10_000.0;
/// Longest time of sending. On a narrow link the probe sends fewer packets.
const SENDING_MAX: Duration = Duration::from_secs(2);
/// Least time between two packets.
const PACE_MIN: Duration = Duration::from_micros(10);
/// Packets that are due within this time are sent together.
const STEP: Duration = Duration::from_millis(1);
/// A packet is lost if it has not arrived this long after the last packet and after its own due
/// time.
const QUIET: Duration = Duration::from_millis(300);

/// Measures the loss; `None` if no loss was requested.
pub(super) fn measure(path: &Impairments) -> Result<Option<Loss>, ProbeError> {
    if path.loss.is_zero() {
        return Ok(None);
    }
    let sockets = Sockets::open()?;
    let pace = pace(path);
    let sent = count(path, pace);
    let start = Instant::now();
    let mut number = 0;
    while number < sent {
        let due = (start.elapsed().as_nanos() / pace.as_nanos()) as u32;
        for number in number..due.min(sent) {
            sockets.sender.send(&u64::from(number).to_be_bytes())?;
        }
        number = due.min(sent);
        thread::sleep(STEP);
    }
    let way = path.one_way_delay + path.jitter + path.buffer();
    let mut until = Instant::now() + way + QUIET;
    let mut arrived = 0;
    while arrived < sent && sockets.receive(until)?.is_some() {
        arrived += 1;
        until = until.max(Instant::now() + QUIET);
    }
    Ok(Some(Loss {
        lost: sent - arrived,
        sent,
    }))
}

/// The time between two packets at half of the narrowest link's rate, so that its buffer drops
/// nothing.
fn pace(path: &Impairments) -> Duration {
    let narrow = path.rate.map(|rate| 2 * rate.time(HEADERS_BYTES + 8));
    narrow.unwrap_or_default().max(PACE_MIN)
}

fn count(path: &Impairments, pace: Duration) -> u32 {
    let wanted = (EXPECTED / path.loss.probability()).clamp(SENT_MIN, SENT_MAX);
    let possible = SENDING_MAX.as_secs_f64() / pace.as_secs_f64();
    wanted.min(possible) as u32
}

/// Whether the measured loss fits the requested loss: within four standard deviations of the
/// binomial distribution, plus one packet. A correct path fails this test once in 15,000 times.
pub(super) fn is_plausible(measured: Loss, asked: impairments::Loss) -> bool {
    let (sent, probability) = (f64::from(measured.sent), asked.probability());
    let deviation = (sent * probability * (1.0 - probability)).sqrt();
    (f64::from(measured.lost) - sent * probability).abs() <= 4.0 * deviation + 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(loss: &str, rate: Option<&str>) -> Impairments {
        Impairments {
            loss: loss.parse().unwrap(),
            rate: rate.map(|rate| rate.parse().unwrap()),
            ..Impairments::default()
        }
    }

    #[test]
    fn as_many_packets_are_sent_as_show_the_share() {
        let count = |loss, rate| {
            let path = path(loss, rate);
            count(&path, pace(&path))
        };
        assert_eq!(count("1%", None), 5000);
        assert_eq!(count("50%", None), 500);
        assert_eq!(count("0.1%", None), 10_000);
        // 36 bytes take 2.88 ms, so the probe sends one packet every 5.76 ms.
        assert_eq!(count("1%", Some("100k")), 347);
    }

    #[test]
    fn twice_or_half_the_share_is_no_chance() {
        let plausible = |lost| is_plausible(Loss { lost, sent: 5000 }, "1%".parse().unwrap());
        assert!(plausible(50) && plausible(30) && plausible(70));
        assert!(!plausible(15) && !plausible(100));
    }
}

//! Samples a session's carriers, and sets the requested number of carriers.
//!
//! The sampler is not on the data path. The sampler reads each carrier's path once per
//! [`SAMPLE_EVERY`], and only if the number of carriers can change. [`crate::base::bottleneck`]
//! determines what holds up a carrier. [`crate::session::carrier_autoscaler`] computes the
//! requested number. If the peer dials the carriers, the session sends this number to the peer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::status::Limit;

use super::Driver;
use crate::base::carrier_history::{self, CarrierHistory, Gateway};
use crate::base::cpu::ThreadCpu;
use crate::io::transport::Path;
use crate::session::carrier_autoscaler::{self, CarrierAutoscaler};
use crate::session::mux::Progress;

const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// A stream that sends this number of bytes between two samples sends bulk.
const BULK_BYTES: f64 = (64 << 10) as f64;
/// How long the shortest round trip counts. The path may become longer.
const RTT_REMEMBERED: Duration = Duration::from_mins(10);

#[derive(Debug, Default)]
struct Seen {
    /// By number.
    carriers: BTreeMap<u64, CarrierHistory>,
    cpu: ThreadCpu,
    /// The shortest round trip of any carrier within [`RTT_REMEMBERED`], and when it was measured. A
    /// carrier that begins while the path has a queue only measures longer round trips.
    rtt_min: Option<(Duration, Instant)>,
}

impl Seen {
    /// Records the shortest round trip of a carrier; 0: unknown.
    fn measured(&mut self, rtt_min: Duration, now: Instant) {
        let is_least = |(least, at): (Duration, Instant)| {
            rtt_min <= least || now.saturating_duration_since(at) > RTT_REMEMBERED
        };
        if !rtt_min.is_zero() && self.rtt_min.is_none_or(is_least) {
            self.rtt_min = Some((rtt_min, now));
        }
    }

    /// Whether full buffers are the queue of the path: a round trip takes at least twice its minimum.
    /// More carriers would make this queue longer.
    fn queues(&self, rtt: Duration) -> bool {
        self.rtt_min.is_some_and(|(least, _)| rtt >= 2 * least)
    }
}

/// Takes samples as long as the session runs.
pub(super) async fn run(driver: &Rc<Driver>) -> Infallible {
    if !driver.config.carriers_vary {
        return std::future::pending().await;
    }
    driver.reached(Progress::Ready).await;
    let (mut seen, mut autoscaler) = (Seen::default(), CarrierAutoscaler::default());
    loop {
        let sample = driver.sample_carriers(super::now(), &mut seen);
        driver.want_carriers(autoscaler.sample(&sample));
        tokio::time::sleep(SAMPLE_EVERY).await;
    }
}

impl Driver {
    fn sample_carriers(&self, now: Instant, seen: &mut Seen) -> carrier_autoscaler::Sample {
        let session = self.engine.session.view();
        let gateway = Gateway {
            protocol: self.config.protocol,
            budget: self.config.memory.receive.0,
            cpu: seen.cpu.part(now),
        };
        let carriers = self.carriers.view();
        seen.carriers
            .retain(|number, _| carriers.contains_key(number));
        let streams = self.streams.all();
        let sent = streams.iter().map(|io| io.account.sent_since_last() as f64);
        let sent: Vec<f64> = sent.collect();
        let mut sample = carrier_autoscaler::Sample {
            at: now,
            up: 0,
            bulk: 0,
            held_by_congestion: 0,
            held_by_buffers: 0,
            streams: effective_number(sent.iter().copied()),
            bulk_sent: sent.iter().filter(|bytes| **bytes >= BULK_BYTES).sum(),
            small: session.has_small(),
            rate: 0.0,
            rtt: Duration::MAX,
        };
        for (number, carrier) in carriers.iter().filter(|(_, carrier)| carrier.is_up()) {
            sample.up += 1;
            let path = carrier.transport.path();
            let Some(Ok(path)) = path.map(Path::info) else {
                continue;
            };
            let history = seen.carriers.entry(*number).or_default();
            let received = carrier.stats.received.get();
            let budget_used = session.receive_budget_used();
            history.add(
                &gateway,
                carrier_history::Sample {
                    at: now,
                    path,
                    received,
                    budget_used,
                },
            );
            let verdict = history.verdict;
            sample.rate += verdict.map_or(0.0, |verdict| verdict.sent as f64);
            sample.rtt = sample.rtt.min(path.rtt_min);
            seen.measured(path.rtt_min, now);
            if session.takes_bulk(carrier.id) {
                sample.bulk += 1;
                match verdict.map(|verdict| verdict.limit) {
                    Some(Limit::SendBuffer | Limit::ReceiveWindow) if !seen.queues(path.rtt) => {
                        sample.held_by_buffers += 1;
                    }
                    Some(Limit::SendBuffer | Limit::ReceiveWindow | Limit::CongestionWindow) => {
                        sample.held_by_congestion += 1;
                    }
                    _ => {}
                }
            }
        }
        sample
    }
}

/// The number of streams with equal rates that would share the sum of `rates` as evenly as these
/// streams do: their number times their fairness index (Jain, Chiu, Hawe: "A Quantitative Measure of
/// Fairness and Discrimination", 1984). Streams that send little next to bulk count for almost
/// nothing.
fn effective_number(rates: impl Iterator<Item = f64>) -> usize {
    let (sum, squares) = rates.fold((0.0, 0.0), |(sum, squares), rate| {
        (sum + rate, squares + rate * rate)
    });
    if squares > 0.0 {
        (sum * sum / squares).round() as usize
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_count_by_their_part_of_the_bytes() {
        let number = |rates: &[f64]| effective_number(rates.iter().copied());
        assert_eq!(number(&[]), 0);
        assert_eq!(number(&[0.0, 0.0]), 0);
        assert_eq!(number(&[7e6]), 1);
        assert_eq!(number(&[3e6; 10]), 10);
        assert_eq!(number(&[1e6, 1e6, 2e6]), 3);
        let mut beside_small = vec![1e3; 100];
        beside_small.extend([5e6, 5e6]);
        assert_eq!(number(&beside_small), 2);
    }

    #[test]
    fn a_path_whose_round_trip_has_doubled_holds_a_queue() {
        let (ms, now) = (Duration::from_millis, super::super::now());
        let mut seen = Seen::default();
        seen.measured(Duration::ZERO, now);
        assert!(!seen.queues(ms(99)));
        seen.measured(ms(50), now);
        seen.measured(ms(90), now + RTT_REMEMBERED);
        assert!(seen.queues(ms(100)) && !seen.queues(ms(99)));
        seen.measured(ms(60), now + RTT_REMEMBERED + ms(1));
        assert!(!seen.queues(ms(119)), "the path has become longer");
    }
}

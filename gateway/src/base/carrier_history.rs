//! The samples of one carrier: how many bytes the carrier moved between the last two samples, and
//! what limited the carrier. This module does no I/O.
//!
//! A sample contains the transport's figures about its path, and counters that the workers maintain
//! anyway. [`crate::base::bottleneck`] judges the interval between two samples.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::Protocol;
use muxtunnel_gateway_config::status::Limit;

use crate::base::bottleneck::SampleInterval;
use crate::base::path::PathInfo;

/// How long after a loss the path counts as lossy. A congestion window needs about this time to
/// grow again.
const LOSS_REMEMBERED: Duration = Duration::from_secs(30);

/// Figures that all carriers of the gateway share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gateway {
    pub(crate) protocol: Protocol,
    /// The configured `memory.receive`, in bytes.
    pub(crate) budget: u64,
    pub(crate) cpu: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) path: PathInfo,
    /// Number of bytes read from the carrier.
    pub(crate) received: u64,
    pub(crate) budget_used: u64,
}

/// The verdict on the last interval of a carrier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) limit: Limit,
    pub(crate) advice: &'static str,
    /// Bytes sent per second.
    pub(crate) sent: u64,
    /// Bytes received per second.
    pub(crate) received: u64,
}

/// The samples of one carrier so far.
#[derive(Debug, Default)]
pub(crate) struct CarrierHistory {
    last: Option<Sample>,
    /// When segments were last retransmitted.
    lost: Option<Instant>,
    /// The latest verdict. `None` in the first second, and if the path lacks [`PathInfo::sending`]
    /// (QUIC, KCP, and TCP before Linux 4.10).
    pub(crate) verdict: Option<Verdict>,
    /// Seconds since the carrier came up, by limit; one entry per limit.
    pub(crate) seconds: BTreeMap<Limit, f64>,
}

impl CarrierHistory {
    pub(crate) fn add(&mut self, gateway: &Gateway, sample: Sample) {
        let Some(last) = self.last.replace(sample) else {
            return;
        };
        if sample.path.retransmits > last.path.retransmits {
            self.lost = Some(sample.at);
        }
        let lossy = (self.lost)
            .is_some_and(|lost| sample.at.saturating_duration_since(lost) < LOSS_REMEMBERED);
        let interval = interval(gateway, &last, &sample, lossy);
        self.verdict = interval.map(|interval| {
            let limit = interval.limit();
            *self.seconds.entry(limit).or_default() += interval.length.as_secs_f64();
            Verdict {
                limit,
                advice: interval.advice(limit),
                sent: interval.rate(interval.sent) as u64,
                received: interval.rate(interval.received) as u64,
            }
        });
    }
}

fn interval(gateway: &Gateway, from: &Sample, to: &Sample, lossy: bool) -> Option<SampleInterval> {
    let (before, after) = (from.path.sending?, to.path.sending?);
    Some(SampleInterval {
        length: to.at.saturating_duration_since(from.at),
        busy: after.busy.saturating_sub(before.busy),
        window_limited: after.window_limited.saturating_sub(before.window_limited),
        send_buffer_limited: (after.send_buffer_limited).saturating_sub(before.send_buffer_limited),
        sent: (to.path.acknowledged).saturating_sub(from.path.acknowledged),
        received: to.received.saturating_sub(from.received),
        lossy,
        rtt: to.path.rtt,
        congestion_window: to.path.congestion_window,
        unacknowledged: to.path.unacknowledged,
        not_sent: to.path.queued,
        app_limited: to.path.app_limited,
        budget: gateway.budget,
        budget_used: to.budget_used,
        // With JMUX, `budget_used` also contains unused credit. HTTP/2, QUIC and SSH do not report
        // credit.
        waiting: match gateway.protocol {
            Protocol::Native => to.budget_used,
            Protocol::Jmux
            | Protocol::Http2
            | Protocol::Hbone
            | Protocol::Quic
            | Protocol::Http3
            | Protocol::Ssh => 0,
        },
        cpu: gateway.cpu,
    })
}

#[cfg(test)]
mod tests {
    use crate::base::path::SendTimes;

    use super::*;

    const GATEWAY: Gateway = Gateway {
        protocol: Protocol::Native,
        budget: 1 << 20,
        cpu: None,
    };

    fn sample(at: Instant, acknowledged: u64, window_limited: Duration) -> Sample {
        Sample {
            at,
            path: PathInfo {
                acknowledged,
                sending: Some(SendTimes {
                    busy: window_limited,
                    window_limited,
                    send_buffer_limited: Duration::ZERO,
                }),
                ..PathInfo::default()
            },
            received: 0,
            budget_used: 0,
        }
    }

    #[test]
    fn a_verdict_is_of_the_interval_between_two_samples() {
        let start = Instant::now();
        let mut history = CarrierHistory::default();
        let long_ago = Duration::from_secs(3600);
        history.add(&GATEWAY, sample(start, 1 << 30, long_ago));
        assert!(history.verdict.is_none());
        let second = Duration::from_secs(1);
        let more = sample(start + second, (1 << 30) + 5000, long_ago + second);
        history.add(&GATEWAY, more);
        let verdict = history.verdict.unwrap();
        assert_eq!(
            (verdict.limit, verdict.sent, verdict.received),
            (Limit::ReceiveWindow, 5000, 0)
        );
        history.add(
            &GATEWAY,
            Sample {
                at: start + 3 * second,
                ..more
            },
        );
        assert_eq!(history.verdict.unwrap().limit, Limit::Idle);
        let seconds = [(Limit::ReceiveWindow, 1.0), (Limit::Idle, 2.0)];
        assert_eq!(history.seconds, BTreeMap::from(seconds));
    }

    #[test]
    fn loss_is_remembered_for_a_while() {
        let (start, mut history) = (Instant::now(), CarrierHistory::default());
        let mut advice = |seconds, retransmits| {
            let at = start + Duration::from_secs(seconds);
            let mut sample = sample(at, 0, Duration::ZERO);
            sample.path.retransmits = retransmits;
            sample.path.queued = 1;
            sample.path.sending = Some(SendTimes {
                busy: Duration::from_secs(seconds),
                ..SendTimes::default()
            });
            history.add(&GATEWAY, sample);
            history
                .verdict
                .map(|verdict| verdict.advice.contains("loses"))
        };
        // The loss occurred before the first sample, at an unknown time.
        assert_eq!(advice(0, 7), None);
        assert_eq!(advice(1, 7), Some(false));
        assert_eq!(advice(2, 8), Some(true));
        assert_eq!(advice(31, 8), Some(true));
        assert_eq!(advice(32, 8), Some(false));
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_not_judged() {
        let mut history = CarrierHistory::default();
        let start = Instant::now();
        let mut old_kernel = sample(start, 0, Duration::ZERO);
        old_kernel.path.sending = None;
        for seconds in 0..2 {
            let at = start + Duration::from_secs(seconds);
            history.add(&GATEWAY, Sample { at, ..old_kernel });
        }
        assert!(history.verdict.is_none() && history.seconds.is_empty());
    }

    #[test]
    fn credit_of_jmux_is_not_taken_for_payload_that_waits() {
        let start = Instant::now();
        let limit = |protocol| {
            let gateway = Gateway {
                protocol,
                ..GATEWAY
            };
            let mut history = CarrierHistory::default();
            for seconds in 0..2 {
                let at = start + Duration::from_secs(seconds);
                let budget_used = 1 << 20;
                history.add(
                    &gateway,
                    Sample {
                        budget_used,
                        ..sample(at, 0, Duration::ZERO)
                    },
                );
            }
            history.verdict.unwrap().limit
        };
        assert_eq!(limit(Protocol::Native), Limit::Memory);
        assert_eq!(limit(Protocol::Jmux), Limit::Idle);
    }
}

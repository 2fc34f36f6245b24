//! Looks at every carrier once a second, on the admin thread: how much it moved, and what limits it.
//!
//! Reads the kernel's TCP_INFO and the counters that the workers write anyway, so nothing is added to
//! the way of a byte. [`crate::limit`] judges.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::Protocol;
use muxtunnel_gateway_config::status::Limit;
use tokio::time::MissedTickBehavior;

use crate::cpu::WorkersCpu;
use crate::limit::Stretch;
use crate::sys::TcpInfo;
use crate::telemetry::Telemetry;

/// Between two looks: a stretch is as long, or longer where the thread came late.
const INTERVAL: Duration = Duration::from_secs(1);
/// A path that lost something this long ago loses: a congestion window takes as long to grow again.
const LOSS_REMEMBERED: Duration = Duration::from_secs(30);

/// Measures for as long as the process lives.
pub(crate) async fn follow(telemetry: &Telemetry) {
    let mut cpu = WorkersCpu::default();
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let now = Instant::now();
        telemetry.measure(now, cpu.busiest(now));
    }
}

/// What holds for all carriers of the gateway.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gateway {
    pub(crate) protocol: Protocol,
    /// `memory.receive`.
    pub(crate) budget: u64,
    pub(crate) cpu: Option<f64>,
}

/// One look at a carrier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) at: Instant,
    pub(crate) tcp: TcpInfo,
    /// Bytes read from it.
    pub(crate) received: u64,
    pub(crate) budget_used: u64,
}

/// What the last stretch of a carrier came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) limit: Limit,
    pub(crate) advice: &'static str,
    /// Bytes a second.
    pub(crate) sent: u64,
    /// Bytes a second.
    pub(crate) received: u64,
}

/// What is known of one carrier.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    last: Option<Look>,
    /// When segments had been sent again.
    lost: Option<Instant>,
    /// `None` in its first second, and where the kernel does not tell (Linux before 4.10).
    pub(crate) verdict: Option<Verdict>,
    /// Seconds since it came up, by what limited it; bounded by the limits that exist.
    pub(crate) seconds: BTreeMap<Limit, f64>,
}

impl Measured {
    /// Takes in one more look.
    pub(crate) fn add(&mut self, gateway: &Gateway, look: Look) {
        let Some(last) = self.last.replace(look) else {
            return;
        };
        if look.tcp.retransmits > last.tcp.retransmits {
            self.lost = Some(look.at);
        }
        let lossy = (self.lost)
            .is_some_and(|lost| look.at.saturating_duration_since(lost) < LOSS_REMEMBERED);
        let stretch = stretch(gateway, &last, &look, lossy);
        self.verdict = stretch.map(|stretch| {
            let limit = stretch.limit();
            *self.seconds.entry(limit).or_default() += stretch.length.as_secs_f64();
            Verdict {
                limit,
                advice: stretch.advice(limit),
                sent: stretch.rate(stretch.sent) as u64,
                received: stretch.rate(stretch.received) as u64,
            }
        });
    }
}

fn stretch(gateway: &Gateway, from: &Look, to: &Look, lossy: bool) -> Option<Stretch> {
    let (before, after) = (from.tcp.sending?, to.tcp.sending?);
    Some(Stretch {
        length: to.at.saturating_duration_since(from.at),
        busy: after.busy.saturating_sub(before.busy),
        window_limited: after.window_limited.saturating_sub(before.window_limited),
        send_buffer_limited: (after.send_buffer_limited).saturating_sub(before.send_buffer_limited),
        sent: to.tcp.acknowledged.saturating_sub(from.tcp.acknowledged),
        received: to.received.saturating_sub(from.received),
        lossy,
        rtt: to.tcp.rtt,
        congestion_window: to.tcp.congestion_window,
        unacknowledged: to.tcp.unacknowledged,
        not_sent: to.tcp.not_sent_bytes,
        app_limited: to.tcp.app_limited,
        budget: gateway.budget,
        budget_used: to.budget_used,
        // JMUX counts credit that is out as well, used or not.
        waiting: match gateway.protocol {
            Protocol::Native => to.budget_used,
            Protocol::Jmux => 0,
        },
        cpu: gateway.cpu,
    })
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a test's clock has to begin somewhere"
)]
mod tests {
    use crate::sys::SendTimes;

    use super::*;

    const GATEWAY: Gateway = Gateway {
        protocol: Protocol::Native,
        budget: 1 << 20,
        cpu: None,
    };

    fn look(at: Instant, acknowledged: u64, window_limited: Duration) -> Look {
        Look {
            at,
            tcp: TcpInfo {
                acknowledged,
                sending: Some(SendTimes {
                    busy: window_limited,
                    window_limited,
                    send_buffer_limited: Duration::ZERO,
                }),
                ..TcpInfo::default()
            },
            received: 0,
            budget_used: 0,
        }
    }

    #[test]
    fn a_verdict_is_of_the_stretch_between_two_looks() {
        let start = Instant::now();
        let mut measured = Measured::default();
        let long_ago = Duration::from_secs(3600);
        measured.add(&GATEWAY, look(start, 1 << 30, long_ago));
        assert!(measured.verdict.is_none());
        let second = Duration::from_secs(1);
        let more = look(start + second, (1 << 30) + 5000, long_ago + second);
        measured.add(&GATEWAY, more);
        let verdict = measured.verdict.unwrap();
        assert_eq!(
            (verdict.limit, verdict.sent, verdict.received),
            (Limit::ReceiveWindow, 5000, 0)
        );
        measured.add(
            &GATEWAY,
            Look {
                at: start + 3 * second,
                ..more
            },
        );
        assert_eq!(measured.verdict.unwrap().limit, Limit::Idle);
        let seconds = [(Limit::ReceiveWindow, 1.0), (Limit::Idle, 2.0)];
        assert_eq!(measured.seconds, BTreeMap::from(seconds));
    }

    #[test]
    fn loss_is_remembered_for_a_while() {
        let (start, mut measured) = (Instant::now(), Measured::default());
        let mut advice = |seconds, retransmits| {
            let at = start + Duration::from_secs(seconds);
            let mut look = look(at, 0, Duration::ZERO);
            look.tcp.retransmits = retransmits;
            look.tcp.not_sent_bytes = 1;
            look.tcp.sending = Some(SendTimes {
                busy: Duration::from_secs(seconds),
                ..SendTimes::default()
            });
            measured.add(&GATEWAY, look);
            measured
                .verdict
                .map(|verdict| verdict.advice.contains("loses"))
        };
        // Lost before the first look: nobody knows when.
        assert_eq!(advice(0, 7), None);
        assert_eq!(advice(1, 7), Some(false));
        assert_eq!(advice(2, 8), Some(true));
        assert_eq!(advice(31, 8), Some(true));
        assert_eq!(advice(32, 8), Some(false));
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_not_judged() {
        let mut measured = Measured::default();
        let start = Instant::now();
        let mut old_kernel = look(start, 0, Duration::ZERO);
        old_kernel.tcp.sending = None;
        for seconds in 0..2 {
            let at = start + Duration::from_secs(seconds);
            measured.add(&GATEWAY, Look { at, ..old_kernel });
        }
        assert!(measured.verdict.is_none() && measured.seconds.is_empty());
    }

    #[test]
    fn credit_of_jmux_is_not_taken_for_payload_that_waits() {
        let start = Instant::now();
        let limit = |protocol| {
            let gateway = Gateway {
                protocol,
                ..GATEWAY
            };
            let mut measured = Measured::default();
            for seconds in 0..2 {
                let at = start + Duration::from_secs(seconds);
                let budget_used = 1 << 20;
                measured.add(
                    &gateway,
                    Look {
                        budget_used,
                        ..look(at, 0, Duration::ZERO)
                    },
                );
            }
            measured.verdict.unwrap().limit
        };
        assert_eq!(limit(Protocol::Native), Limit::Memory);
        assert_eq!(limit(Protocol::Jmux), Limit::Idle);
    }
}

//! Determines what limits a carrier in the interval between two samples. This module does no I/O.
//!
//! The kernel reports figures of the sending direction. For the receiving direction, the gateway
//! knows only its own memory and CPU time. So the sending gateway judges a direction, and the
//! receiving gateway judges only its own memory and CPU time. To this module, a stream without
//! credit looks the same as a stream without data.

use std::time::Duration;

use muxtunnel_gateway_config::status::Limit;

/// If a cause holds for at least this fraction of the interval, the cause is the limit. If at least
/// this fraction of the receive budget is in flight, the budget is the limit.
const MOST: f64 = 0.5;
/// If the busiest worker was running or ready to run for at least this fraction of the interval,
/// the worker is short of CPU time.
const CPU_FULL: f64 = 0.9;
/// If at least this fraction of the receive budget is in use, the budget is full.
const BUDGET_FULL: f64 = 0.9;
/// If at least this fraction of the congestion window is in flight, the window is a limit.
const WINDOW_FULL: f64 = 0.9;
/// If a carrier moves fewer bytes per second than this in both directions together, and no bytes
/// wait, the carrier is idle. Keepalives alone stay below this rate.
const IDLE_RATE: f64 = 1000.0;

/// The activity of one carrier in an interval of about one second.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SampleInterval {
    /// Length of the interval.
    pub(crate) length: Duration,
    /// Time with bytes to send or unacknowledged bytes; includes `window_limited` and
    /// `send_buffer_limited`.
    pub(crate) busy: Duration,
    /// Time in which the peer's kernel had no room for more bytes.
    pub(crate) window_limited: Duration,
    /// Time in which the send buffer was too small for the bytes in flight.
    pub(crate) send_buffer_limited: Duration,
    /// Bytes that the peer's kernel acknowledged.
    pub(crate) sent: u64,
    /// Bytes received.
    pub(crate) received: u64,
    /// Whether segments were retransmitted in the interval or shortly before.
    pub(crate) lossy: bool,
    /// Round trip time at the end of the interval.
    pub(crate) rtt: Duration,
    /// Congestion window in segments at the end of the interval.
    pub(crate) congestion_window: u32,
    /// Segments in flight at the end of the interval.
    pub(crate) unacknowledged: u32,
    /// Bytes that the kernel has not sent yet, at the end of the interval.
    pub(crate) not_sent: u32,
    /// Whether the kernel's latest rate is limited by the application, not by the path.
    pub(crate) app_limited: bool,
    /// The configured `memory.receive`, in bytes.
    pub(crate) budget: u64,
    /// Used part of `budget` at the end of the interval, in bytes.
    pub(crate) budget_used: u64,
    /// Received bytes of payload that local sockets have not taken; 0 if the protocol does not
    /// report them.
    pub(crate) waiting: u64,
    /// Fraction of the interval in which the busiest worker ran or was ready to run; `None`:
    /// unknown.
    pub(crate) cpu: Option<f64>,
}

impl SampleInterval {
    /// Returns the verdict. The gateway's own CPU and memory are checked first. If a gateway is
    /// short of CPU time or memory, it reads and writes late. In the kernel's figures, this delay
    /// looks like a limit of the peer or the path.
    pub(crate) fn limit(&self) -> Limit {
        if self.is_idle() {
            Limit::Idle
        } else if self.cpu.is_some_and(|cpu| cpu >= CPU_FULL) {
            Limit::Cpu
        } else if self.is_memory_full() {
            Limit::Memory
        } else if self.part(self.window_limited) >= MOST {
            Limit::ReceiveWindow
        } else if self.part(self.send_buffer_limited) >= MOST {
            Limit::SendBuffer
        } else if self.is_window_full() {
            Limit::CongestionWindow
        } else {
            Limit::Application
        }
    }

    /// What the operator of the gateway can do about `limit`.
    pub(crate) fn advice(&self, limit: Limit) -> &'static str {
        match limit {
            Limit::Cpu => {
                "The busiest worker of this gateway has no CPU time left: raise the gateway's CPU limit, and set more \
                 workers if the node has more cores"
            }
            Limit::Memory => {
                "This gateway's receive budget is full. If clients or targets of this gateway read slowly, change nothing. \
                 Otherwise raise memory.receive (with the operator: the container's memory limit)"
            }
            Limit::ReceiveWindow => {
                "The peer's kernel has no room for more received bytes. If the peer is short of CPU time, raise its CPU limit. \
                 Otherwise raise net.ipv4.tcp_rmem of the peer (tuning.profile WAN, or tuning.sysctls for a larger value)"
            }
            Limit::SendBuffer => {
                "The send buffer is smaller than the path's bandwidth-delay product: raise net.ipv4.tcp_wmem of the \
                 sending gateway (tuning.profile WAN, or tuning.sysctls for a larger value), or use more carriers (pool.max)"
            }
            Limit::CongestionWindow if self.lossy => {
                "The path loses packets, and the congestion window shrinks after each loss: set congestionControl BBR, \
                 or use more carriers (pool.max, workers or replicas of the entry)"
            }
            Limit::CongestionWindow => {
                "The congestion window is full. If the carrier is new or has the path's full rate, change nothing. \
                 If other connections share the path, use more carriers (pool.max, workers or replicas of the entry)"
            }
            Limit::Application => {
                "The carrier is not the limit: clients and targets are slow, limits.rate of a \
                 forward delays them, or the other gateway gives no more credit (see the bottleneck that the \
                 other gateway reports)"
            }
            Limit::Idle | Limit::Other => "No action: the carrier is not limited",
        }
    }

    /// The rate of `bytes` in this interval, in bytes per second.
    pub(crate) fn rate(&self, bytes: u64) -> f64 {
        let seconds = self.length.as_secs_f64();
        if seconds > 0.0 {
            bytes as f64 / seconds
        } else {
            0.0
        }
    }

    fn part(&self, time: Duration) -> f64 {
        let length = self.length.as_secs_f64();
        if length > 0.0 {
            time.as_secs_f64() / length
        } else {
            0.0
        }
    }

    /// Whether almost no bytes moved and no bytes wait. Bytes that wait for the peer keep the
    /// carrier busy.
    fn is_idle(&self) -> bool {
        self.rate(self.sent.saturating_add(self.received)) < IDLE_RATE
            && self.part(self.busy) < MOST
            && self.waiting == 0
    }

    /// Whether the whole budget is in use, or the bytes in flight are half of the budget. Half is
    /// enough, because windows are twice as large as the bytes in flight.
    fn is_memory_full(&self) -> bool {
        let budget = self.budget as f64;
        let in_use = if self.received > 0 {
            self.budget_used
        } else {
            // Unused credit does not limit a carrier.
            self.waiting
        };
        let on_its_way = self.rate(self.received) * self.rtt.as_secs_f64();
        in_use as f64 >= budget * BUDGET_FULL || on_its_way >= budget * MOST
    }

    /// Whether the congestion window, or the pacing that follows from it, delays bytes.
    /// `app_limited` has no meaning before the first acknowledgement.
    fn is_window_full(&self) -> bool {
        let full = f64::from(self.congestion_window) * WINDOW_FULL;
        self.part(self.busy) >= MOST
            && (self.not_sent > 0 || f64::from(self.unacknowledged) >= full)
            && (!self.app_limited || self.sent == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn milliseconds(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// A carrier with few bytes in each direction and no limit.
    fn calm() -> SampleInterval {
        SampleInterval {
            length: milliseconds(1000),
            busy: milliseconds(200),
            sent: MIB,
            received: MIB,
            rtt: milliseconds(100),
            congestion_window: 100,
            unacknowledged: 10,
            app_limited: true,
            budget: 256 * MIB,
            cpu: Some(0.1),
            ..SampleInterval::default()
        }
    }

    /// A sender with more data than the path accepts.
    fn bulk() -> SampleInterval {
        SampleInterval {
            busy: milliseconds(1000),
            unacknowledged: 60,
            not_sent: 100_000,
            app_limited: false,
            ..calm()
        }
    }

    #[test]
    fn a_carrier_that_takes_all_it_is_given_is_limited_by_the_application() {
        assert_eq!(calm().limit(), Limit::Application);
    }

    #[test]
    fn small_exchanges_over_a_long_path_keep_it_busy_and_are_the_applications() {
        let exchanges = SampleInterval {
            busy: milliseconds(1000),
            sent: 640,
            received: 640,
            unacknowledged: 1,
            ..calm()
        };
        assert_eq!(exchanges.limit(), Limit::Application);
    }

    #[test]
    fn keeping_a_carrier_alive_is_idle_and_a_kilobyte_a_second_is_not() {
        let moved = |sent, received| SampleInterval {
            busy: milliseconds(100),
            sent,
            received,
            ..calm()
        };
        assert_eq!(moved(500, 499).limit(), Limit::Idle);
        assert_eq!(moved(500, 500).limit(), Limit::Application);
        let two_seconds = SampleInterval {
            length: milliseconds(2000),
            ..moved(500, 500)
        };
        assert_eq!(two_seconds.limit(), Limit::Idle);
    }

    #[test]
    fn nothing_at_all_in_no_time_is_idle() {
        assert_eq!(SampleInterval::default().limit(), Limit::Idle);
    }

    #[test]
    fn a_target_that_takes_nothing_is_the_application_until_the_memory_is_full() {
        let stalled = |waiting| SampleInterval {
            sent: 0,
            received: 0,
            busy: Duration::ZERO,
            waiting,
            budget_used: waiting,
            ..calm()
        };
        assert_eq!(stalled(0).limit(), Limit::Idle);
        assert_eq!(stalled(MIB).limit(), Limit::Application);
        assert_eq!(stalled(231 * MIB).limit(), Limit::Memory);
    }

    #[test]
    fn credit_that_nobody_uses_is_no_limit() {
        let granted = SampleInterval {
            budget_used: 256 * MIB,
            ..calm()
        };
        assert_eq!(granted.limit(), Limit::Memory);
        let quiet = SampleInterval {
            received: 0,
            ..granted
        };
        assert_eq!(quiet.limit(), Limit::Application);
    }

    #[test]
    fn memory_limits_where_half_of_it_is_on_its_way() {
        let receiving = |received| SampleInterval { received, ..calm() };
        // At a round trip of 100 ms, a tenth of these bytes is in flight: half of the budget of 256
        // MiB.
        assert_eq!(receiving(1280 * MIB).limit(), Limit::Memory);
        assert_eq!(receiving(1279 * MIB).limit(), Limit::Application);
    }

    #[test]
    fn the_peers_window_limits_from_half_of_the_time_on() {
        let limited = |time| SampleInterval {
            window_limited: milliseconds(time),
            ..bulk()
        };
        assert_eq!(limited(500).limit(), Limit::ReceiveWindow);
        assert_eq!(limited(499).limit(), Limit::CongestionWindow);
    }

    #[test]
    fn the_send_buffer_limits_from_half_of_the_time_on() {
        let limited = |time| SampleInterval {
            send_buffer_limited: milliseconds(time),
            ..bulk()
        };
        assert_eq!(limited(500).limit(), Limit::SendBuffer);
        assert_eq!(limited(499).limit(), Limit::CongestionWindow);
    }

    #[test]
    fn the_congestion_window_limits_while_more_waits_than_it_lets_out() {
        assert_eq!(bulk().limit(), Limit::CongestionWindow);
        let sent_all = SampleInterval {
            not_sent: 0,
            ..bulk()
        };
        assert_eq!(sent_all.limit(), Limit::Application);
        let full = SampleInterval {
            unacknowledged: 90,
            ..sent_all
        };
        assert_eq!(full.limit(), Limit::CongestionWindow);
        let pausing = SampleInterval {
            busy: milliseconds(499),
            ..bulk()
        };
        assert_eq!(pausing.limit(), Limit::Application);
        let slow_sender = SampleInterval {
            app_limited: true,
            ..bulk()
        };
        assert_eq!(slow_sender.limit(), Limit::Application);
    }

    #[test]
    fn a_path_that_is_cut_is_a_matter_of_the_congestion_window() {
        let cut = SampleInterval {
            sent: 0,
            received: 0,
            congestion_window: 1,
            unacknowledged: 40,
            app_limited: true,
            ..bulk()
        };
        assert_eq!(cut.limit(), Limit::CongestionWindow);
    }

    #[test]
    fn a_worker_without_time_is_said_first_and_an_idle_carrier_is_idle_all_the_same() {
        let everything = SampleInterval {
            cpu: Some(0.9),
            received: 2560 * MIB,
            window_limited: milliseconds(500),
            send_buffer_limited: milliseconds(500),
            ..bulk()
        };
        let order = [
            everything,
            SampleInterval {
                cpu: Some(0.89),
                ..everything
            },
            SampleInterval {
                cpu: None,
                received: 0,
                ..everything
            },
            SampleInterval {
                cpu: None,
                received: 0,
                window_limited: Duration::ZERO,
                ..everything
            },
        ];
        let limits = [
            Limit::Cpu,
            Limit::Memory,
            Limit::ReceiveWindow,
            Limit::SendBuffer,
        ];
        assert_eq!(order.map(|interval| interval.limit()), limits);
        let idle = SampleInterval {
            cpu: Some(1.0),
            ..SampleInterval::default()
        };
        assert_eq!(idle.limit(), Limit::Idle);
    }

    #[test]
    fn what_to_change_depends_on_loss() {
        let lossy = SampleInterval {
            lossy: true,
            ..bulk()
        };
        let [lossy, clean] = [lossy, bulk()].map(|s| s.advice(Limit::CongestionWindow));
        assert!(lossy.contains("BBR") && !clean.contains("BBR"));
    }

    #[test]
    fn every_verdict_has_a_sentence_that_fits_into_a_status() {
        for limit in Limit::ALL {
            let advice = bulk().advice(limit);
            assert!(!advice.is_empty() && advice.len() < 240, "{limit:?}");
        }
    }
}

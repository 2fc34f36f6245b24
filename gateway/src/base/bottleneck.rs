//! What limits a carrier: a verdict on the interval between two samples. Pure.
//!
//! The kernel's figures are of the sending direction; of what this gateway receives its own memory and
//! CPU time alone are known. So a direction is judged by the gateway that sends, and by the memory and
//! the CPU of the one that receives. A stream without credit looks like one without data.

use std::time::Duration;

use muxtunnel_gateway_config::status::Limit;

/// Part of the interval, or of what there is, from which on something limits.
const MOST: f64 = 0.5;
/// Part of the interval that a worker has at most where it is not short of CPU time.
const CPU_FULL: f64 = 0.9;
/// Part of the receive budget that is in use where there is no more to grant.
const BUDGET_FULL: f64 = 0.9;
/// Part of the congestion window that is on its way where the window holds back.
const WINDOW_FULL: f64 = 0.9;
/// Bytes a second, both ways: keeping a carrier alive takes less.
const IDLE_RATE: f64 = 1000.0;

/// What one carrier did in an interval of about a second.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SampleInterval {
    /// How long it is.
    pub(crate) length: Duration,
    /// Something was to be sent or not acknowledged, the next two included.
    pub(crate) busy: Duration,
    /// The peer's kernel had no room for more.
    pub(crate) window_limited: Duration,
    /// The send buffer was too small for what was on its way.
    pub(crate) send_buffer_limited: Duration,
    /// Bytes that the peer's kernel acknowledged.
    pub(crate) sent: u64,
    /// Bytes that came.
    pub(crate) received: u64,
    /// Segments were sent again in it or shortly before.
    pub(crate) lossy: bool,
    /// Round trip at its end.
    pub(crate) rtt: Duration,
    /// Segments, at its end.
    pub(crate) congestion_window: u32,
    /// Segments on their way at its end.
    pub(crate) unacknowledged: u32,
    /// Bytes with the kernel that it has not sent, at its end.
    pub(crate) not_sent: u32,
    /// The kernel's latest measurement of the rate is of the application, not of the path.
    pub(crate) app_limited: bool,
    /// `memory.receive`.
    pub(crate) budget: u64,
    /// What is in use of it at its end.
    pub(crate) budget_used: u64,
    /// Payload that came and local sockets have not taken, where the protocol tells.
    pub(crate) waiting: u64,
    /// The part of the interval that the busiest worker ran, or was ready to; `None`: not known.
    pub(crate) cpu: Option<f64>,
}

impl SampleInterval {
    /// The verdict. The gateway's own means come first, because a gateway that is short of them reads
    /// and writes late, which looks like a limit of the peer or the path.
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

    /// What to change about `limit`.
    pub(crate) fn advice(&self, limit: Limit) -> &'static str {
        match limit {
            Limit::Cpu => {
                "The busiest worker of this gateway has no CPU time left: raise the CPU limit, and give it more \
                 workers where the node has the cores"
            }
            Limit::Memory => {
                "This gateway may hold no more for its peer: raise memory.receive (the container's memory limit), \
                 unless its local sockets are what reads slowly"
            }
            Limit::ReceiveWindow => {
                "The peer's kernel has no room for more: raise net.ipv4.tcp_rmem of the receiving gateway \
                 (tuning.profile Wan; beyond it tuning.sysctls), unless that gateway is short of CPU time"
            }
            Limit::SendBuffer => {
                "The send buffer is smaller than the path: raise net.ipv4.tcp_wmem of the sending gateway \
                 (tuning.profile Wan; beyond it tuning.sysctls, or more carriers by pool.max)"
            }
            Limit::CongestionWindow if self.lossy => {
                "The path loses packets, and the congestion window is small after each: set congestionControl Bbr, \
                 or more carriers (pool.max, workers or replicas of the entry)"
            }
            Limit::CongestionWindow => {
                "The path takes no more at once: nothing, where this is its rate; more carriers (pool.max, \
                 workers or replicas of the entry), where each has a share; a fresh carrier grows by itself"
            }
            Limit::Application => {
                "Nothing, the carrier would take more: clients and targets send or take no more, limits.rate of a \
                 forward has them wait, or the other gateway gives no more credit (see its limit)"
            }
            Limit::Idle | Limit::Other => "Nothing: there is nothing to do",
        }
    }

    /// Bytes a second of `bytes` in this interval.
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

    /// Hardly a byte moved, and none wants to: what waits for the peer keeps the carrier busy.
    fn is_idle(&self) -> bool {
        self.rate(self.sent.saturating_add(self.received)) < IDLE_RATE
            && self.part(self.busy) < MOST
            && self.waiting == 0
    }

    /// All that may be granted is in use; or what is on its way is half of it: windows are made for
    /// twice that.
    fn is_memory_full(&self) -> bool {
        let budget = self.budget as f64;
        let in_use = if self.received > 0 {
            self.budget_used
        } else {
            // What was granted long ago and nobody uses is no limit.
            self.waiting
        };
        let on_its_way = self.rate(self.received) * self.rtt.as_secs_f64();
        in_use as f64 >= budget * BUDGET_FULL || on_its_way >= budget * MOST
    }

    /// There is more to send than the window, or its pace, lets out. A flag from before anything was
    /// acknowledged says nothing.
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

    /// Some bytes go each way, and nothing holds them up.
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

    /// A sender that has more than the path takes.
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
        // In 100 ms a tenth of it.
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
        assert!(lossy.contains("Bbr") && !clean.contains("Bbr"));
    }

    #[test]
    fn every_verdict_has_a_sentence_that_fits_into_a_status() {
        for limit in Limit::ALL {
            let advice = bulk().advice(limit);
            assert!(!advice.is_empty() && advice.len() < 240, "{limit:?}");
        }
    }
}

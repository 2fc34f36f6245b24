//! Samples every carrier once per second on the admin thread, and determines its throughput and its
//! bottleneck ([`crate::base::carrier_history`]). The data path does no extra work.

use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use crate::base::cpu::WorkersCpu;
use crate::base::telemetry::Telemetry;

/// Interval between two samples. The interval is longer if the thread was delayed.
const INTERVAL: Duration = Duration::from_secs(1);
/// Samples until the process ends.
pub(crate) async fn follow(telemetry: &Telemetry) {
    let mut cpu = WorkersCpu::default();
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let now = Instant::now();
        telemetry.sample_carriers(now, cpu.busiest(now));
    }
}

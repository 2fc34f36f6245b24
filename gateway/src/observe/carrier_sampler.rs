//! Samples every carrier once a second, on the admin thread: how much it moved, and what limits it
//! ([`crate::base::carrier_history`]). Nothing is added to the data path.

use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use crate::base::cpu::WorkersCpu;
use crate::base::telemetry::Telemetry;

/// Between two samples; longer where the thread came late.
const INTERVAL: Duration = Duration::from_secs(1);
/// Samples for as long as the process lives.
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

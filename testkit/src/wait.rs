//! Waits for conditions.

use std::time::{Duration, Instant};

/// Time-out of every wait. If the condition is still false at the time-out, the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` is true.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

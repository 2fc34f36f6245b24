//! Waiting for what comes by itself.

use std::time::{Duration, Instant};

/// Longest wait for anything; reaching it fails the test.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for `condition`.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

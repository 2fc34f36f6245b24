//! The operator's clock. No other code of the operator reads the system's time (`clippy.toml`).
//!
//! A reconciliation reads the clock once, and gives the [`Now`] to its steps as a value. All
//! decisions of a reconciliation therefore use the same time.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

/// The source of the time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The system's clock.
    #[expect(clippy::disallowed_methods, reason = "the operator's only clock")]
    pub fn system() -> Self {
        Self::of(Timestamp::now)
    }

    /// A clock that shows what `time` returns.
    pub fn of(time: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(time))
    }

    /// Reads the clock.
    pub fn now(&self) -> Now {
        Now {
            time: (self.0)(),
            instant: Instant::now(),
        }
    }
}

/// The time of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The date and the time of day.
    pub time: Timestamp,
    /// The monotonic time, for pauses.
    pub instant: Instant,
}

impl Now {
    /// Seconds since 1970.
    pub fn seconds(self) -> i64 {
        self.time.as_second()
    }

    /// The time for the status. Kubernetes stores whole seconds, so a finer time would differ from
    /// the stored time.
    pub fn whole_second(self) -> Time {
        let second = Timestamp::from_second(self.time.as_second());
        Time(second.unwrap_or(self.time))
    }
}

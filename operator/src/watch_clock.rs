//! The age of the operator's watches.
//!
//! Every watch restarts after [`crate::watches::WATCH_SECONDS`]. [`WatchClock`], a layer of the
//! client, records each start that the API server answers. A metric shows the age of each watch,
//! and a condition of the affected tunnels reports stale watches. A restart of the operator repairs
//! neither a missing permission nor a missing definition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Uri};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::interceptor::{Answer, Interceptor, is_watch};

/// A watch is stale if its last answered start is older than this. This time is three watch calls
/// of 50 s, plus the longest back-off of 30 s.
pub(crate) const STALE_AFTER: Duration = Duration::from_secs(180);

/// When each watch last started. The table has one entry per watch, and there are few watches.
#[derive(Debug, Default)]
pub struct WatchClock {
    watches: Mutex<BTreeMap<String, Watch>>,
}

#[derive(Debug, Clone, Copy)]
struct Watch {
    last_good: Instant,
    ever_answered: bool,
}

impl Watch {
    fn is_current(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_good) <= STALE_AFTER
    }
}

impl WatchClock {
    /// Expects watches of `path` (the collection's URL path) from now on.
    pub fn expect(&self, path: &str) {
        let watch = Watch {
            last_good: Instant::now(),
            ever_answered: false,
        };
        self.watches.lock().insert(path.to_owned(), watch);
    }

    /// Stops expecting watches of `path`.
    pub fn forget(&self, path: &str) {
        self.watches.lock().remove(path);
    }

    fn begun(&self, path: &str) {
        if let Some(watch) = self.watches.lock().get_mut(path) {
            watch.last_good = Instant::now();
            watch.ever_answered = true;
        }
    }

    /// The paths of stale watches that serve objects of `namespace`: watches of the namespace and
    /// of the whole cluster.
    pub fn stale(&self, namespace: &str) -> Vec<String> {
        let now = Instant::now();
        let serves = |path: &str| {
            let mut parts = path.split('/').skip_while(|part| *part != "namespaces");
            parts.nth(1).is_none_or(|of| of == namespace)
        };
        self.watches
            .lock()
            .iter()
            .filter(|(path, watch)| !watch.is_current(now) && serves(path))
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// Whether at least one watch was answered and is not stale.
    pub(crate) fn is_any_current(&self) -> bool {
        let now = Instant::now();
        let watches = self.watches.lock();
        let mut answered = watches.values().filter(|watch| watch.ever_answered);
        answered.any(|watch| watch.is_current(now))
    }

    /// The path of each watch, and the time from the last answered start until `now`. Before the
    /// first answer, the time begins at [`WatchClock::expect`].
    pub(crate) fn ages(&self, now: Instant) -> Vec<(String, Duration)> {
        let watches = self.watches.lock();
        let age = |watch: &Watch| now.saturating_duration_since(watch.last_good);
        let ages = watches
            .iter()
            .map(|(path, watch)| (path.clone(), age(watch)));
        ages.collect()
    }
}

impl Interceptor for Arc<WatchClock> {
    fn intercept<R: Send + 'static>(
        &self,
        _method: &Method,
        uri: &Uri,
        send: impl FnOnce() -> Answer<R>,
    ) -> Answer<R> {
        let answer = send();
        if !is_watch(uri) {
            return answer;
        }
        let (clock, path) = (self.clone(), uri.path().to_owned());
        Box::pin(async move {
            let answer = answer.await?;
            if answer.status().is_success() {
                clock.begun(&path);
            }
            Ok(answer)
        })
    }
}

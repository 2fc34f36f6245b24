//! The age of the operator's watches.
//!
//! Every watch begins again after [`crate::watches::WATCH_SECONDS`]; [`WatchClock`] records each begin that the API server
//! answers, in a layer of the client. Stale watches are a metric and a condition of the tunnels that they serve; a restart
//! repairs neither a missing right nor a missing definition.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tower::{Layer, Service};

/// Age of the last answered begin of a watch from which the watch is stale. Three watches of 50 s, with the longest
/// back-off of 30 s once.
pub(crate) const STALE_AFTER: Duration = Duration::from_secs(180);

/// When each watch was last begun. One entry a watch: a handful.
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
        self.lock().insert(path.to_owned(), watch);
    }

    /// Expects watches of `path` no longer.
    pub fn forget(&self, path: &str) {
        self.lock().remove(path);
    }

    fn answered(&self, path: &str, now: Instant) {
        if let Some(watch) = self.lock().get_mut(path) {
            watch.last_good = now;
            watch.ever_answered = true;
        }
    }

    /// The paths of the stale watches that serve objects of `namespace`: those of the namespace, and those of the whole
    /// cluster.
    #[must_use]
    pub fn stale(&self, namespace: &str) -> Vec<String> {
        let now = Instant::now();
        let serves = |path: &str| {
            let mut parts = path.split('/').skip_while(|part| *part != "namespaces");
            parts.nth(1).is_none_or(|of| of == namespace)
        };
        self.lock()
            .iter()
            .filter(|(path, watch)| !watch.is_current(now) && serves(path))
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// Whether the API server answers any watch.
    pub(crate) fn is_any_current(&self) -> bool {
        let now = Instant::now();
        let watches = self.lock();
        let mut answered = watches.values().filter(|watch| watch.ever_answered);
        answered.any(|watch| watch.is_current(now))
    }

    /// The path of each watch, and how long before `now` the server last answered its beginning.
    pub(crate) fn ages(&self, now: Instant) -> Vec<(String, Duration)> {
        let watches = self.lock();
        let age = |watch: &Watch| now.saturating_duration_since(watch.last_good);
        let ages = watches
            .iter()
            .map(|(path, watch)| (path.clone(), age(watch)));
        ages.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Watch>> {
        self.watches.lock()
    }
}

/// Layer of the kube client that tells the [`WatchClock`].
#[derive(Clone)]
pub struct WatchLayer(pub Arc<WatchClock>);

impl<S> Layer<S> for WatchLayer {
    type Service = WatchService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        WatchService {
            inner,
            clock: self.0.clone(),
        }
    }
}

/// See [`WatchLayer`].
#[derive(Clone)]
pub struct WatchService<S> {
    inner: S,
    clock: Arc<WatchClock>,
}

impl<S, B, R> Service<Request<B>> for WatchService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    R: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let watched = is_watch(request.uri()).then(|| request.uri().path().to_owned());
        let clock = self.clock.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await?;
            if let Some(path) = watched
                && response.status().is_success()
            {
                clock.answered(&path, Instant::now());
            }
            Ok(response)
        })
    }
}

fn is_watch(uri: &http::Uri) -> bool {
    uri.query()
        .unwrap_or_default()
        .split('&')
        .any(|pair| pair.starts_with("watch="))
}

//! Whether the operator still hears the API server.
//!
//! A controller whose watches have died looks healthy and does nothing. Every watch is begun anew every
//! [`crate::watches::WATCH_SECONDS`]; [`WatchClock`] notes each beginning that the server answered, by a
//! layer of the client, and liveness is the age of the last one for each watch. Serves `/healthz`,
//! `/readyz` and `/metrics`, of leaders and followers alike.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::routing::get;
use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer, Service};

use crate::metrics::{self, Metrics};

/// Age of the last answered beginning of a watch from which the operator is not alive. Three watches
/// of 50 s, with the longest back-off of 30 s once.
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

    /// The paths whose watches the server has not answered for too long.
    fn stale(&self, now: Instant) -> Vec<String> {
        self.lock()
            .iter()
            .filter(|(_, watch)| now.saturating_duration_since(watch.last_good) > STALE_AFTER)
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// The paths whose watches the server has never answered.
    fn unanswered(&self) -> Vec<String> {
        self.lock()
            .iter()
            .filter(|(_, watch)| !watch.ever_answered)
            .map(|(path, _)| path.clone())
            .collect()
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
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Serves `/healthz`, `/readyz` and `/metrics` until the process ends.
///
/// # Errors
/// If `address` cannot be listened on.
pub async fn serve(
    address: SocketAddr,
    clock: Arc<WatchClock>,
    metrics: Metrics,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(clock)
        .route("/metrics", get(move || async move { page(&metrics) }));
    let listener = tokio::net::TcpListener::bind(address).await?;
    axum::serve(listener, router).await
}

async fn healthz(State(clock): State<Arc<WatchClock>>) -> (StatusCode, String) {
    answer("not answered for too long", &clock.stale(Instant::now()))
}

async fn readyz(State(clock): State<Arc<WatchClock>>) -> (StatusCode, String) {
    answer("not answered yet", &clock.unanswered())
}

fn page(metrics: &Metrics) -> (StatusCode, [(HeaderName, &'static str); 1], String) {
    let (status, page) = match metrics.render() {
        Ok(page) => (StatusCode::OK, page),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    (status, [(CONTENT_TYPE, metrics::CONTENT_TYPE)], page)
}

fn answer(what: &str, paths: &[String]) -> (StatusCode, String) {
    if paths.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        let text = format!("watches {what}: {}\n", paths.join(", "));
        (StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/apis/apps/v1/deployments";

    async fn call(clock: &Arc<WatchClock>, uri: &str, status: u16) {
        let mut service =
            WatchLayer(clock.clone()).layer(tower::service_fn(move |_: Request<()>| async move {
                Ok::<_, std::io::Error>(Response::builder().status(status).body(()).unwrap())
            }));
        let request = Request::builder().uri(uri).body(()).unwrap();
        service.call(request).await.unwrap();
    }

    #[tokio::test]
    async fn an_answered_watch_makes_ready() {
        let clock = Arc::new(WatchClock::default());
        clock.expect(PATH);
        call(&clock, PATH, 200).await;
        call(&clock, &format!("{PATH}?watch=true"), 403).await;
        assert_eq!(clock.unanswered(), [PATH]);
        call(&clock, &format!("{PATH}?limit=1&watch=true"), 200).await;
        assert!(clock.unanswered().is_empty());
    }

    #[test]
    fn a_watch_that_is_no_longer_made_is_missed_by_nobody() {
        let clock = WatchClock::default();
        clock.expect(PATH);
        clock.forget(PATH);
        assert!(clock.unanswered().is_empty());
        let later = Instant::now() + STALE_AFTER + Duration::from_secs(1);
        assert!(clock.stale(later).is_empty());
    }

    #[test]
    fn one_silent_watch_among_others_makes_the_operator_not_alive() {
        let clock = WatchClock::default();
        clock.expect(PATH);
        clock.expect("/api/v1/pods");
        let now = Instant::now();
        assert!(clock.stale(now).is_empty());
        let later = now + STALE_AFTER + Duration::from_secs(1);
        clock.answered(PATH, later);
        assert_eq!(clock.stale(later), ["/api/v1/pods"]);
    }
}

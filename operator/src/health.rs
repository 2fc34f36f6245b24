//! Liveness and readiness of the operator.
//!
//! Liveness fails if the process makes no progress ([`Progress`]), and for no other reason.
//! Readiness fails if no watch was answered yet, or if all answered watches are stale
//! ([`WatchClock`]), and for no other reason. Leaders and followers serve `/healthz`, `/readyz` and
//! `/metrics`.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::routing::get;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::metrics::{self, Metrics};
use crate::watch_clock::{STALE_AFTER, WatchClock};

/// Pause between two beats of [`Progress`].
const BEAT: Duration = Duration::from_secs(1);
/// The process counts as stalled if its last beat is older than this. A healthy reconciliation
/// computes for only milliseconds between two awaits.
const STALLED_AFTER: Duration = Duration::from_secs(30);

/// The progress of the task that drives the controllers. Clones share it.
#[derive(Debug, Clone)]
pub struct Progress(Arc<Mutex<Instant>>);

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Progress {
    /// Records a beat every [`BEAT`] while this future is polled. The same task polls the
    /// controllers, so the beats stop when the controllers stall.
    pub async fn beat(&self) -> Infallible {
        loop {
            *self.0.lock() = Instant::now();
            tokio::time::sleep(BEAT).await;
        }
    }

    /// The time since the last beat, if this time exceeds [`STALLED_AFTER`].
    fn stalled(&self, now: Instant) -> Option<Duration> {
        let age = now.saturating_duration_since(*self.0.lock());
        (age > STALLED_AFTER).then_some(age)
    }
}

/// Serves `/healthz`, `/readyz` and `/metrics` until the process ends.
///
/// # Errors
/// The operator cannot listen on `address`.
pub async fn serve(
    address: SocketAddr,
    clock: Arc<WatchClock>,
    progress: Progress,
    metrics: Metrics,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/readyz", get(readyz))
        .with_state(clock)
        .route("/healthz", get(healthz).with_state(progress))
        .route("/metrics", get(move || async move { page(&metrics) }));
    let listener = TcpListener::bind(&listened(address)[..]).await?;
    axum::serve(listener, router).await
}

/// The addresses to try, in order. `[::]` covers both address families, and is not available on a
/// kernel without IPv6.
fn listened(address: SocketAddr) -> Vec<SocketAddr> {
    let mut addresses = vec![address];
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        addresses.push((Ipv4Addr::UNSPECIFIED, address.port()).into());
    }
    addresses
}

async fn healthz(State(progress): State<Progress>) -> (StatusCode, String) {
    let stalled = progress.stalled(Instant::now());
    answer(stalled.map(|age| format!("the controllers have not run for {} s\n", age.as_secs())))
}

async fn readyz(State(clock): State<Arc<WatchClock>>) -> (StatusCode, String) {
    let age = STALE_AFTER.as_secs();
    let fault = || format!("the API server has not answered a watch for {age} s\n");
    answer((!clock.is_any_current()).then(fault))
}

fn answer(fault: Option<String>) -> (StatusCode, String) {
    match fault {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(fault) => (StatusCode::SERVICE_UNAVAILABLE, fault),
    }
}

fn page(metrics: &Metrics) -> (StatusCode, [(HeaderName, &'static str); 1], String) {
    let (status, page) = match metrics.render() {
        Ok(page) => (StatusCode::OK, page),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    (status, [(CONTENT_TYPE, metrics::CONTENT_TYPE)], page)
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use tower::{Layer, Service};

    use super::*;
    use crate::interceptor::InterceptorLayer;

    const PATH: &str = "/apis/apps/v1/deployments";

    #[test]
    fn all_addresses_are_those_of_ipv4_where_there_is_no_ipv6() {
        for (listen, expected) in [
            ("[::]:8080", &["[::]:8080", "0.0.0.0:8080"][..]),
            ("[::1]:8080", &["[::1]:8080"]),
            ("0.0.0.0:8080", &["0.0.0.0:8080"]),
        ] {
            let listened = listened(listen.parse().unwrap());
            let listened: Vec<_> = listened.iter().map(ToString::to_string).collect();
            assert_eq!(listened, expected);
        }
    }

    async fn call(clock: &Arc<WatchClock>, uri: &str, status: u16) {
        let mut service = InterceptorLayer(clock.clone()).layer(tower::service_fn(
            move |_: Request<()>| async move {
                Ok::<_, std::io::Error>(Response::builder().status(status).body(()).unwrap())
            },
        ));
        let request = Request::builder().uri(uri).body(()).unwrap();
        service.call(request).await.unwrap();
    }

    async fn ready(clock: &Arc<WatchClock>) -> bool {
        readyz(State(clock.clone())).await.0.is_success()
    }

    #[tokio::test]
    async fn an_answered_watch_makes_ready() {
        let clock = Arc::new(WatchClock::default());
        assert!(!ready(&clock).await);
        clock.expect(PATH);
        call(&clock, PATH, 200).await;
        call(&clock, &format!("{PATH}?watch=true"), 403).await;
        assert!(!ready(&clock).await);
        call(&clock, &format!("{PATH}?limit=1&watch=true"), 200).await;
        assert!(ready(&clock).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_no_longer_made_is_missed_by_nobody() {
        let clock = WatchClock::default();
        clock.expect(PATH);
        clock.forget(PATH);
        tokio::time::advance(STALE_AFTER * 2).await;
        assert_eq!(clock.stale("site"), [""; 0]);
    }

    /// A restart does not repair a missing RoleBinding, a missing definition or an unreachable API
    /// server.
    #[tokio::test(start_paused = true)]
    async fn stale_watches_cost_readiness_where_it_is_all_of_them_and_never_liveness() {
        let clock = Arc::new(WatchClock::default());
        let progress = Progress::default();
        let beating = progress.clone();
        tokio::spawn(async move { beating.beat().await });
        let (own, other) = (
            "/api/v1/namespaces/site/pods",
            "/api/v1/namespaces/other/pods",
        );
        for path in [own, other, PATH] {
            clock.expect(path);
            call(&clock, &format!("{path}?watch=true"), 200).await;
        }
        tokio::time::sleep(STALE_AFTER + Duration::from_secs(1)).await;
        call(&clock, &format!("{other}?watch=true"), 200).await;
        assert!(ready(&clock).await);
        assert_eq!(clock.stale("site"), [own, PATH]);
        assert_eq!(clock.stale("other"), [PATH]);
        assert!(healthz(State(progress.clone())).await.0.is_success());
        tokio::time::sleep(STALE_AFTER + Duration::from_secs(1)).await;
        assert!(!ready(&clock).await);
        assert!(healthz(State(progress)).await.0.is_success());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_whose_controllers_do_not_run_is_not_alive() {
        let progress = Progress::default();
        let beating = progress.clone();
        let controllers = tokio::spawn(async move { beating.beat().await });
        tokio::time::sleep(STALLED_AFTER * 2).await;
        let (status, _) = healthz(State(progress.clone())).await;
        assert_eq!(status, StatusCode::OK);
        controllers.abort();
        tokio::time::sleep(STALLED_AFTER * 2).await;
        let (status, text) = healthz(State(progress)).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(
            text.starts_with("the controllers have not run for "),
            "{text}"
        );
    }
}

//! How long the API server takes to answer: a layer of the client.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Method, Request, Response};
use prometheus_client::encoding::EncodeLabelSet;
use tower::{Layer, Service};

use super::Metrics;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    verb: &'static str,
    resource: String,
    status: &'static str,
}

/// Layer of the client that measures its requests.
#[derive(Clone)]
pub struct RequestLayer(pub Metrics);

impl<S> Layer<S> for RequestLayer {
    type Service = MeasuredService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        MeasuredService {
            inner,
            metrics: self.0.clone(),
        }
    }
}

/// See [`RequestLayer`].
#[derive(Clone)]
pub struct MeasuredService<S> {
    inner: S,
    metrics: Metrics,
}

impl<S, B, R> Service<Request<B>> for MeasuredService<S>
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
        let verb = verb(request.method(), request.uri());
        let resource = resource(request.uri().path()).to_owned();
        let (metrics, begin) = (self.metrics.clone(), Instant::now());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let labels = RequestLabels {
                verb,
                resource,
                status: answer.as_ref().map_or("none", class),
            };
            metrics.answered(&labels, begin.elapsed());
            answer
        })
    }
}

/// As Kubernetes calls it.
fn verb(method: &Method, uri: &http::Uri) -> &'static str {
    let watches = |pair: &str| pair.starts_with("watch=");
    match *method {
        Method::GET
            if uri
                .query()
                .is_some_and(|query| query.split('&').any(watches)) =>
        {
            "watch"
        }
        Method::GET if object_of(uri.path()).1 => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

fn class<R>(answer: &Response<R>) -> &'static str {
    match answer.status().as_u16() / 100 {
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        5 => "5xx",
        _ => "1xx",
    }
}

/// The resource of a path such as `/apis/apps/v1/namespaces/site/deployments/office-exit`.
pub(super) fn resource(path: &str) -> &str {
    object_of(path).0
}

/// Its resource, and whether it names one object.
fn object_of(path: &str) -> (&str, bool) {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    // `/api/v1` or `/apis/GROUP/VERSION`.
    let skipped = if parts.next() == Some("apis") { 2 } else { 1 };
    let below: Vec<_> = parts.skip(skipped).collect();
    match below[..] {
        ["namespaces", _, resource] => (resource, false),
        ["namespaces", _, resource, ..] => (resource, true),
        [resource] => (resource, false),
        [resource, ..] => (resource, true),
        [] => ("none", false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_verb_and_resource() {
        for (method, uri, verb_, resource_) in [
            (
                Method::GET,
                "/apis/apps/v1/deployments?watch=true",
                "watch",
                "deployments",
            ),
            (Method::GET, "/api/v1/pods?limit=500", "list", "pods"),
            (
                Method::GET,
                "/api/v1/namespaces/site/services/shop",
                "get",
                "services",
            ),
            (
                Method::PATCH,
                "/apis/muxtunnel.dev/v1alpha1/namespaces/site/muxtunnels/office/status?force=true",
                "patch",
                "muxtunnels",
            ),
            (
                Method::PUT,
                "/apis/coordination.k8s.io/v1/namespaces/mux/leases/muxtunnel",
                "update",
                "leases",
            ),
            (
                Method::POST,
                "/apis/events.k8s.io/v1/namespaces/site/events",
                "create",
                "events",
            ),
        ] {
            let parsed: http::Uri = uri.parse().unwrap();
            assert_eq!(verb(&method, &parsed), verb_, "{uri}");
            assert_eq!(resource(parsed.path()), resource_, "{uri}");
        }
    }
}

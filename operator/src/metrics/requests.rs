//! Response times of the API server.

use http::{Method, Uri};
use tokio::time::Instant;

use super::Metrics;
use crate::interceptor::{Answer, Interceptor, is_watch};

impl Interceptor for Metrics {
    fn intercept<R: Send + 'static>(
        &self,
        method: &Method,
        uri: &Uri,
        send: impl FnOnce() -> Answer<R>,
    ) -> Answer<R> {
        let (verb, resource) = (verb(method, uri), resource(uri.path()).to_owned());
        let (requests, begin) = (self.requests.clone(), Instant::now());
        let answer = send();
        Box::pin(async move {
            let answer = answer.await;
            let status = match &answer {
                Ok(answer) => format!("{}xx", answer.status().as_u16() / 100),
                Err(_) => "none".to_owned(),
            };
            let labels = [
                ("verb", verb.to_owned()),
                ("resource", resource),
                ("status", status),
            ];
            let seconds = begin.elapsed().as_secs_f64();
            requests.get_or_create(&labels).observe(seconds);
            answer
        })
    }
}

/// The verb in Kubernetes' terms.
fn verb(method: &Method, uri: &Uri) -> &'static str {
    match *method {
        Method::GET if is_watch(uri) => "watch",
        Method::GET if object_of(uri.path()).1 => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

/// The resource in a path such as `/apis/apps/v1/namespaces/site/deployments/office-exit`.
pub(super) fn resource(path: &str) -> &str {
    object_of(path).0
}

/// The resource, and whether the path names one object.
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

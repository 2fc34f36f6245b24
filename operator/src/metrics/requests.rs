//! Response times of the API server.

use http::{Method, StatusCode, Uri};
use tokio::time::Instant;

use super::Metrics;
use crate::observer::{Observer, is_watch};

/// A request without an answer yet.
#[derive(Debug)]
pub struct Asked {
    verb: &'static str,
    resource: String,
    begin: Instant,
}

impl Observer for Metrics {
    type Asked = Asked;

    fn asked(&self, method: &Method, uri: &Uri) -> Asked {
        Asked {
            verb: verb(method, uri),
            resource: resource(uri.path()).to_owned(),
            begin: Instant::now(),
        }
    }

    fn answered(&self, asked: Asked, status: Option<StatusCode>) {
        let labels = [
            ("verb", asked.verb.to_owned()),
            ("resource", asked.resource),
            ("status", status.map_or("none", class).to_owned()),
        ];
        let seconds = asked.begin.elapsed().as_secs_f64();
        self.requests.get_or_create(&labels).observe(seconds);
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

fn class(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        5 => "5xx",
        _ => "1xx",
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

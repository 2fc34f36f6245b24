//! Targets.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::{ServiceRef, patterns, rules};

/// A target: exactly one of `serviceRef` and `host`, and a port.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::target_exactly_one())]
pub struct Target {
    /// A Service of the object's namespace, or of a namespace that permits the reference.
    pub service_ref: Option<ServiceRef>,
    /// DNS name or IP address (IPv6 without brackets). The gateway that dials the target resolves the
    /// name. The name of a Service of another namespace (NAME.NAMESPACE.svc) needs a grant of that
    /// namespace, as with `serviceRef`.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::HOST))]
    pub host: Option<String>,
    /// Number of the port of the Service or of the host.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}

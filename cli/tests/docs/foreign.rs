//! Names on the pages that do not belong to muxgate, `muxtunnel`, the objects, the configuration or
//! the chart.

/// Sources with the arguments of MuxTunnel's other programs.
pub(crate) const ARGUMENTS: &[&str] = &[
    "bench/lab/src/cli.rs",
    "bench/src/cli.rs",
    "netem/src/cli.rs",
    "operator/src/cli.rs",
];

/// Long options of foreign programs: the kubelet, kubectl, jetsocat, Envoy, Helm, cargo.
pub(crate) const FLAGS: &[&str] = &[
    "allowed-unsafe-sysctls",
    "allow-all",
    "concurrency",
    "set",
    "set-string",
    "api-versions",
    "reset-then-reuse-values",
    "reuse-values",
    "take-ownership",
    "force-conflicts",
    "lib",
    "target",
    "no-run",
    "package",
    "test",
    "workspace",
];

/// Fields of Kubernetes' objects and of the programs' documents, a template of the chart, and
/// hosts.
pub(crate) const FIELDS: &[&str] = &[
    "apiVersion",
    "appProtocol",
    "hostUsers",
    "metadata.generation",
    "restartPolicy",
    "securityContext.sysctls",
    "sessionAffinity",
    "current",
    "streams.refused",
    "process.openFiles",
    "resolv.conf",
    "muxtunnel.rules",
    "web.office",
    "web.shop",
];

/// Beginnings of paths that programs write.
pub(crate) const PATHS: &[&str] = &["target/"];

//! Names on the pages that are not of muxgate, `muxtunnel`, our objects, the configuration or the chart.

/// Sources with the arguments of our other programs.
pub(crate) const ARGUMENTS: &[&str] = &[
    "bench/lab/src/cli.rs",
    "bench/src/cli.rs",
    "netem/src/main.rs",
    "operator/src/main.rs",
];

/// Long options of others: the kubelet, jetsocat, Envoy, Helm, cargo.
pub(crate) const FLAGS: &[&str] = &[
    "allowed-unsafe-sysctls",
    "allow-all",
    "concurrency",
    "set",
    "take-ownership",
    "force-conflicts",
    "lib",
    "no-run",
    "package",
    "test",
    "workspace",
];

/// Fields of Kubernetes' objects and of the documents that our programs write, a template of the chart, and hosts.
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
    "muxtunnel.rules",
    "web.office",
    "web.shop",
];

/// Beginnings of paths that programs write.
pub(crate) const PATHS: &[&str] = &["target/"];

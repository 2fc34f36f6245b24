//! The layers of the operator: each module uses its own layer and those below it; and the steps of a tunnel's
//! reconciliation: each uses itself and those before it.

#![allow(missing_docs, reason = "a test")]

use muxtunnel_testkit::layers::Layers;

/// From the ground up: what knows no cluster, what knows it, what is shown of the operator, what all controllers share, and
/// the controllers, of which that of benchmarks makes tunnels.
const LAYERS: [&[&str]; 6] = [
    &[
        "conditions",
        "failure",
        "labels",
        "muxbench",
        "observer",
        "pods",
        "protocol",
        "quantity",
        "service_name",
        "settings",
    ],
    &[
        "api_server",
        "apply",
        "backoff",
        "caches",
        "certificates",
        "events",
        "grants",
        "leader",
        "watch_clock",
        "watches",
    ],
    &["health", "metrics"],
    &["controller"],
    &["tunnel_controller"],
    &["benchmark_controller"],
];
/// What all steps of a tunnel's reconciliation share and knows none of them; then the steps in their order, and what causes a
/// reconciliation, which is none.
const STEPS: [&[&str]; 9] = [
    &[
        "access",
        "cert_manager",
        "certifier",
        "config_file",
        "end",
        "error",
        "hindrance",
        "holder",
        "issuer",
        "pods",
        "problem",
        "records",
        "references",
        "rollouts",
        "sandbox",
    ],
    &["dereference"],
    &["validate"],
    &["build"],
    &["apply"],
    &["observe"],
    &["publish"],
    &["update_status"],
    &["triggers"],
];
/// What holds tests alone, which may use any layer, and what is above all of them.
const BESIDE: [&str; 3] = ["lib", "main", "testing"];
/// Modules of tests inside a controller.
const TESTS: [&str; 3] = ["scenarios", "test_support", "tests"];

#[test]
fn each_layer_uses_itself_and_those_below_it_alone() {
    let layers = Layers {
        layers: &LAYERS,
        beside: &BESIDE,
        tests: &TESTS,
    };
    layers.assert(env!("CARGO_MANIFEST_DIR"));
}

#[test]
fn each_step_of_a_reconciliation_uses_itself_and_those_before_it_alone() {
    let steps = Layers {
        layers: &STEPS,
        beside: &TESTS,
        tests: &TESTS,
    };
    steps.assert_below(env!("CARGO_MANIFEST_DIR"), "tunnel_controller");
}

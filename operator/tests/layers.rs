//! Tests two rules. Each module of the operator uses only its own layer and lower layers. Each step
//! of a tunnel's reconciliation uses only itself and earlier steps.

#![allow(missing_docs, reason = "a test")]

use muxtunnel_testkit::layers::Layers;

/// The layers, the lowest first: modules without the cluster, modules with the cluster, the
/// exported state of the operator, the common part of all controllers, and the controllers. The
/// controller of benchmarks creates tunnels, so it is above the controller of tunnels.
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
        "undecoded",
        "watch_clock",
        "watches",
    ],
    &["health", "metrics"],
    &["controller"],
    &["tunnel_controller"],
    &["benchmark_controller"],
];
/// In this order: the common modules of all steps, the steps in their order, and the triggers of
/// reconciliations, which are not a step.
const STEPS: [&[&str]; 9] = [
    &[
        "access",
        "cert_manager",
        "certifier",
        "config_file",
        "document",
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
/// Test modules, which may use any layer, and the modules above all layers.
const BESIDE: [&str; 4] = ["cli", "lib", "main", "testing"];
/// Test modules inside a controller.
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

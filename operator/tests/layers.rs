//! Tests three rules. Each module of the operator uses only its own layer and lower layers. Each step
//! of a tunnel's reconciliation uses only itself and earlier steps. A step names only the types of
//! the access that it has: a pure step names none, and a step that reads names no client.

#![allow(missing_docs, reason = "a test")]

use muxtunnel_testkit::layers::{Absent, Layers};

/// The layers, the lowest first: modules without the cluster, modules with the cluster, the
/// exported state of the operator, the common part of all controllers, and the controllers. The
/// controller of tunnels serves the peers of exits, and the controller of benchmarks creates
/// tunnels, so both others are above it.
const LAYERS: [&[&str]; 7] = [
    &[
        "class",
        "clock",
        "conditions",
        "failure",
        "interceptor",
        "key_pair",
        "labels",
        "muxbench",
        "pods",
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
        "class_file",
        "classes",
        "events",
        "grants",
        "leader",
        "reader",
        "status_patch",
        "undecoded",
        "upgrades",
        "watch_clock",
        "watches",
    ],
    &["health", "metrics"],
    &["controller"],
    &["tunnel_controller"],
    &["class_controller", "peer_controller"],
    &["benchmark_controller"],
];
/// In this order: the common modules of all steps, the steps in their order, and the triggers of
/// reconciliations, which are not a step.
const STEPS: [&[&str]; 9] = [
    &[
        "access",
        "cert_manager",
        "config_file",
        "document",
        "end",
        "error",
        "hindrance",
        "holder",
        "issuer",
        "keyring",
        "object",
        "pods",
        "problem",
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

/// Only `Clock` reads the time, once per reconciliation. The operator's `clippy.toml` forbids the
/// system's time in the whole crate.
#[test]
fn no_step_reads_a_clock() {
    absent(&["tunnel_controller", "benchmark_controller"], &NOW);
}

#[test]
fn a_pure_step_has_no_client_no_caches_and_no_clock() {
    let access = [
        "async", "Access", "Api", "Cache", "Caches", "Client", "Clock", "Cluster", "Outputs",
        "Reader",
    ];
    absent(
        &["tunnel_controller/validate", "tunnel_controller/build"],
        &access,
    );
    absent(&["tunnel_controller/build"], &["Dereferenced"]);
}

#[test]
fn a_step_that_reads_has_no_client() {
    let client = [
        "Api::all",
        "Api::namespaced",
        "Api::namespaced_with",
        "kube::Client",
        "Cluster",
        "Outputs",
    ];
    absent(
        &[
            "tunnel_controller/dereference",
            "tunnel_controller/observe",
            "benchmark_controller/dereference",
        ],
        &client,
    );
    absent(&["tunnel_controller/observe"], &["Access", "Reader"]);
}

const NOW: [&str; 4] = ["Instant::now", "Timestamp::now", "SystemTime", "elapsed"];

fn absent(modules: &[&str], words: &[&str]) {
    let absent = Absent {
        modules,
        words,
        tests: &TESTS,
    };
    absent.assert(env!("CARGO_MANIFEST_DIR"));
}

//! Checks the layers of muxgate's modules.

#![allow(missing_docs, reason = "a test")]

use muxtunnel_testkit::layers::Layers;

#[test]
fn each_layer_uses_itself_and_those_below_it_alone() {
    let layers = Layers {
        layers: &[
            &["base"],
            &["io"],
            &["net"],
            &["ingress"],
            &["stream"],
            &["session"],
            &["roles"],
            &["observe"],
            &["process"],
        ],
        beside: &["cli", "lib", "main", "oracles"],
        tests: &["simulation", "tests"],
    };
    layers.assert(env!("CARGO_MANIFEST_DIR"));
}

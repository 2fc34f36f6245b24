//! The layers of the operator: each module uses its own layer and those below it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// From the ground up: what knows no cluster, what knows it, what is shown of the operator, what all controllers share, and
/// the controllers, of which that of benchmarks makes tunnels.
const LAYERS: [&[&str]; 6] = [
    &[
        "conditions",
        "failure",
        "labels",
        "observer",
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
/// What holds tests alone, which may use any layer, and what is above all of them.
const BESIDE: [&str; 4] = ["chart", "lib", "main", "testing"];
/// Modules of tests inside a controller.
const TESTS: [&str; 3] = ["scenarios", "test_support", "tests"];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .collect()
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// The modules below the root that a line names: `crate::caches::Cluster` names `caches`.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split("crate::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[test]
fn each_layer_uses_itself_and_those_below_it_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut wrong, mut uses) = (Vec::new(), 0);
    for path in sources(&root) {
        let place = path.strip_prefix(&root).unwrap();
        let parts: Vec<_> = place
            .iter()
            .map(|part| part.to_str().unwrap().trim_end_matches(".rs"))
            .collect();
        if BESIDE.contains(&parts[0]) || parts.iter().any(|part| TESTS.contains(part)) {
            continue;
        }
        let Some(own) = layer_of(parts[0]) else {
            wrong.push(format!("{}: has no layer", place.display()));
            continue;
        };
        let text = fs::read_to_string(&path).unwrap();
        // A file's tests are its last item.
        let code = text
            .lines()
            .take_while(|line| *line != "mod tests {" && *line != "pub(crate) mod tests {");
        for (line, number) in code.zip(1..) {
            for name in named(line.split("//").next().unwrap_or_default()) {
                uses += 1;
                if layer_of(name).is_none_or(|layer| layer > own) {
                    let place = place.display();
                    wrong.push(format!("{place}:{number}: {} uses crate::{name}", parts[0]));
                }
            }
        }
    }
    assert!(uses > 200, "only {uses} uses are seen");
    assert!(
        wrong.is_empty(),
        "against the layers:\n{}",
        wrong.join("\n")
    );
}

//! The layers of the operator: each module uses its own layer and those below it; and the steps of a tunnel's
//! reconciliation: each uses itself and those before it.

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
/// What all steps of the controller of tunnels share: it knows none of them.
const SHARED: [&str; 14] = [
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
];
/// The steps, in the order of a reconciliation; and what wakes one, which is none.
const STEPS: [&str; 8] = [
    "dereference",
    "validate",
    "build",
    "apply",
    "observe",
    "publish",
    "update_status",
    "triggers",
];
/// What holds tests alone, which may use any layer, and what is above all of them.
const BESIDE: [&str; 5] = ["chart", "lib", "main", "pod_security", "testing"];
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

/// The product files below `folder`, each with its place there and its code, without comments and tests.
fn product(folder: &Path) -> Vec<(Vec<String>, String)> {
    let files = sources(folder).into_iter().filter_map(|path| {
        let place = path.strip_prefix(folder).unwrap().iter();
        let parts: Vec<_> = place
            .map(|part| part.to_str().unwrap().trim_end_matches(".rs").to_owned())
            .collect();
        if parts.iter().any(|part| TESTS.contains(&part.as_str())) {
            return None;
        }
        let text = fs::read_to_string(&path).unwrap();
        // A file's tests are its last item.
        let code = text
            .lines()
            .take_while(|line| *line != "mod tests {" && *line != "pub(crate) mod tests {")
            .map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n");
        Some((parts, code.collect()))
    });
    files.collect()
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

fn name(text: &str) -> &str {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// What `code` names directly behind `path`: `use crate::{caches::Cluster, labels}` names `caches` and `labels` behind
/// `crate::`.
fn named<'a>(code: &'a str, path: &'a str) -> Vec<&'a str> {
    let mut found = Vec::new();
    for rest in code.split(path).skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            found.push(name(rest));
            continue;
        };
        let mut depth = 1;
        found.push(name(group));
        for (index, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => found.push(name(&group[index + 1..])),
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

#[test]
fn names_are_found_alone_and_in_groups() {
    let code = "use crate::caches::{Cache, Cluster};\nuse crate::{\n    apply::{a, b},\n    labels,\n};\nfn f() -> crate::E {}";
    assert_eq!(named(code, "crate::"), ["caches", "apply", "labels", "E"]);
}

#[test]
fn each_layer_uses_itself_and_those_below_it_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut wrong, mut uses) = (Vec::new(), 0);
    for (parts, code) in product(&root) {
        let (place, own) = (parts.join("/"), parts[0].as_str());
        if BESIDE.contains(&own) {
            continue;
        }
        let Some(layer) = layer_of(own) else {
            wrong.push(format!("{place}: has no layer"));
            continue;
        };
        for name in named(&code, "crate::") {
            uses += 1;
            if layer_of(name).is_none_or(|named| named > layer) {
                wrong.push(format!("{place}: {own} uses crate::{name}"));
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

/// 0: shared by all steps; behind it the steps.
fn step_of(module: &str) -> Option<usize> {
    let step = STEPS.iter().position(|step| *step == module);
    let shared = SHARED.contains(&module).then_some(0);
    shared.or(step.map(|step| step + 1))
}

#[test]
fn each_step_of_a_reconciliation_uses_itself_and_those_before_it_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tunnel_controller");
    let (mut wrong, mut uses) = (Vec::new(), 0);
    for (parts, code) in product(&root) {
        let (place, own) = (parts.join("/"), parts[0].as_str());
        let Some(step) = step_of(own) else {
            wrong.push(format!("{place}: is neither a step nor shared"));
            continue;
        };
        let mut names = named(&code, "crate::tunnel_controller::");
        // How the controller is named from here; `pub(super)` names nothing.
        let above = "super::".repeat(parts.len());
        names.extend(named(&code, &above));
        for name in names {
            uses += 1;
            if step_of(name).is_none_or(|named| named > step) {
                wrong.push(format!("{place}: {own} uses {name}"));
            }
        }
    }
    assert!(uses > 150, "only {uses} uses are seen");
    assert!(
        wrong.is_empty(),
        "against the order of the steps:\n{}",
        wrong.join("\n")
    );
}

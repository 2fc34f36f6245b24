//! The layers of muxgate: each module of `src` uses its own layer and those below it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// From the ground up. What is beside them, `cli`, `oracles` and `main`, uses whatever it likes.
const LAYERS: [&str; 9] = [
    "base", "io", "net", "ingress", "stream", "session", "roles", "observe", "process",
];

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

/// Whether a file holds tests alone, which may use any layer.
fn is_test(path: &Path) -> bool {
    let mut names = path.iter().filter_map(|name| name.to_str());
    names.any(|name| matches!(name.trim_end_matches(".rs"), "tests" | "simulation"))
}

/// The lines before the tests of the file, which are its last item, without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().take_while(|line| *line != "mod tests {");
    lines
        .zip(1..)
        .map(|(line, number)| (number, line.split("//").next().unwrap_or_default()))
}

/// The modules below the root that a line names: `crate::net::dial` names `net`. A list, `crate::{net, io}`, is refused:
/// it would hide its names from this test.
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
        let own = place.iter().next().unwrap().to_str().unwrap();
        let Some(own) = LAYERS
            .iter()
            .position(|layer| *layer == own.trim_end_matches(".rs"))
        else {
            continue;
        };
        if is_test(place) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in code(&text) {
            for name in named(line) {
                uses += 1;
                match LAYERS.iter().position(|layer| *layer == name) {
                    Some(layer) if layer <= own => {}
                    _ => wrong.push(format!(
                        "{}:{number}: {} uses crate::{name}",
                        place.display(),
                        LAYERS[own]
                    )),
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

#[test]
fn every_module_has_a_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let names = fs::read_dir(&root).unwrap().map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.trim_end_matches(".rs").to_owned()
    });
    let beside = ["cli", "lib", "main", "oracles"];
    let without: Vec<_> = names
        .filter(|name| !LAYERS.contains(&name.as_str()) && !beside.contains(&name.as_str()))
        .collect();
    assert!(without.is_empty(), "no layer: {without:?}");
}

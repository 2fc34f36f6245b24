//! What the program prints and how it ends, where no gateway runs for long.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::Gate;

fn check(file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_muxgate"))
        .args(["check", "--config"])
        .arg(file)
        .output()
        .unwrap()
}

#[test]
fn check_names_the_place_of_an_error_and_its_remedy_and_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("far.yaml");
    let exit =
        "role: Exit\nlisten: '127.0.0.1:1'\nsecurity: {mode: None}\nallow: ['db.internal:5432']\n";
    std::fs::write(&file, exit).unwrap();
    let checked = check(&file);
    let printed = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.success(), "{printed}");
    assert!(
        printed.contains("far.yaml: valid; exit, protocol Native"),
        "{printed}"
    );
    assert!(printed.contains("allow rules: 1"), "{printed}");

    std::fs::write(&file, format!("{exit}workers: many\n")).unwrap();
    let checked = check(&file);
    let printed = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code(), Some(2), "{printed}");
    assert!(printed.contains("far.yaml:5:10: workers"), "{printed}");
    assert!(printed.contains("\n  fix: "), "{printed}");

    let checked = check(&dir.path().join("missing.yaml"));
    assert_eq!(checked.status.code(), Some(2), "{checked:?}");
}

#[test]
fn a_log_for_programs_is_an_object_a_line_with_the_fields_apart() {
    let port = common::free_port();
    let listen = format!("127.0.0.1:{port}");
    let exit = Gate::with_flags(&[
        "exit",
        "--security",
        "none",
        "--listen",
        &listen,
        "--allow",
        "db.internal:5432",
        "--log-format",
        "json",
    ])
    .until_ready();
    exit.line(&["Listening for carriers"]);
    let log = exit.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let listening = lines
        .iter()
        .find(|line| line["fields"]["message"] == "Listening for carriers");
    let listening = listening.unwrap_or_else(|| panic!("{log}"));
    assert_eq!(listening["level"], "INFO");
    assert_eq!(listening["fields"]["listen"], listen.as_str());
    assert!(listening["timestamp"].is_string() && listening["target"].is_string());
}

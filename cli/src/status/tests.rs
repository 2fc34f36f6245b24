//! The output of `status`, from objects to text, compared with the files in `cli/tests/golden`.

use std::path::Path;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use muxtunnel_testkit::generated;
use serde_json::Value;

use super::view::{StatusDocument, StatusList, View};
use crate::object::{Kind, Peer};
use crate::output::{Document, Format, Style, rendered};
use crate::peer::PeerView;

fn now() -> Timestamp {
    "2030-01-01T12:00:00Z".parse().unwrap()
}

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/objects")
        .join(name);
    serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn view(name: &str, events: &[Event], context: Option<&str>) -> View {
    let object = fixture(name);
    let kind = Kind::named(object["kind"].as_str().unwrap()).unwrap();
    View::new(
        kind,
        &serde_json::from_value(object).unwrap(),
        events,
        context,
    )
}

fn events() -> Vec<Event> {
    serde_json::from_value(fixture("events.yaml")).unwrap()
}

/// Compares with a golden file. `UPDATE_GOLDEN=1` rewrites the file.
fn compare(name: &str, document: &impl Document, format: Format) {
    let text = rendered(document, format, Style::default()).unwrap();
    let path = format!("cli/tests/golden/{name}");
    generated::compare(&path, &text, "UPDATE_GOLDEN");
}

fn one(name: &str) -> StatusDocument {
    StatusDocument {
        object: view(name, &events(), None),
        exit: None,
        now: now(),
    }
}

#[test]
fn a_healthy_tunnel_in_all_forms() {
    let status = one("both.yaml");
    compare("status.txt", &status, Format::Table);
    compare("status.json", &status, Format::Json);
    compare("status.yaml", &status, Format::Yaml);
    compare("status-wide.txt", &status, Format::Wide);
}

#[test]
fn a_tunnel_with_long_names_and_much_amiss() {
    compare("status-faulty.txt", &one("faulty.yaml"), Format::Table);
}

#[test]
fn a_tunnel_and_its_exit_in_two_clusters() {
    let mut status = one("entry.yaml");
    let mut exit = view("exit.yaml", &[], Some("far"));
    let peers: Vec<Peer> = serde_json::from_value(fixture("peers.yaml")).unwrap();
    exit.peers = peers.iter().take(2).map(PeerView::new).collect();
    status.exit = Some(exit);
    compare("status-exit.txt", &status, Format::Table);
}

#[test]
fn a_line_for_each_object() {
    for (name, with_namespaces, format) in [
        ("list.txt", false, Format::Table),
        ("list-all.txt", true, Format::Table),
        ("list-wide.txt", false, Format::Wide),
        ("list-names.txt", false, Format::Name),
    ] {
        let files = ["both", "faulty", "entry", "exit", "fresh"];
        let views = files.map(|file| view(&format!("{file}.yaml"), &[], None));
        let list = StatusList {
            items: views.into(),
            with_namespaces,
            now: now(),
        };
        compare(name, &list, format);
    }
}

#[test]
fn no_word_is_broken_however_narrow_the_terminal_is() {
    let faulty = one("faulty.yaml");
    let words = |columns| {
        let text = faulty.text(Style {
            columns,
            ..Style::default()
        });
        let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        words.sort();
        words
    };
    assert_eq!(words(60), words(1000));
    assert!(
        words(60).contains(
            &"a-namespace-whose-name-has-as-many-as-sixty-three-characters-ok".to_owned()
        )
    );
}

#[test]
fn a_tunnel_that_nobody_reported_on() {
    compare("status-fresh.txt", &one("fresh.yaml"), Format::Table);
}

#[test]
fn colours_are_in_words_alone() {
    let plain = one("both.yaml").text(Style::default());
    let coloured = one("both.yaml").text(Style {
        colours: true,
        ..Style::default()
    });
    assert!(!plain.contains('\x1b'));
    assert!(coloured.contains("\x1b[32mTrue\x1b[0m"));
    assert_eq!(
        coloured.replace("\x1b[32m", "").replace("\x1b[0m", ""),
        plain
    );
}

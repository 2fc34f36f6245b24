//! The output of `status`, from objects to text, compared with the files in `cli/tests/golden`.

use std::path::Path;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use muxtunnel_testkit::generated;
use serde_json::Value;

use super::view::{TunnelList, TunnelStatus, TunnelView};
use crate::object::{Peer, Tunnel};
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

fn tunnel(name: &str) -> Tunnel {
    serde_json::from_value(fixture(name)).unwrap()
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

fn one(name: &str) -> TunnelStatus {
    TunnelStatus::new(TunnelView::new(&tunnel(name), &events(), None), now())
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
fn both_sides_of_a_tunnel_in_two_clusters() {
    let mut status = one("entry.yaml");
    let mut peer = TunnelView::new(&tunnel("exit.yaml"), &[], Some("far"));
    let peers: Vec<Peer> = serde_json::from_value(fixture("peers.yaml")).unwrap();
    peer.peers = peers.iter().take(2).map(PeerView::new).collect();
    status.peer = Some(peer);
    compare("status-peer.txt", &status, Format::Table);
}

#[test]
fn a_line_for_each_tunnel() {
    let tunnels = [
        "both.yaml",
        "faulty.yaml",
        "entry.yaml",
        "exit.yaml",
        "fresh.yaml",
    ]
    .map(tunnel);
    compare(
        "list.txt",
        &TunnelList::new(&tunnels, false, now()),
        Format::Table,
    );
    compare(
        "list-all.txt",
        &TunnelList::new(&tunnels, true, now()),
        Format::Table,
    );
    compare(
        "list-wide.txt",
        &TunnelList::new(&tunnels, false, now()),
        Format::Wide,
    );
    compare(
        "list-names.txt",
        &TunnelList::new(&tunnels, false, now()),
        Format::Name,
    );
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

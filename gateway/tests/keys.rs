//! Carriers by public keys: payload over each protocol, refused keys, and keys that leave the list.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test"
)]

#[path = "common/authority.rs"]
mod authority;
#[path = "keys/clock.rs"]
mod clock;
mod common;
#[path = "common/ends.rs"]
mod ends;
#[path = "keys/https.rs"]
mod https;
#[path = "keys/limits.rs"]
mod limits;
#[path = "keys/rotation.rs"]
mod rotation;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use ends::*;
use muxtunnel_gateway_config::{Role, key_text};

/// Each protocol, and the lines of both files that select its transport.
const WAYS: [(&str, &str); 8] = [
    ("Native", ""),
    ("Native", "transport: KCP\n"),
    (
        "Native",
        "transport: WebSocket\nwebSocket: {path: /carrier}\n",
    ),
    ("JMUX", ""),
    (
        "JMUX",
        "transport: WebSocket\nwebSocket: {path: /carrier}\n",
    ),
    ("HTTP2", ""),
    ("QUIC", ""),
    ("HTTP3", ""),
];

/// The private key of a gateway in a file, and its public key as that of an entry and of an exit.
struct Key {
    file: PathBuf,
    entry: String,
    exit: String,
}

impl Key {
    fn new(dir: &Path, name: &str) -> Self {
        let file = dir.join(name);
        let [entry, exit] = gateway_key(&file);
        Self { file, entry, exit }
    }

    fn accepts(&self, peers: &[&str]) -> String {
        public_keys(&self.file, peers)
    }
}

fn keys() -> (tempfile::TempDir, [Key; 3]) {
    let dir = tempfile::tempdir().unwrap();
    let keys = ["exit", "entry", "other"].map(|name| Key::new(dir.path(), name));
    (dir, keys)
}

/// The file of an exit on `carrier` that may dial `allow`.
fn exit_file(way: (&str, &str), security: &str, carrier: SocketAddr, allow: SocketAddr) -> String {
    let (protocol, more) = way;
    format!(
        "role: Exit\nprotocol: {protocol}\nsecurity: {security}\nlisten: '{carrier}'\nadmin: ADMIN\nworkers: 2\n\
         allow: [{allow_rule}]\n{more}",
        allow_rule = common::rule(allow)
    )
}

/// An entry with a forward to `to`, and the address of the forward.
fn entry_of(
    way: (&str, &str),
    security: &str,
    carrier: SocketAddr,
    to: SocketAddr,
) -> (Gate, SocketAddr) {
    // The helper writes the security before the other fields.
    let security = format!("{security}\n{}", way.1);
    entry(security.trim_end(), way.0, carrier, to)
}

#[test]
fn both_ends_prove_their_keys_over_each_protocol_and_the_bytes_are_exact() {
    for way in WAYS {
        let (_dir, [exit_key, entry_key, other]) = keys();
        let (listener, target) = target();
        let carrier = carrier_address();
        let security = exit_key.accepts(&[&other.entry, &entry_key.entry]);
        let exit = Gate::with_file(&exit_file(way, &security, carrier, target)).until_ready();
        let security = entry_key.accepts(&[&exit_key.exit]);
        let (entry, forward) = entry_of(way, &security, carrier, target);
        let entry = entry.until_ready();
        for _ in 0..2 {
            assert_bulk(&connect(forward), accept(&listener), MIB);
        }
        let status = exit.status();
        assert_eq!(status["publicKeys"], serde_json::json!([exit_key.exit]));
        assert_eq!(
            status["peers"][1]["publicKeys"][0],
            entry_key.entry.as_str()
        );
        let carriers = |gate: &Gate, at: usize| gate.status()["peers"][at]["carriers"].as_u64();
        assert!(
            carriers(&exit, 1) > Some(0) && carriers(&exit, 0) == Some(0),
            "{way:?}"
        );
        assert!(carriers(&entry, 0) > Some(0), "{way:?}");
        assert_eq!(entry.status()["publicKeys"][0], entry_key.entry.as_str());
        // Nobody tells the exit that a process with a UDP socket is gone.
        if way != WAYS[0] {
            continue;
        }
        drop(entry);
        until("the exit has no carrier of the peer", || {
            carriers(&exit, 1) == Some(0)
        });
    }
}

#[test]
fn an_entry_with_an_unknown_key_is_named_and_told_over_each_protocol() {
    for way in WAYS {
        let (_dir, [exit_key, entry_key, stranger]) = keys();
        let (_listener, target) = target();
        let carrier = carrier_address();
        let security = exit_key.accepts(&[&entry_key.entry]);
        let exit = Gate::with_file(&exit_file(way, &security, carrier, target)).until_ready();
        let security = stranger.accepts(&[&exit_key.exit]);
        let (entry, _) = entry_of(way, &security, carrier, target);
        exit.line(&[
            "Carrier refused",
            "MT0233",
            &stranger.entry,
            "not in security.peers",
        ]);
        entry.line(&["MT0235", "does not accept this gateway's key"]);
        until("the entry is not ready", || entry.get("/readyz").0 == 503);
        assert!(metric(&exit, "muxgate_opens_refused_total{code=\"MT0233\"}") > 0);
        let status = exit.status();
        assert!(status["carriers"].as_array().unwrap().is_empty());
        let unknown = &status["unknownKeys"];
        assert_eq!(unknown["last"], stranger.entry.as_str(), "{way:?}");
        assert!(unknown["count"].as_u64() > Some(0), "{way:?}");
    }
}

#[test]
fn the_key_of_an_entry_does_not_act_as_the_exit() {
    for way in WAYS {
        let (_dir, [exit_key, entry_key, stolen]) = keys();
        let carrier = carrier_address();
        // The thief runs an exit with the key of another entry of the same exit.
        let security = stolen.accepts(&[&entry_key.entry]);
        let thief = Gate::with_file(&exit_file(way, &security, carrier, carrier)).until_ready();
        let security = entry_key.accepts(&[&exit_key.exit]);
        let (entry, _) = entry_of(way, &security, carrier, carrier);
        entry.line(&["No carrier", "MT0233", &stolen.exit]);
        thief.line(&["Carrier refused", "MT0235"]);
        assert_eq!(entry.get("/readyz").0, 503, "{way:?}");
    }
}

/// The output of a gateway that does not start because of its configuration.
fn refused(args: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_muxgate"))
        .args(args)
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn keys_that_would_let_anyone_in_are_refused_before_the_gateway_starts() {
    let (dir, [exit_key, entry_key, _]) = keys();
    let file = exit_key.file.to_str().unwrap();
    let listed = dir.path().join("peers");
    let exit = |peers: &[&str]| {
        let fixed = [
            "exit",
            "--listen",
            "127.0.0.1:0",
            "--allow",
            "a:1",
            "--key",
            file,
        ];
        refused(&[&fixed[..], peers].concat())
    };
    let small = key_text(Role::Entry, &[0; 32]);
    let mut corrupted = entry_key.entry.clone();
    corrupted.replace_range(20..21, if &corrupted[20..21] == "q" { "p" } else { "q" });
    for (peer, problem) in [
        (&exit_key.entry, "this gateway's own key"),
        (
            &entry_key.exit,
            "the key of an exit (mtx1...), but an entry (mte1...) is expected",
        ),
        (&small, "small order"),
        (&corrupted, "the checksum is wrong"),
    ] {
        let said = exit(&["--peer", peer]);
        assert!(said.contains(problem), "{said}");
        std::fs::write(&listed, format!("{}\n{peer}\n", entry_key.entry)).unwrap();
        let said = exit(&["--peers", listed.to_str().unwrap()]);
        assert!(said.contains(problem) && said.contains("2: "), "{said}");
    }
    let said = exit(&["--peer", &entry_key.entry, "--peer", &entry_key.entry]);
    assert!(said.contains("is listed twice"), "{said}");
    let said = refused(&[
        "entry",
        "--connect",
        "far:1",
        "--forward",
        "1:a:1",
        "--key",
        file,
        "--peer",
        &entry_key.entry,
    ]);
    assert!(
        said.contains("the key of an entry (mte1...), but an exit"),
        "{said}"
    );
}

/// A stream through `forward`: the client's end and the target's end.
fn open(forward: SocketAddr, listener: &std::net::TcpListener) -> (TcpStream, TcpStream) {
    let client = connect(forward);
    (client, accept(listener))
}

#[test]
fn a_key_that_leaves_the_list_ends_its_streams_and_does_not_come_back() {
    for way in WAYS {
        let (_dir, [exit_key, kept_key, gone_key]) = keys();
        let (listener, target) = target();
        let carrier = carrier_address();
        let text = |peers: &[&str]| exit_file(way, &exit_key.accepts(peers), carrier, target);
        let exit = Gate::with_file(&text(&[&kept_key.entry, &gone_key.entry])).until_ready();
        let [kept, gone] = [&kept_key, &gone_key].map(|key| {
            let (gate, forward) = entry_of(way, &key.accepts(&[&exit_key.exit]), carrier, target);
            (gate.until_ready(), forward)
        });
        let kept_stream = open(kept.1, &listener);
        let gone_stream = open(gone.1, &listener);
        exit.rewrite(&text(&[&kept_key.entry]));
        assert_reset(&gone_stream.0);
        assert_reset(&gone_stream.1);
        exit.line(&["MT0232", &gone_key.entry, "no longer in security.peers"]);
        // The entry dials again, and has nothing that would spare it the proof.
        exit.line(&["Carrier refused", "MT0233", &gone_key.entry]);
        assert_bulk(&kept_stream.0, kept_stream.1, MIB);
        // The last peer leaves as well.
        let kept_stream = open(kept.1, &listener);
        exit.rewrite(&text(&[]));
        assert_reset(&kept_stream.0);
        exit.rewrite(&text(&[&gone_key.entry]));
        let _again = gone.0.until_ready();
    }
}

#[test]
fn the_rules_of_a_peer_narrow_what_the_exit_allows_and_are_reloaded() {
    for protocol in ["Native", "QUIC"] {
        let (_dir, [exit_key, site_key, other_key]) = keys();
        let [(listener, target), (barred_listener, barred)] = [target(), target()];
        let carrier = carrier_address();
        let text = |rules: &str| {
            let site = format!("{{name: site, publicKeys: [{}]{rules}}}", site_key.entry);
            let security = exit_key.accepts(&[&site, &other_key.entry]);
            exit_file((protocol, ""), &security, carrier, target).replace(
                "\nallow: [",
                &format!("\nallow: [{}, ", common::rule(barred)),
            )
        };
        let exit = Gate::with_file(&text(&format!(
            ", allow: [{target_rule}]",
            target_rule = common::rule(target)
        )))
        .until_ready();
        let entries = |key: &Key, to| {
            let security = key.accepts(&[&exit_key.exit]);
            let (gate, forward) = entry_of((protocol, ""), &security, carrier, to);
            (gate.until_ready(), forward)
        };
        let site = entries(&site_key, target);
        let site_barred = entries(&site_key, barred);
        let other = entries(&other_key, barred);
        let stream = open(site.1, &listener);
        let others = open(other.1, &barred_listener);
        assert_reset(&connect(site_barred.1));
        exit.line(&["MT0204", &barred.to_string()]);
        // Without rules, the peer reaches what the exit allows.
        reload(&exit, &text(""));
        let opened = open(site_barred.1, &barred_listener);
        // A rule that denies ends the open stream of the peer alone.
        exit.rewrite(&text(&format!(
            ", deny: [{target_rule}, {barred_rule}]",
            target_rule = common::rule(target),
            barred_rule = common::rule(barred)
        )));
        assert_reset(&stream.0);
        assert_reset(&stream.1);
        assert_reset(&opened.0);
        assert_reset(&connect(site_barred.1));
        assert_bulk(&others.0, others.1, MIB);
    }
}

/// Waits until the gateway has applied a new file.
fn reload(gate: &Gate, text: &str) {
    let hash = || gate.status()["configHash"].clone();
    let before = hash();
    gate.rewrite(text);
    until("the new file is in force", || hash() != before);
}

#[test]
fn a_file_of_peers_is_followed_and_names_its_peers() {
    let (dir, [exit_key, one, two]) = keys();
    let spare = Key::new(dir.path(), "spare");
    let (listener, target) = target();
    let carrier = carrier_address();
    let listed = dir.path().join("peers");
    let write = |text: String| {
        let staged = dir.path().join("staged");
        std::fs::write(&staged, text).unwrap();
        std::fs::rename(staged, &listed).unwrap();
    };
    write(format!(
        "# sites\n{} first\n{} second\n",
        one.entry, two.entry
    ));
    let security = format!(
        "{{mode: PublicKeys, privateKeyFiles: ['{}'], peersFile: '{}'}}",
        exit_key.file.display(),
        listed.display()
    );
    let exit = format!(
        "role: Exit\nsecurity: {security}\nlisten: '{carrier}'\nadmin: ADMIN\nallow: [{}]\n",
        common::rule(format!("{target},peer=first"))
    );
    let exit = Gate::with_file(&exit).until_ready();
    let [first, second] = [&one, &two].map(|key| {
        let (gate, forward) = entry_of(
            ("Native", ""),
            &key.accepts(&[&exit_key.exit]),
            carrier,
            target,
        );
        (gate.until_ready(), forward)
    });
    // Only the first peer may dial the target.
    assert_reset(&connect(second.1));
    let stream = open(first.1, &listener);
    // Two lines of one name are one peer with two keys.
    write(format!(
        "{} first\n{} second\n{} first\n",
        one.entry, two.entry, spare.entry
    ));
    until("the peer has two keys", || {
        exit.status()["peers"][0]["publicKeys"]
            .as_array()
            .unwrap()
            .len()
            == 2
    });
    // A file with a wrong line changes nothing.
    write(format!("{} first\n{} second\nmte1\n", one.entry, two.entry));
    exit.line(&["MT0231", "line 3: the key is not"]);
    assert_bulk(&stream.0, stream.1, MIB);
    let stream = open(first.1, &listener);
    // A removal takes effect although another line is wrong.
    write(format!("{} first\nmte1\n", one.entry));
    exit.line(&["MT0232", "the peer second is no longer in security.peers"]);
    write(format!(
        "expirationTime=\"2020-01-01T00:00:00Z\" {} first\n",
        one.entry
    ));
    assert_reset(&stream.0);
    exit.line(&[
        "MT0232",
        "the peer first has expired at 2020-01-01T00:00:00Z",
    ]);
    exit.line(&["Carrier refused", "MT0233", "the peer first has expired"]);
    write(format!("{} first\n", one.entry));
    let _first = first.0.until_ready();
}

#[test]
fn a_peer_that_expires_while_it_is_connected_ends_with_its_streams() {
    for protocol in ["Native", "QUIC"] {
        let (_dir, [exit_key, entry_key, _]) = keys();
        let (listener, target) = target();
        let carrier = carrier_address();
        let end = time::OffsetDateTime::now_utc() + time::Duration::seconds(12);
        let end = end
            .format(&time::format_description::well_known::Rfc3339)
            .unwrap();
        let peer = format!(
            "{{publicKeys: [{}], expirationTime: '{end}'}}",
            entry_key.entry
        );
        let file = exit_file((protocol, ""), &exit_key.accepts(&[&peer]), carrier, target);
        let exit = Gate::with_file(&file).until_ready();
        let security = entry_key.accepts(&[&exit_key.exit]);
        let (entry, forward) = entry_of((protocol, ""), &security, carrier, target);
        let _entry = entry.until_ready();
        let stream = open(forward, &listener);
        exit.line(&["MT0232", "has expired at"]);
        assert_reset(&stream.0);
        assert_reset(&stream.1);
    }
}

#[test]
fn the_command_line_needs_a_key_and_a_peer() {
    let (_dir, [exit_key, entry_key, _]) = keys();
    let (listener, target) = target();
    let (carrier, port) = (carrier_address(), free_port());
    let (carrier, forward) = (carrier.to_string(), format!("{port}:{target}"));
    let allow = target.to_string();
    let key = |key: &Key| key.file.display().to_string();
    let exit_file = key(&exit_key);
    let exit = [
        "exit",
        "--key",
        &exit_file,
        "--peer",
        &entry_key.entry,
        "--listen",
        &carrier,
        "--allow",
        &allow,
    ];
    let _exit = Gate::with_flags(&exit).until_ready();
    let entry_file = key(&entry_key);
    let entry = [
        "entry",
        "--key",
        &entry_file,
        "--peer",
        &exit_key.exit,
        "--connect",
        &carrier,
        "--forward",
        &forward,
    ];
    let _entry = Gate::with_flags(&entry).until_ready();
    assert_bulk(
        &connect(([127, 0, 0, 1], port).into()),
        accept(&listener),
        MIB,
    );
}

#[test]
fn keygen_prints_the_lines_of_all_roles_and_writes_for_the_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    let keygen = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muxgate"));
        command
            .arg("keygen")
            .args(args)
            .arg(&file)
            .output()
            .unwrap()
    };
    let made = keygen(&[]);
    assert!(made.status.success(), "{made:?}");
    let said = String::from_utf8(made.stdout).unwrap();
    let lines: Vec<_> = said.lines().collect();
    let prefixes: Vec<_> = lines.iter().map(|line| &line[..4]).collect();
    assert_eq!(prefixes, ["mte1", "mtx1", "mtr1"]);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let written = std::fs::read(&file).unwrap();
    // Other programs can read the file.
    let mut openssl = Command::new("openssl");
    let read = openssl.args(["pkey", "-noout", "-in"]).arg(&file).output();
    let read = read.expect("openssl is needed: apt-get install openssl");
    assert!(read.status.success(), "{read:?}");
    assert!(!keygen(&[]).status.success());
    assert_eq!(std::fs::read(&file).unwrap(), written);
    assert_eq!(keygen(&["--show"]).stdout, said.as_bytes());
    assert!(keygen(&["--force"]).status.success());
    assert_ne!(keygen(&["--show"]).stdout, said.as_bytes());
}

//! The effects of a changed configuration on open sessions and streams.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use crate::common::authority::{Authority, in_seconds};
use crate::common::ends::{ENTRY, EXIT, LATER, carrier_address, entry, gateway_key, public_keys};
use crate::common::*;

/// An exit with `security` that may dial `allow`, with `more` lines of YAML.
fn exit_text(security: &str, carrier: SocketAddr, allow: SocketAddr, more: &str) -> String {
    format!(
        "role: Exit\nsecurity: {security}\nlisten: '{carrier}'\nadmin: ADMIN\nallow: [{allow_rule}]\n{more}",
        allow_rule = crate::common::rule(allow)
    )
}

/// An open stream: the client's end and the target's end.
struct Open {
    client: TcpStream,
    target: TcpStream,
}

impl Open {
    fn through(forward: SocketAddr, listener: &TcpListener) -> Self {
        let client = connect(forward);
        let open = Self {
            target: accept(listener),
            client,
        };
        open.assert_carries();
        open
    }

    fn assert_carries(&self) {
        for (mut from, mut to) in [(&self.client, &self.target), (&self.target, &self.client)] {
            from.write_all(b"ping").unwrap();
            let mut read = [0; 4];
            to.read_exact(&mut read).unwrap();
            assert_eq!(&read, b"ping");
        }
    }

    fn assert_cut(&self) {
        assert_reset(&self.client);
        assert_reset(&self.target);
    }
}

/// Returns two `security` texts of an exit: the first accepts one key, the second accepts both
/// keys. Also returns the `security` of each of the two entries.
fn two_keys(dir: &Path) -> ([String; 2], [String; 2]) {
    let [_, exit] = gateway_key(&dir.join("exit"));
    let [one, two] = ["one", "two"].map(|name| {
        let [public, _] = gateway_key(&dir.join(name));
        public
    });
    let entries = ["one", "two"].map(|name| public_keys(&dir.join(name), &[&exit]));
    let exits = [&[&*one][..], &[&one, &two]];
    (
        exits.map(|peers| public_keys(&dir.join("exit"), peers)),
        entries,
    )
}

/// Returns two `security` texts of an exit: the first accepts one name, the second accepts both
/// names. Also returns the `security` of each of the two entries.
fn two_names(dir: &Path) -> ([String; 2], [String; 2]) {
    const OTHER: &str = "other.example.com";
    let authority = Authority::new();
    let exit = authority.issue(dir, EXIT, LATER);
    let entries = [ENTRY, OTHER].map(|name| authority.issue(dir, name, LATER).security(EXIT));
    let exits = [ENTRY.to_owned(), format!("{ENTRY}', '{OTHER}")];
    (exits.map(|peers| exit.security(&peers)), entries)
}

#[test]
fn a_peer_that_is_taken_out_ends_at_once_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    for (exits, entries) in [two_keys(dir.path()), two_names(dir.path())] {
        let [fewer, both] = exits;
        let (listener, target) = target();
        let carrier = carrier_address();
        let text = |security: &str| exit_text(security, carrier, target, "workers: 2\n");
        let exit = Gate::with_file(&text(&both)).until_ready();
        let [kept, revoked] = entries.map(|security| {
            let (gate, forward) = entry(&security, "Native", carrier, target);
            let gate = gate.until_ready();
            (Open::through(forward, &listener), gate)
        });
        exit.rewrite(&text(&fewer));
        revoked.0.assert_cut();
        exit.line(&["Carrier ended", "MT0232", "is no longer"]);
        exit.line(&["Stream closed", "reason=\"revoked\"", "MT0232"]);
        until("the revoked entry is not ready", || {
            revoked.1.get("/readyz").0 == 503
        });
        let (kept, _entry) = kept;
        kept.assert_carries();
        assert!(exit.status()["configError"].is_null());
        // The entry is permitted again.
        exit.rewrite(&text(&both));
        let _again = revoked.1.until_ready();
    }
}

#[test]
fn a_peer_that_holds_every_place_gives_one_up_for_another_and_keeps_its_streams() {
    let dir = tempfile::tempdir().unwrap();
    let ([_, both], [one, two]) = two_keys(dir.path());
    let (listener, target) = target();
    let carrier = carrier_address();
    let limits = "workers: 2\nlimits: {carriers: 4}\n";
    let exit = Gate::with_file(&exit_text(&both, carrier, target, limits)).until_ready();
    let carriers = || exit.status()["carriers"].as_array().unwrap().len();
    let pool = format!("{one}\npool: {{min: 4, max: 4}}");
    let (first, forward) = entry(&pool, "Native", carrier, target);
    let _first = first.until_ready();
    until("the first entry has all four permits", || carriers() == 4);
    let open = Open::through(forward, &listener);
    let (second, other) = entry(&two, "Native", carrier, target);
    let _second = second.until_ready();
    exit.line(&["Carrier ended", "MT0209"]);
    let another = Open::through(other, &listener);
    open.assert_carries();
    another.assert_carries();
    assert_eq!(carriers(), 4);
}

#[test]
fn carriers_end_with_their_authority_and_then_the_streams_of_a_peer_that_has_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let exit_files = authority.issue(dir.path(), EXIT, LATER);
    let entry_files = authority.issue(dir.path(), ENTRY, LATER);
    let (listener, target) = target();
    let carrier = carrier_address();
    let text = exit_text(&exit_files.security(ENTRY), carrier, target, "");
    let exit = Gate::with_file(&text).until_ready();
    // The entry uses a copy of the files, so it keeps the former authority.
    let copy = tempfile::tempdir().unwrap();
    let ca = copy.path().join("ca");
    std::fs::copy(&entry_files.ca, &ca).unwrap();
    let security = crate::common::authority::Files { ca, ..entry_files }.security(EXIT);
    let (gate, forward) = entry(&security, "Native", carrier, target);
    let _entry = gate.until_ready();
    let open = Open::through(forward, &listener);
    let other = tempfile::tempdir().unwrap();
    let other = Authority::new().issue(other.path(), ENTRY, LATER);
    std::fs::copy(other.ca, exit_files.ca).unwrap();
    exit.line(&["Carrier ended", "MT0232"]);
    until("the exit has no carriers", || {
        exit.status()["carriers"].as_array().unwrap().is_empty()
    });
    open.assert_cut();
}

#[test]
fn the_part_of_a_file_that_needs_no_restart_counts_and_the_rest_is_named() {
    let (listener, target) = target();
    let carrier = carrier_address();
    let text = |more: &str| exit_text("{mode: None}", carrier, target, more);
    let exit = Gate::with_file(&text("workers: 1\n")).until_ready();
    let (gate, forward) = entry("{mode: None}", "Native", carrier, target);
    let entry = gate.until_ready();
    let open = Open::through(forward, &listener);
    let hash = exit.status()["configHash"].clone();
    let deny = format!(
        "deny: [{target_rule}]\n",
        target_rule = crate::common::rule(target)
    );
    exit.rewrite(&text(&format!("workers: 2\nresume: false\n{deny}")));
    open.assert_cut();
    exit.line(&["Stream closed", "reason=\"denied\"", "MT0222"]);
    let error = exit.status()["configError"].clone();
    let error = error.as_str().unwrap();
    assert!(
        error.contains("MT0102") && error.contains("change workers, resume;"),
        "{error}"
    );
    // The configuration in force differs from the file.
    assert_eq!(exit.status()["configHash"], hash);
    assert_reset(&connect(forward));
    entry.line(&["MT0204"]);
    exit.rewrite(&text("workers: 1\n"));
    until("no change needs a restart", || {
        exit.status()["configError"].is_null()
    });
    Open::through(forward, &listener);
}

#[test]
fn streams_stay_when_what_allowed_them_goes_and_end_by_a_rule_that_denies() {
    let dir = tempfile::tempdir().unwrap();
    let ([_, both], entries) = two_keys(dir.path());
    let denied = both.trim_end_matches("]}").rsplit(' ').next().unwrap();
    let (listener, target) = target();
    let carrier = carrier_address();
    let text = |more: &str| exit_text(&both, carrier, target, more);
    let exit = Gate::with_file(&text("")).until_ready();
    let [(kept, first), (cut, second)] = entries.map(|security| {
        let (gate, forward) = entry(&security, "Native", carrier, target);
        let gate = gate.until_ready();
        (Open::through(forward, &listener), (gate, forward))
    });
    let taken_over = |times: usize| {
        until("the configuration is reloaded", || {
            exit.log().matches("Configuration reloaded").count() == times
        });
    };
    exit.rewrite(&text("").replace(
        &format!(
            "allow: [{target_rule}]\n",
            target_rule = crate::common::rule(target)
        ),
        "",
    ));
    taken_over(1);
    assert_reset(&connect(first.1));
    // These rules deny another target, and another port of the same target.
    exit.rewrite(&text(
        "deny: [{cidr: 192.0.2.1/32}, {cidr: 127.0.0.1/32, port: 1}]\n",
    ));
    taken_over(2);
    Open::through(first.1, &listener);
    kept.assert_carries();
    cut.assert_carries();
    exit.rewrite(&text(&format!("deny: [{{host: '*', peer: '{denied}'}}]\n")));
    cut.assert_cut();
    kept.assert_carries();
    assert_reset(&connect(second.1));
    drop((first, second));
}

#[test]
fn streams_of_the_exit_end_by_a_rule_of_the_entry() {
    let (listener, target) = target();
    let (carrier, port) = (carrier_address(), free_port());
    let exit = format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: '{carrier}'\nadmin: ADMIN\nallowListen: ['{port}']\n"
    );
    let _exit = Gate::with_file(&exit).until_ready();
    let text = format!(
        "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: '{carrier}'\nadmin: ADMIN\nreverseForwards:\n\
         - {{name: back, listen: '127.0.0.1:{port}', \
         targets: [{{host: localhost, port: {}}}]}}\n",
        target.port()
    );
    let entry = Gate::with_file(&text).until_ready();
    entry.until_listening();
    let forward = ([127, 0, 0, 1], port).into();
    let open = Open::through(forward, &listener);
    // The rule applies to the dialled name, which is not resolved again.
    entry.rewrite(&format!("{text}deny: [{{host: localhost}}]\n"));
    open.assert_cut();
    assert_reset(&connect(forward));
}

/// An exit, an entry of `protocol` whose certificate is valid for this many seconds, and an open
/// stream.
struct Certified {
    dir: tempfile::TempDir,
    authority: Authority,
    exit: Gate,
    entry: Gate,
    forward: SocketAddr,
    listener: TcpListener,
    open: Open,
}

impl Certified {
    fn for_seconds(protocol: &str, seconds: i64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let exit = authority.issue(dir.path(), EXIT, LATER).security(ENTRY);
        let own = authority.issue_until(dir.path(), ENTRY, in_seconds(seconds));
        let (listener, target) = target();
        let carrier = carrier_address();
        let more = format!("protocol: {protocol}\n");
        let exit = Gate::with_file(&exit_text(&exit, carrier, target, &more)).until_ready();
        let (entry, forward) = entry(&own.security(EXIT), protocol, carrier, target);
        let entry = entry.until_ready();
        let open = Open::through(forward, &listener);
        Self {
            dir,
            authority,
            exit,
            entry,
            forward,
            listener,
            open,
        }
    }

    fn renew(&self) {
        self.authority.issue(self.dir.path(), ENTRY, LATER);
        self.entry.line(&["New credentials loaded"]);
    }

    fn carriers(&self) -> usize {
        self.exit.status()["carriers"].as_array().unwrap().len()
    }
}

#[test]
fn a_renewed_entry_replaces_its_carriers_and_streams_go_on() {
    let tunnel = Certified::for_seconds("Native", 3600);
    tunnel.renew();
    tunnel
        .entry
        .line(&["Carrier ended", "carrier=0", "another carrier replaces it"]);
    until("the exit has one carrier", || tunnel.carriers() == 1);
    tunnel.open.assert_carries();
    let another = Open::through(tunnel.forward, &tunnel.listener);
    another.assert_carries();
}

#[test]
fn a_renewed_entry_leaves_a_session_that_cannot_resume_to_its_streams() {
    let tunnel = Certified::for_seconds("JMUX", 3600);
    tunnel.renew();
    tunnel
        .entry
        .line(&["accepts no more streams; open streams continue"]);
    let another = Open::through(tunnel.forward, &tunnel.listener);
    assert_eq!(tunnel.carriers(), 2);
    tunnel.open.assert_carries();
    another.assert_carries();
    drop(another);
    let Certified { open, exit, .. } = tunnel;
    drop(open);
    until("the replaced carrier has ended", || {
        exit.status()["carriers"].as_array().unwrap().len() == 1
    });
}

#[test]
fn a_carrier_ends_with_its_certificate_and_its_streams_go_on_over_a_good_one() {
    let tunnel = Certified::for_seconds("Native", 25);
    let line = tunnel
        .exit
        .line(&["Carrier ended", "certificate has expired"]);
    assert!(!line.contains("MT0232"), "{line}");
    tunnel.exit.line(&["Carrier refused", "MT0230", "expired"]);
    tunnel.renew();
    tunnel.open.assert_carries();
}

#[test]
fn a_session_that_cannot_resume_drains_once_its_certificate_has_expired() {
    let tunnel = Certified::for_seconds("JMUX", 25);
    tunnel.exit.line(&["has expired", "drains"]);
    tunnel.open.assert_carries();
    assert_reset(&connect(tunnel.forward));
    tunnel.renew();
    tunnel
        .entry
        .line(&["accepts no more streams; open streams continue"]);
    Open::through(tunnel.forward, &tunnel.listener);
    tunnel.open.assert_carries();
}

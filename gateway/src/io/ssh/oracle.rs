//! Properties that hold for any `authorized_keys` and `known_hosts`.

use std::net::IpAddr;
use std::path::Path;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use russh::keys::PublicKeyOrCertificate;
use russh::keys::ssh_key::PublicKey;

use super::authorized::{self, Authorized, parse_line};
use super::known_hosts::{self, KnownHosts};
use super::lines::{lines, public_key};
use super::user_keys::check_key;
use crate::base::glob::glob;

/// Names that no input is likely to contain.
const HOST: &str = "host.of.the.oracle";
const OTHER: &str = "other.host.of.the.oracle";
/// Patterns and names up to this length are also compared by brute force.
const GLOB_BYTES_MAX: usize = 64;

/// Panics if a property does not hold for a file with the content `input`.
pub(crate) fn authorized_keys(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let good = lines(text).filter(|(_, line)| parse_line(line).is_ok());
    let keys = authorized::parse(Path::new("authorized_keys"), text);
    assert_eq!(keys.len(), good.count());
    for (_, line) in lines(text) {
        let Ok(read) = parse_line(line) else {
            continue;
        };
        assert_eq!(check_key(&read.key), Ok(()));
        let key = PublicKey::from(read.key.clone());
        assert_eq!(public_key(behind_options(line)).ok(), Some(key));
        restricts(line, &read);
    }
}

/// Checks that an additional option before an accepted line restricts the line or makes it invalid.
fn restricts(line: &str, read: &Authorized) {
    let with = |option: &str| {
        let space = match public_key(line) {
            Ok(_) => ' ',
            Err(_) => ',',
        };
        parse_line(&format!("{option}{space}{line}"))
    };
    for option in ["strange", "cert-authority", "command=\"true\"", ""] {
        assert!(with(option).is_err(), "{option}");
    }
    let same = holds(with("No-PTY"), "a terminal is nothing");
    assert_eq!((&same.grant, &same.from), (&read.grant, &read.from));
    assert_eq!(same.not_after, read.not_after);

    let expires = holds(with("expiry-time=\"20000101\""), "an expiry-time");
    assert!(expires.not_after <= Some(946_684_800));
    match with("from=\"192.0.2.1\"") {
        Err(_) => assert!(read.from.is_some()),
        Ok(from) => {
            let from = holds(from.from.ok_or("none"), "a from");
            let at = |text: &str| text.parse::<IpAddr>().ok();
            assert!(read.from.is_none() && from.has(at("192.0.2.1")));
            assert!(!from.has(at("192.0.2.2")) && !from.has(None));
        }
    }
    let nothing = holds(
        with("permitopen=\"none\",permitlisten=\"none\""),
        "none is a value",
    );
    assert!(nothing.grant.opens.is_some() && nothing.grant.listens.is_some());
    assert!(nothing.grant.denies_unix().is_some());
    if !read.grant.forwards {
        assert!(read.grant.denies_open(HOST, 80).is_some() && read.grant.denies_unix().is_some());
        assert!(!read.grant.permits_listen(HOST, 80));
    }
}

/// The part of a line that remains after sshd's `sshkey_advance_past_options`. A line without
/// options remains whole.
fn behind_options(line: &str) -> &str {
    if public_key(line).is_ok() {
        return line;
    }
    let bytes = line.as_bytes();
    let (mut at, mut is_quoted) = (0, false);
    while at < bytes.len() && (is_quoted || !b" \t".contains(&bytes[at])) {
        match (bytes[at], bytes.get(at + 1)) {
            (b'\\', Some(b'"')) => at += 1,
            (b'"', _) => is_quoted = !is_quoted,
            _ => {}
        }
        at += 1;
    }
    line[at..].trim_start_matches([' ', '\t'])
}

/// Panics if a property does not hold for a file with the content `input`, or for a pattern and a
/// name from `input`.
pub(crate) fn known_hosts(input: &[u8]) {
    let parts: Vec<_> = input.splitn(3, |byte| *byte == b'\n').collect();
    if let [pattern, name, ..] = parts[..] {
        let (pattern, name) = (cut(pattern), cut(name));
        assert_eq!(glob(pattern, name), matches_slowly(pattern, name));
    }
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let fields = lines(text).flat_map(|(_, line)| line.split([' ', '\t', ',']));
    let names = fields.take(3).map(str::to_ascii_lowercase);
    let names: Vec<_> = names.chain([HOST.to_owned()]).collect();
    for (_, line) in lines(text) {
        // The key is in the last fields, regardless of the fields before it.
        let (_, first) = super::lines::field(line);
        let (_, second) = super::lines::field(first);
        for key in [line, first, second] {
            if let Ok(key) = public_key(key) {
                names.iter().for_each(|name| judges(text, name, &key));
            }
        }
    }
}

/// Checks that a revoked key is refused. Another key of the host is accepted under the host's name
/// and under the hash of this name.
fn judges(text: &str, name: &str, key: &PublicKey) {
    let shown = PublicKeyOrCertificate::from(key.clone());
    let check = |more: &str| {
        let text = format!("{text}\n{more}\n");
        KnownHosts::parse(Path::new("known_hosts"), &text).check(name, &shown)
    };
    let line = PublicKey::from(key.key_data().clone()).to_openssh();
    let line = holds(line, "a key can be written");
    let before = check("");
    assert!(check(&format!("@revoked *\t{line}")).is_err());
    if name != OTHER {
        assert_eq!(check(&format!("{OTHER} {line}")).is_ok(), before.is_ok());
    }
    let salt = [7; 20];
    let mac = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
    let hash = STANDARD.encode(hmac::sign(&mac, name.as_bytes()));
    let hashed = format!("|1|{}|{hash} {line}", STANDARD.encode(salt));
    match check(&hashed) {
        Ok(()) => {}
        Err(problem) => assert!(problem.contains("is revoked"), "{problem}"),
    }
    if before.is_ok() {
        assert!(check(&hashed).is_ok());
    }
    let ports = [22, 2222].map(|port| known_hosts::name(HOST, port));
    let of_port = KnownHosts::parse(Path::new("a"), &format!("{} {line}", ports[1]));
    assert!(of_port.check(&ports[1], &shown).is_ok() && of_port.check(&ports[0], &shown).is_err());
}

fn cut(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(GLOB_BYTES_MAX)]
}

/// Computes [`glob`] by brute force, for each prefix of the pattern and of the name.
fn matches_slowly(pattern: &[u8], name: &[u8]) -> bool {
    let mut row: Vec<bool> = (0..=name.len()).map(|length| length == 0).collect();
    for byte in pattern {
        let mut next = vec![false; name.len() + 1];
        next[0] = *byte == b'*' && row[0];
        for length in 1..=name.len() {
            next[length] = match byte {
                b'*' => row[length] || next[length - 1],
                b'?' => row[length - 1],
                byte => row[length - 1] && *byte == name[length - 1],
            };
        }
        row = next;
    }
    row[name.len()]
}

/// Panics if `what` fails.
fn holds<T, E: std::fmt::Debug>(found: Result<T, E>, what: &str) -> T {
    found.unwrap_or_else(|error| unreachable!("{what}: {error:?}"))
}

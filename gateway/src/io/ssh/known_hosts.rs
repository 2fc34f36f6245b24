//! `known_hosts` as ssh reads it: the keys that hosts may have. A host that is not in it is refused.

use std::path::Path;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use russh::keys::PublicKeyOrCertificate;
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::ssh_key::{Certificate, HashAlg, PublicKey};
use rustls::pki_types::UnixTime;

/// The port that a host's name is written without.
const PORT: u16 = 22;

/// The lines of a file.
#[derive(Debug)]
pub(super) struct KnownHosts(Vec<Line>);

#[derive(Debug)]
struct Line {
    marker: Marker,
    hosts: String,
    key: KeyData,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    None,
    Authority,
    Revoked,
}

/// The name of a host in the file.
pub(super) fn name(host: &str, port: u16) -> String {
    let host = host.to_ascii_lowercase();
    match port {
        PORT => host,
        port => format!("[{host}]:{port}"),
    }
}

impl KnownHosts {
    /// What cannot be used of it is logged with its line.
    pub(super) fn parse(path: &Path, text: &str) -> Self {
        let mut lines = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match Line::parse(line) {
                Some(line) => lines.push(line),
                None => {
                    let at = format!("{}:{}", path.display(), index + 1);
                    tracing::debug!(%at, "A line of knownHosts has no key that can be used");
                }
            }
        }
        Self(lines)
    }

    /// Whether the host of this name may have `shown`.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self, name: &str, shown: &PublicKeyOrCertificate) -> Result<(), String> {
        let lines = || self.0.iter().filter(|line| line.has(name));
        let key = shown.public_key();
        let is_revoked = |line: &Line| {
            let authority = shown.certificate().map(Certificate::signature_key);
            line.marker == Marker::Revoked
                && (line.key == *key.key_data() || authority == Some(&line.key))
        };
        if lines().any(is_revoked) {
            return Err(format!("the key of {name} is revoked in knownHosts"));
        }
        let of = |marker: Marker| lines().filter(move |line| line.marker == marker);
        match shown.certificate() {
            Some(certificate) => {
                let mut authorities = of(Marker::Authority);
                if authorities.any(|line| line.key == *certificate.signature_key()) {
                    return check_certificate(name, certificate);
                }
                Err(format!(
                    "no authority of {name} in knownHosts has signed its certificate"
                ))
            }
            None if of(Marker::None).any(|line| line.key == *key.key_data()) => Ok(()),
            None => Err(unknown(name, &key, of(Marker::None).next().is_some())),
        }
    }

    /// Whether there are authorities, so that hosts may show certificates.
    pub(super) fn has_authorities(&self, name: &str) -> bool {
        let is_one = |line: &Line| line.marker == Marker::Authority && line.has(name);
        self.0.iter().any(is_one)
    }
}

fn unknown(name: &str, key: &PublicKey, has_others: bool) -> String {
    let print = key.fingerprint(HashAlg::Sha256);
    match has_others {
        true => format!("{name} has the key {print}, and another one in knownHosts"),
        false => format!("{name} is not in knownHosts; its key is {print}"),
    }
}

fn check_certificate(name: &str, certificate: &Certificate) -> Result<(), String> {
    let host = name.trim_start_matches('[');
    let host = host.split(']').next().unwrap_or(host);
    let print = certificate.signature_key().fingerprint(HashAlg::Sha256);
    let wrong = |problem: &str| Err(format!("the certificate of {name} {problem}"));
    let mut principals = certificate.valid_principals().iter();
    if certificate.cert_type() != CertType::Host {
        wrong("is a user's")
    } else if !principals.any(|principal| principal.eq_ignore_ascii_case(host)) {
        wrong("is for another host")
    } else if !certificate.critical_options().is_empty() {
        wrong("has critical options, none of which is supported")
    } else if certificate
        .validate_at(UnixTime::now().as_secs(), [&print])
        .is_err()
    {
        wrong("is not valid now")
    } else {
        Ok(())
    }
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let (marker, rest) = match line.strip_prefix('@') {
            None => (Marker::None, line),
            Some(rest) => {
                let (marker, rest) = rest.split_once(char::is_whitespace)?;
                let marker = match marker {
                    "cert-authority" => Marker::Authority,
                    "revoked" => Marker::Revoked,
                    _ => return None,
                };
                (marker, rest.trim_start())
            }
        };
        let (hosts, key) = rest.split_once(char::is_whitespace)?;
        let key = PublicKey::from_openssh(key.trim()).ok()?;
        Some(Self {
            marker,
            hosts: hosts.to_owned(),
            key: key.key_data().clone(),
        })
    }

    fn has(&self, name: &str) -> bool {
        let mut has = false;
        for pattern in self.hosts.split(',') {
            match pattern.strip_prefix('!') {
                Some(pattern) if matches(pattern, name) => return false,
                Some(_) => {}
                None => has |= matches(pattern, name),
            }
        }
        has
    }
}

/// A name that is hashed, or has `*` and `?`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("|1|") {
        Some(hashed) => matches_hash(hashed, name).unwrap_or(false),
        None => glob(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes()),
    }
}

fn matches_hash(hashed: &str, name: &str) -> Option<bool> {
    let (salt, hash) = hashed.split_once('|')?;
    let (salt, hash) = (STANDARD.decode(salt).ok()?, STANDARD.decode(hash).ok()?);
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
    Some(hmac::verify(&key, name.as_bytes(), &hash).is_ok())
}

/// Linear but for what is behind the last `*`, which is tried at each place.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut begin) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while begin < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, begin));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[begin] => {
                at += 1;
                begin += 1;
            }
            _ => match star {
                Some((position, from)) => {
                    star = Some((position, from + 1));
                    at = position + 1;
                    begin = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIrWbWryPsjTWUFGrgd/nQHyY4SmCz8Nc7nPVVL46CpD";
    const OTHER: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPLynPQzqpAj9xcDxe6njY47d50HFVfOtQJvjOfRA9Ld";

    fn known(text: &str, name: &str) -> Result<(), String> {
        let shown = PublicKey::from_openssh(KEY).unwrap();
        let hosts = KnownHosts::parse(Path::new("known_hosts"), text);
        hosts.check(name, &shown.into())
    }

    #[test]
    fn a_host_is_known_by_its_name_and_port_by_patterns_and_by_nothing_else() {
        for hosts in [
            "web.example.com",
            "other,web.example.com",
            "*.example.com",
            "w?b.example.com,!bad.example.com",
            "WEB.example.com",
        ] {
            let text = format!("# hosts\n\n{hosts} {KEY} a comment\n");
            assert_eq!(known(&text, "web.example.com"), Ok(()), "{hosts}");
        }
        for hosts in [
            "example.com",
            "*.example.org",
            "*,!web.example.com",
            "[web.example.com]:2222",
            "web?.example.com",
            "",
        ] {
            let text = format!("{hosts} {KEY}\n");
            let problem = known(&text, "web.example.com").unwrap_err();
            assert!(
                problem.contains("is not in knownHosts"),
                "{hosts}: {problem}"
            );
        }
        let text = format!("[web]:2222 {KEY}\n");
        assert_eq!(known(&text, &name("Web", 2222)), Ok(()));
        assert_eq!(name("web", 22), "web");
    }

    #[test]
    fn another_key_or_one_that_is_revoked_is_refused() {
        let other = known(&format!("web {OTHER}\n"), "web").unwrap_err();
        assert!(other.contains("another one in knownHosts"), "{other}");
        let both = format!("web {OTHER}\nweb {KEY}\n");
        assert_eq!(known(&both, "web"), Ok(()));
        let revoked = known(&format!("web {KEY}\n@revoked * {KEY}\n"), "web").unwrap_err();
        assert!(revoked.contains("revoked"), "{revoked}");
        let authority = known(&format!("@cert-authority * {KEY}\n"), "web").unwrap_err();
        assert!(authority.contains("is not in knownHosts"), "{authority}");
    }

    #[test]
    fn patterns_match_as_far_as_they_say() {
        for (pattern, name, is_match) in [
            ("", "", true),
            ("*", "", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("*a", "aaab", false),
            ("?", "", false),
            ("**?", "a", true),
        ] {
            assert_eq!(
                glob(pattern.as_bytes(), name.as_bytes()),
                is_match,
                "{pattern} {name}"
            );
        }
    }
}

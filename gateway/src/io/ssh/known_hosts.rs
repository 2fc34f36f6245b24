//! Parses `known_hosts` like ssh: the permitted keys of hosts. The gateway refuses a host that the
//! file does not list.

use std::path::Path;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use russh::keys::PublicKeyOrCertificate;
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::ssh_key::{Certificate, HashAlg, PublicKey};
use rustls::pki_types::UnixTime;

use super::lines::{field, lines, public_key};
use crate::base::glob::glob_in_any_case;

/// The port that is omitted from a host's name.
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
    /// Parses a file. Logs each unusable line with its line number.
    pub(super) fn parse(path: &Path, text: &str) -> Self {
        let mut known = Vec::new();
        for (number, line) in lines(text) {
            let at = || format!("{}:{number}", path.display());
            match Line::parse(line) {
                Some(line) => known.push(line),
                None if line.starts_with('@') => {
                    tracing::warn!(
                        at = at(),
                        "Ignoring a line of knownHosts: it has a marker, and its key cannot be read"
                    );
                }
                None => {
                    tracing::debug!(
                        at = at(),
                        "A line of knownHosts has no readable key and is ignored"
                    );
                }
            }
        }
        Self(known)
    }

    /// Whether the host with this name may have the key or certificate `shown`.
    ///
    /// # Errors
    /// The reason why the host may not have the key or certificate.
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

    /// Whether the file contains authorities for the host, so that the host may present a
    /// certificate.
    pub(super) fn has_authorities(&self, name: &str) -> bool {
        let is_one = |line: &Line| line.marker == Marker::Authority && line.has(name);
        self.0.iter().any(is_one)
    }
}

fn unknown(name: &str, key: &PublicKey, has_others: bool) -> String {
    let print = key.fingerprint(HashAlg::Sha256);
    match has_others {
        true => format!(
            "{name} has the key {print}, but knownHosts has another key: if the host's key was changed on purpose, \
             update knownHosts"
        ),
        false => format!(
            "{name} is not in knownHosts; its key is {print}: compare the key with the host's key, and add it to \
             knownHosts"
        ),
    }
}

fn check_certificate(name: &str, certificate: &Certificate) -> Result<(), String> {
    let host = name.trim_start_matches('[');
    let host = host.split(']').next().unwrap_or(host);
    let print = certificate.signature_key().fingerprint(HashAlg::Sha256);
    let wrong = |problem: &str| Err(format!("the certificate of {name} {problem}"));
    let mut principals = certificate.valid_principals().iter();
    if certificate.cert_type() != CertType::Host {
        wrong("is a user certificate")
    } else if !principals.any(|pattern| glob_in_any_case(pattern, host)) {
        wrong(&format!(
            "is for another host: none of its {} principals matches {host:?}",
            certificate.valid_principals().len()
        ))
    } else if !certificate.critical_options().is_empty() {
        wrong("has critical options, none of which is supported")
    } else if certificate
        .validate_at(UnixTime::now().as_secs(), [&print])
        .is_err()
    {
        wrong(&format!(
            "is not valid now (valid from {} to {}, Unix time in seconds), or its signature is wrong",
            certificate.valid_after(),
            certificate.valid_before()
        ))
    } else {
        Ok(())
    }
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let (marker, rest) = match line.strip_prefix('@') {
            None => (Marker::None, line),
            Some(rest) => match field(rest) {
                ("cert-authority", rest) => (Marker::Authority, rest),
                ("revoked", rest) => (Marker::Revoked, rest),
                _ => return None,
            },
        };
        let (hosts, key) = field(rest);
        let key = public_key(key).ok()?;
        Some(Self {
            marker,
            hosts: hosts.to_owned(),
            key: key.key_data().clone(),
        })
    }

    fn has(&self, name: &str) -> bool {
        // A hashed name is the only name on its line.
        if let Some(hashed) = self.hosts.strip_prefix('|') {
            return matches_hash(hashed, name).unwrap_or(false);
        }
        let mut has = false;
        for pattern in self.hosts.split(',') {
            match pattern.strip_prefix('!') {
                Some(pattern) if glob_in_any_case(pattern, name) => return false,
                Some(_) => {}
                None => has |= glob_in_any_case(pattern, name),
            }
        }
        has
    }
}

/// Compares a name with `1|SALT|HASH`, both in base64.
fn matches_hash(hashed: &str, name: &str) -> Option<bool> {
    let (salt, hash) = hashed.strip_prefix("1|")?.split_once('|')?;
    let (salt, hash) = (STANDARD.decode(salt).ok()?, STANDARD.decode(hash).ok()?);
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
    Some(hmac::verify(&key, name.as_bytes(), &hash).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIrWbWryPsjTWUFGrgd/nQHyY4SmCz8Nc7nPVVL46CpD";
    const OTHER: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPLynPQzqpAj9xcDxe6njY47d50HFVfOtQJvjOfRA9Ld";

    /// An authority that has signed [`KEY`] for the hosts `*.example.com` and `one`, without an
    /// expiry date.
    const AUTHORITY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDglcKqt8SBargy69m2tdOOd6aKVdG2zNfNewShBjgWj";
    const CERTIFICATE: &str = "ssh-ed25519-cert-v01@openssh.com AAAAIHNzaC1lZDI1NTE5LWNlcnQtdjAxQG9wZW5zc2guY29tAAAAIO9Bw5lAnl4yOGaoSDP+Le6+6V5bXeNQxTVgMGiZA/5KAAAAIIrWbWryPsjTWUFGrgd/nQHyY4SmCz8Nc7nPVVL46CpDAAAAAAAAAAAAAAACAAAAA3dlYgAAABgAAAANKi5leGFtcGxlLmNvbQAAAANvbmUAAAAAAAAAAP//////////AAAAAAAAAAAAAAAAAAAAMwAAAAtzc2gtZWQyNTUxOQAAACA4JXCqrfEgWq4MuvZtrXTjnemilXRtszXzXsEoQY4FowAAAFMAAAALc3NoLWVkMjU1MTkAAABAA3KYBTNKgl78LsvHsmmZatZiMfzYT/t8uBru6wzzGUX5rMo9GZXmJkOCbPo0AviUQz22p7RelL1D8vg7WneRDw== k.pub";

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
        assert!(other.contains("knownHosts has another key"), "{other}");
        let both = format!("web {OTHER}\nweb {KEY}\n");
        assert_eq!(known(&both, "web"), Ok(()));
        let revoked = known(&format!("web {KEY}\n@revoked * {KEY}\n"), "web").unwrap_err();
        assert!(revoked.contains("revoked"), "{revoked}");
        let authority = known(&format!("@cert-authority * {KEY}\n"), "web").unwrap_err();
        assert!(authority.contains("is not in knownHosts"), "{authority}");
    }

    #[test]
    fn a_line_counts_however_its_fields_are_spaced() {
        let spaced = |spaces: &str| KEY.replace(' ', spaces);
        for spaces in ["  ", "\t", " \t "] {
            let key = spaced(spaces);
            let plain = format!("web{spaces}{key}{spaces}a comment\n");
            assert_eq!(known(&plain, "web"), Ok(()), "{plain:?}");
            let revoked = format!("web {KEY}\n@revoked{spaces}*{spaces}{key}\tstolen\n");
            let problem = known(&revoked, "web").unwrap_err();
            assert!(problem.contains("revoked"), "{revoked:?}: {problem}");
        }
    }

    /// Uses the hash that ssh-keygen -H creates for the host `web.example.com`.
    #[test]
    fn a_hashed_name_is_one_name_alone() {
        let hash = "|1|AAECAwQFBgcICQoLDA0ODxAREhM=|A4Vf9JAnkwF7GzejeJdS+cAjBV4=";
        assert_eq!(known(&format!("{hash} {KEY}\n"), "web.example.com"), Ok(()));
        for hosts in [
            format!("{hash},other"),
            format!("other,{hash}"),
            format!("!{hash}"),
            hash.replace("|1|", "|2|"),
            hash.replace("A4Vf9JAnkwF7GzejeJdS+cAjBV4=", ""),
            hash[..hash.len() - 4].to_owned(),
        ] {
            let text = format!("{hosts} {KEY}\n");
            assert!(known(&text, "web.example.com").is_err(), "{hosts}");
        }
        let first = format!("{hash},other {KEY}\n");
        assert!(known(&first, "other").is_err());
        let of_port = known(&format!("{hash} {KEY}\n"), &name("web.example.com", 2222));
        assert!(of_port.is_err());
    }

    #[test]
    fn a_certificate_is_for_the_hosts_that_it_and_its_authoritys_line_have() {
        let judge = |text: &str, name: &str| {
            let shown = Certificate::from_openssh(CERTIFICATE).unwrap();
            let hosts = KnownHosts::parse(Path::new("known_hosts"), text);
            hosts.check(name, &shown.into())
        };
        let all = format!("@cert-authority\t*  {AUTHORITY}\n");
        for host in [
            "web.example.com",
            "[WEB.example.com]:2222",
            "one",
            "[one]:22",
        ] {
            assert_eq!(judge(&all, &host.to_ascii_lowercase()), Ok(()), "{host}");
        }
        let other = judge(&all, "two").unwrap_err();
        assert!(other.contains("is for another host"), "{other}");
        for text in [
            format!("@cert-authority two {AUTHORITY}\n"),
            format!("@cert-authority *,!one {AUTHORITY}\n"),
            format!("* {AUTHORITY}\n"),
            format!("@cert-authority * {OTHER}\n"),
        ] {
            let problem = judge(&text, "one").unwrap_err();
            assert!(problem.contains("has signed its certificate"), "{problem}");
        }
        for revoked in [AUTHORITY, KEY] {
            let problem = judge(&format!("{all}@revoked one {revoked}\n"), "one").unwrap_err();
            assert!(problem.contains("revoked"), "{problem}");
        }
    }
}

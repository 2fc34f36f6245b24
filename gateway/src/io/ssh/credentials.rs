//! Loads the keys of both sides from files, and determines the permissions of the peer's keys.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use muxtunnel_gateway_config::{Ssh, SshAlgorithms};
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::ssh_key::{Certificate, HashAlg, PrivateKey, PublicKey};
use russh::keys::{PublicKeyOrCertificate, decode_secret_key};
use rustls::pki_types::UnixTime;

use super::authorized::{self, Authorized, From};
use super::events::is_usable;
use super::known_hosts::{self, KnownHosts};
use super::lines::{lines, public_key};
use crate::base::files::{self, Unusable};
use crate::io::proof::{Grant, Proof, Shown, Standing};

/// Maximum length, in bytes, of a certificate's key id. The identity of a user contains the key id.
const KEY_ID_BYTES_MAX: usize = 128;

/// This side's keys, and the rules for the peer's keys.
pub(crate) struct Keys {
    /// The host keys of an exit, or the single key of an entry.
    pub(super) private: Vec<PrivateKey>,
    pub(super) certificate: Option<Certificate>,
    pub(super) user: String,
    authorized: Vec<Authorized>,
    authorities: Vec<PublicKey>,
    pub(super) known_hosts: Option<KnownHosts>,
    host_key_alias: Option<String>,
    pub(super) algorithms: SshAlgorithms,
}

/// Omits the private keys from the output.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("user", &self.user)
            .field("authorized", &self.authorized)
            .field("authorities", &self.authorities)
            .field("known_hosts", &self.known_hosts)
            .finish_non_exhaustive()
    }
}

/// A permitted login.
#[derive(Debug, Clone)]
pub(super) struct Login {
    pub(super) grant: Grant,
    pub(super) proof: Proof,
}

impl Keys {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Unusable`]: a file cannot be used.
    pub(crate) fn load(ssh: &Ssh) -> Result<Self, Unusable> {
        let private = ssh.host_keys.iter().chain(&ssh.key);
        let text = |path: &Option<std::path::PathBuf>| {
            let read = |path: &std::path::PathBuf| Ok((path.clone(), files::read_text(path)?));
            path.as_ref().map(read).transpose()
        };
        let certificate = match text(&ssh.certificate)? {
            Some((path, text)) => Some(
                Certificate::from_openssh(text.trim())
                    .map_err(|error| Unusable::new(&path, format!("not a certificate: {error}")))?,
            ),
            None => None,
        };
        Ok(Self {
            private: private
                .map(|path| private_key(path))
                .collect::<Result<_, _>>()?,
            certificate,
            user: ssh.user.clone().unwrap_or_default(),
            authorized: text(&ssh.authorized_keys)?
                .map(|(path, text)| authorized::parse(&path, &text))
                .unwrap_or_default(),
            authorities: match text(&ssh.trusted_user_ca_keys)? {
                Some((path, text)) => authorities(&path, &text)?,
                None => Vec::new(),
            },
            known_hosts: text(&ssh.known_hosts)?
                .map(|(path, text)| KnownHosts::parse(&path, &text)),
            host_key_alias: ssh.host_key_alias.clone(),
            algorithms: ssh.algorithms,
        })
    }

    /// The name of the dialled host in `known_hosts`.
    pub(super) fn host_name(&self, host: &str, port: Option<u16>) -> String {
        match &self.host_key_alias {
            Some(alias) => alias.to_ascii_lowercase(),
            None => known_hosts::name(host, port.unwrap_or_default()),
        }
    }

    /// Whether the host with this name may present a certificate.
    pub(super) fn knows_authorities(&self, name: &str) -> bool {
        let known_hosts = self.known_hosts.as_ref();
        known_hosts.is_some_and(|known_hosts| known_hosts.has_authorities(name))
    }

    /// Whether users may log in with certificates. This side learns the key of a user's certificate
    /// only at the login.
    pub(super) fn has_authorities(&self) -> bool {
        !self.authorities.is_empty()
    }

    /// Returns the permissions of a login by `key`.
    ///
    /// # Errors
    /// The reason why the login is refused.
    pub(super) fn login(&self, key: &PublicKey, source: Option<IpAddr>) -> Result<Login, String> {
        let now = UnixTime::now().as_secs();
        let print = key.fingerprint(HashAlg::Sha256);
        let mut problem = format!("the key {print} is not in authorizedKeys");
        for line in &self.authorized {
            if line.key != *key.key_data() {
                continue;
            }
            if !line.from.as_ref().is_none_or(|from| from.has(source)) {
                let address = source.map_or_else(|| "this address".to_owned(), |ip| ip.to_string());
                problem = format!(
                    "the key {print} may not log in from {address}: see its option `from` in authorizedKeys"
                );
            } else if line.not_after.is_some_and(|not_after| not_after < now) {
                problem = format!(
                    "the key {print} has expired: see its option `expiry-time` in authorizedKeys"
                );
            } else {
                let grant = line.grant.clone();
                let shown = Shown::Key {
                    key: PublicKey::from(key.key_data().clone()),
                    source,
                    grant: grant.clone(),
                };
                let proof = proof(format!("ssh:{print}"), line.not_after, shown);
                return Ok(Login { grant, proof });
            }
        }
        Err(problem)
    }

    /// Returns the permissions of a login by `certificate` as `user`.
    ///
    /// # Errors
    /// The reason why the login is refused.
    pub(super) fn login_by_certificate(
        &self,
        certificate: &Certificate,
        user: &str,
        source: Option<IpAddr>,
    ) -> Result<Login, String> {
        let id = certificate.key_id();
        let wrong = |problem: &str| Err(format!("the certificate {id:?} {problem}"));
        let print = certificate.signature_key().fingerprint(HashAlg::Sha256);
        let mut authorities = self.authorities.iter();
        if !authorities.any(|key| key.key_data() == certificate.signature_key()) {
            return wrong(&format!(
                "is signed by {print}, which is not in trustedUserCAKeys"
            ));
        }
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        if certificate.cert_type() != CertType::User {
            return wrong("is a host certificate");
        }
        // The library does not name the hash of an RSA signature that a certificate's key makes.
        if certificate.public_key().algorithm().is_rsa() {
            return wrong("is for an RSA key: only Ed25519, ECDSA and FIDO keys are supported");
        }
        if id.is_empty() || id.len() > KEY_ID_BYTES_MAX || !id.bytes().all(is_plain) {
            return wrong("needs a key id of 1 to 128 characters, without spaces and commas");
        }
        if !certificate.valid_principals().iter().any(|one| one == user) {
            return wrong(&format!("is not for the user {user:?}"));
        }
        let now = UnixTime::now().as_secs();
        if certificate.validate_at(now, [&print]).is_err() {
            return wrong(&format!(
                "is not valid now (valid from {} to {}, Unix time in seconds), or its signature is wrong",
                certificate.valid_after(),
                certificate.valid_before()
            ));
        }
        let (grant, from) = match granted_by(certificate) {
            Ok(granted) => granted,
            Err(problem) => return wrong(&format!("cannot be used: {problem}")),
        };
        if !from.as_ref().is_none_or(|from| from.has(source)) {
            let address = source.map_or_else(|| "this address".to_owned(), |ip| ip.to_string());
            return wrong(&format!(
                "may not log in from {address}: see its critical option source-address"
            ));
        }
        let shown = Shown::Certificate {
            certificate: Box::new(certificate.clone()),
            user: user.to_owned(),
            source,
            grant: grant.clone(),
        };
        let last = certificate.valid_before().saturating_sub(1);
        let not_after = (certificate.valid_before() != u64::MAX).then_some(last);
        let proof = proof(format!("ssh:{id}@{print}"), not_after, shown);
        Ok(Login { grant, proof })
    }

    /// Verifies what the host with this name has presented. Returns the proof of its identity.
    ///
    /// # Errors
    /// The reason why the host is refused.
    pub(super) fn host(&self, name: &str, shown: &PublicKeyOrCertificate) -> Result<Proof, String> {
        let Some(known_hosts) = &self.known_hosts else {
            return Err("knownHosts is not configured".to_owned());
        };
        known_hosts.check(name, shown)?;
        let key = shown.public_key();
        let certificate = shown.certificate().cloned().map(Box::new);
        let identity = format!("ssh:{}", key.fingerprint(HashAlg::Sha256));
        let not_after = certificate
            .as_ref()
            .map(|certificate| certificate.valid_before().saturating_sub(1));
        let shown = Shown::Host {
            name: name.to_owned(),
            key,
            certificate,
        };
        Ok(proof(identity, not_after, shown))
    }

    /// Whether the peer's proof would be accepted now.
    pub(crate) fn standing(&self, proof: &Proof) -> Standing {
        let Some(shown) = &proof.shown else {
            return Standing::Good;
        };
        if proof.has_expired(UnixTime::now().as_secs()) {
            return Standing::Expired;
        }
        let changed = || Err("the permissions of the peer's login have changed".to_owned());
        let judged = match &**shown {
            Shown::Key { key, source, grant } => match self.login(key, *source) {
                Ok(login) if login.grant != *grant => changed(),
                judged => judged.map(drop),
            },
            Shown::Certificate {
                certificate,
                user,
                source,
                grant,
            } => match self.login_by_certificate(certificate, user, *source) {
                Ok(login) if login.grant != *grant => changed(),
                judged => judged.map(drop),
            },
            Shown::Host {
                name,
                key,
                certificate,
            } => {
                let shown = match certificate {
                    Some(certificate) => PublicKeyOrCertificate::from((**certificate).clone()),
                    None => key.clone().into(),
                };
                self.host(name, &shown).map(drop)
            }
        };
        match judged {
            Ok(()) => Standing::Good,
            Err(problem) => Standing::Revoked(problem),
        }
    }
}

fn proof(identity: String, not_after: Option<u64>, shown: Shown) -> Proof {
    Proof {
        not_after,
        shown: Some(Arc::new(shown)),
        ..Proof::of(identity)
    }
}

/// Returns the permissions of a user certificate, and the addresses from which the certificate may
/// log in.
///
/// # Errors
/// The certificate has an unknown critical option.
fn granted_by(certificate: &Certificate) -> Result<(Grant, Option<From>), String> {
    let mut from = None;
    for (name, value) in certificate.critical_options().iter() {
        match name.as_str() {
            "source-address" => from = Some(From::parse(value)?),
            // The gateway never runs a command.
            "force-command" => {}
            _ => return Err(format!("its critical option {name} is not supported")),
        }
    }
    let grant = Grant {
        forwards: (certificate.extensions()).contains_key("permit-port-forwarding"),
        ..Grant::default()
    };
    Ok((grant, from))
}

fn private_key(path: &Path) -> Result<PrivateKey, Unusable> {
    let text = files::read_text(path)?;
    let key = decode_secret_key(&text, None).map_err(|error| {
        let problem = match error {
            russh::keys::Error::KeyIsEncrypted => {
                "the private key has a passphrase, which is not supported: remove it with `ssh-keygen -p`".to_owned()
            }
            _ => "not a private key: expected OpenSSH's format, or PKCS #8 in PEM".to_owned(),
        };
        Unusable::new(path, problem)
    })?;
    match is_usable(&key.algorithm()) {
        true => Ok(key),
        false => {
            let problem = format!(
                "{}: only Ed25519 and ECDSA keys are supported",
                key.algorithm()
            );
            Err(Unusable::new(path, problem))
        }
    }
}

fn authorities(path: &Path, text: &str) -> Result<Vec<PublicKey>, Unusable> {
    let keys = lines(text).map(|(number, line)| match public_key(line) {
        Ok(key) if is_usable(&key.algorithm()) => Ok(key),
        _ => {
            let problem = format!("line {number}: expected an Ed25519 or ECDSA key");
            Err(Unusable::new(path, problem))
        }
    });
    keys.collect()
}

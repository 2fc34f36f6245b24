//! Loads the credentials of carriers from files, reloads them, and proves them to the peer.
//!
//! The input is a transport to an unverified peer. The output is a transport whose peer has proved
//! its identity. Changed files and peer lists apply to new carriers; the proofs of existing
//! carriers are verified again.

use std::cell::Cell;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac::Key;
use muxtunnel_gateway_config::{Protocol, Reloadable, Role, Security};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch;

use crate::base::file_states::FileStates;
use crate::base::files::{FollowedFiles, Unusable};
use crate::base::patience::{Elapsed, Patience};
use crate::base::shown::Shown;
use crate::base::telemetry::Telemetry;
use crate::io::proof::{Proof, Standing};
use crate::io::ssh;
use crate::io::transport::{
    self, Chosen, Inside, KeyTls, Part, Presented, ServerTls, Side, Tls, To, Transport, Upgrade,
};

/// Pause before credentials that could not be used are loaded again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The message of the log.
const NOT_USABLE: &str = "New credentials not usable; the previous credentials remain in use";

/// Time limit for the peer's proof of identity on ordinary paths.
pub(crate) const PROOF_MAX: Duration = Duration::from_secs(5);

/// This side's proof of identity, and the rules for the peer's proof.
#[derive(Debug)]
pub(crate) enum Credentials {
    None,
    Keys(KeyTls),
    Tls(Tls),
    ServerTls(ServerTls),
    Ssh(Arc<ssh::Keys>),
}

impl Credentials {
    /// Reads the files that `security` specifies, for a gateway of `role`.
    ///
    /// # Errors
    /// [`Unusable`]: a file cannot be used.
    pub(crate) fn load(security: &Security, role: Role) -> std::result::Result<Self, Unusable> {
        Ok(match security {
            Security::None {} => Self::None,
            Security::PublicKeys(keys) => Self::Keys(KeyTls::load(keys, role)?),
            Security::Certificates(tls) => Self::Tls(Tls::load(tls, role)?),
            Security::ServerTls(tls) => Self::ServerTls(ServerTls::load(tls)?),
            Security::Ssh(ssh) => Self::Ssh(Arc::new(ssh::Keys::load(ssh)?)),
        })
    }

    /// The public keys, if the mode has them.
    pub(crate) const fn keys(&self) -> Option<&KeyTls> {
        match self {
            Self::Keys(keys) => Some(keys),
            _ => None,
        }
    }

    /// What the status shows of the credentials.
    pub(crate) fn shown(&self) -> Shown {
        match self {
            Self::Tls(tls) => Shown {
                certificate: Some(tls.certificate().clone()),
                peers: tls.peers(),
                ..Shown::default()
            },
            Self::Keys(keys) => Shown {
                public_keys: keys.own().map(ToString::to_string).collect(),
                peers: keys.peers(),
                ..Shown::default()
            },
            Self::None | Self::ServerTls(_) | Self::Ssh(_) => Shown::default(),
        }
    }

    /// Whether the passage of time alone makes `proof` invalid at `now`.
    pub(crate) fn standing_in_time(&self, proof: &Proof, now: UnixTime) -> Standing {
        match self {
            Self::Keys(keys) => keys.standing(proof, now),
            Self::Tls(tls) => tls.standing_in_time(proof, now),
            _ if proof.has_expired(now.as_secs()) => Standing::Expired,
            _ => Standing::Good,
        }
    }

    /// Whether `proof` would be accepted now. `side`: whether this side dialled or accepted the
    /// peer.
    pub(crate) fn standing(&self, proof: &Proof, side: Side) -> Standing {
        match self {
            Self::Keys(keys) => keys.standing(proof, UnixTime::now()),
            Self::Tls(tls) => tls.standing(proof, side),
            Self::Ssh(keys) => keys.standing(proof),
            // With `ServerTls`, the proof is the dialled name. No list of permitted names could
            // change.
            Self::None | Self::ServerTls(_) => Standing::Good,
        }
    }

    /// Protects `below` against eavesdropping and tampering, and verifies the peer. `upgrade`
    /// decides whether the carrier uses WebSocket. TLS with certificates runs below WebSocket. TLS
    /// with public keys runs above WebSocket, and TLS to a proxy below it. `protocol` is the protocol of the session, and
    /// `patience` the time limit.
    ///
    /// # Errors
    /// The peer did not prove its identity in time.
    pub(crate) async fn secure(
        &self,
        below: Box<dyn Transport>,
        part: Part<'_>,
        (protocol, upgrade): (Protocol, Upgrade<'_>),
        patience: &Patience,
    ) -> Result<Box<dyn Transport>> {
        let upgraded = async |below, web_socket| match web_socket {
            Some(web_socket) => {
                let below = match part {
                    Part::Dials(To {
                        proxy: Some(proxy), ..
                    }) => transport::to_proxy(below, proxy).await?,
                    Part::Dials(_) | Part::Accepts => below,
                };
                transport::upgrade(below, part, web_socket).await
            }
            None => Ok(below),
        };
        let inside = Inside::of(protocol, upgrade);
        let proof = async {
            match self {
                Self::None | Self::Keys(_) => {
                    let web_socket = upgrade.heard(&*below).await?;
                    let below = upgraded(below, web_socket).await?;
                    match self {
                        Self::Keys(keys) => {
                            let inside = Inside::of(protocol, Upgrade::Never);
                            keys.secure(below, part, inside).await
                        }
                        _ => Ok(below),
                    }
                }
                Self::Tls(tls) => {
                    let (made, agreed) = tls.secure(below, part, inside).await?;
                    upgraded(made, upgrade.agreed(agreed)).await
                }
                Self::ServerTls(tls) => {
                    let (made, agreed) = tls.secure(below, part, inside).await?;
                    upgraded(made, upgrade.agreed(agreed)).await
                }
                Self::Ssh(_) => Err(no_bytes()),
            }
        };
        let mut proof = pin!(proof);
        let proved = patience.within(proof.as_mut()).await;
        proved.unwrap_or_else(|Elapsed(time)| {
            let text = format!(
                "the peer did not prove its identity within {} s",
                time.as_secs()
            );
            Err(Error::new(ErrorKind::TimedOut, text))
        })
    }
}

/// Credentials for QUIC, whose library does the handshake.
impl Credentials {
    /// Returns the configuration for the side that dials with `protocol`, the name to request, and
    /// the public key that the configuration presents.
    ///
    /// # Errors
    /// The credentials are not certificates, or are for the accepting side.
    pub(crate) fn quic_client(
        &self,
        protocol: Protocol,
        to: To<'_>,
    ) -> Result<(ClientConfig, String, Option<Presented>)> {
        let inside = Inside::of(protocol, Upgrade::Never);
        let (config, name) = match self {
            Self::Keys(keys) => {
                let (config, name, presented) = keys.quic_client(inside, to)?;
                return Ok((config, name, Some(presented)));
            }
            Self::Tls(tls) => tls.quic_client(inside, to)?,
            Self::ServerTls(tls) => tls.quic_client(inside, to.host)?,
            Self::None | Self::Ssh(_) => return Err(no_certificates()),
        };
        Ok((config, name, None))
    }

    /// Returns the configuration of the accepting side for one connection, and the public key that the
    /// connection will present.
    ///
    /// # Errors
    /// The credentials are not certificates, or are for the dialling side.
    pub(crate) fn quic_server(&self, protocol: Protocol) -> Result<(Arc<ServerConfig>, Chosen)> {
        let inside = Inside::of(protocol, Upgrade::Never);
        let config = match self {
            Self::Keys(keys) => return Ok(keys.for_accept(inside)),
            Self::Tls(tls) => tls.quic_server(inside),
            Self::ServerTls(tls) => tls.quic_server(inside)?,
            Self::None | Self::Ssh(_) => return Err(no_certificates()),
        };
        Ok((config, Chosen::default()))
    }

    /// Returns the key of the stateless resets of a listener on `address`.
    ///
    /// # Errors
    /// The credentials are not certificates, or are for the dialling side.
    pub(crate) fn quic_reset_key(&self, address: SocketAddr) -> Result<Key> {
        let secret = match self {
            Self::Keys(keys) => keys.reset_secret(),
            Self::Tls(tls) => tls.reset_secret(),
            Self::ServerTls(tls) => tls.reset_secret()?,
            Self::None | Self::Ssh(_) => return Err(no_certificates()),
        };
        secret.key(address)
    }

    /// Returns the proof of a peer that presented `chain` in a handshake. `name` is the name that
    /// the dialling side requested. Returns `None` if no proof was requested.
    ///
    /// # Errors
    /// None of the peer's names is permitted.
    pub(crate) fn quic_proof(
        &self,
        part: Part<'_>,
        name: &str,
        chain: Option<Vec<CertificateDer<'static>>>,
    ) -> Result<Option<Proof>> {
        match (self, part) {
            (Self::Keys(keys), _) => keys.proof(part, chain.unwrap_or_default()).map(Some),
            (Self::Tls(tls), _) => tls.proof(part, chain.unwrap_or_default()).map(Some),
            (Self::ServerTls(_), Part::Dials(_)) => Ok(Some(Proof::of(name.to_owned()))),
            (Self::ServerTls(_), Part::Accepts) => Ok(None),
            (Self::None | Self::Ssh(_), _) => Err(no_certificates()),
        }
    }
}

/// Credentials for SSH, whose library does the login.
impl Credentials {
    /// Returns the keys of this side.
    ///
    /// # Errors
    /// The credentials are of another kind.
    pub(crate) fn ssh(&self) -> Result<Arc<ssh::Keys>> {
        match self {
            Self::Ssh(keys) => Ok(Arc::clone(keys)),
            Self::None | Self::Keys(_) | Self::Tls(_) | Self::ServerTls(_) => {
                let text = "SSH requires keys: set security mode SSH";
                Err(Error::new(ErrorKind::InvalidInput, text))
            }
        }
    }
}

fn no_bytes() -> Error {
    let text = "security mode SSH is only for protocol SSH";
    Error::new(ErrorKind::InvalidInput, text)
}

fn no_certificates() -> Error {
    let text = "QUIC requires keys or certificates: set security mode PublicKeys, Certificates or ServerTls";
    Error::new(ErrorKind::InvalidInput, text)
}

/// Sends new credentials whenever the files or the peers change; never returns. Files that cannot
/// be used change nothing. `files` are the files from which the current credentials were loaded.
pub(crate) async fn follow(
    role: Role,
    mut reloadable: watch::Receiver<Arc<Reloadable>>,
    mut files: FollowedFiles,
    credentials: &watch::Sender<Arc<Credentials>>,
    telemetry: &Telemetry,
) {
    let mut security = reloadable.borrow_and_update().security.clone();
    files.publish(&telemetry.files, &Ok::<_, Unusable>(()));
    let fails = Cell::new(false);
    let take = |security: &Security| {
        let taken = take_over((security, role), credentials, telemetry);
        fails.set(taken.is_err());
        taken
    };
    loop {
        let read_again = || take(&security);
        // Only the peers can differ here, since a change of the file names requires a restart.
        let differs = |in_force: &Arc<Reloadable>| in_force.security != security;
        let changed = tokio::select! {
            () = files.follow(&telemetry.files, read_again) => return,
            changed = reloadable.wait_for(differs) => {
                changed.map(|in_force| in_force.security.clone())
            }
            // The cause may be temporary, and not in the files themselves.
            () = tokio::time::sleep(RETRY_INTERVAL), if fails.get() => Ok(security.clone()),
        };
        let Ok(changed) = changed else {
            return std::future::pending().await;
        };
        security = changed;
        let taken = take(&security);
        files.publish(&telemetry.files, &taken);
    }
}

/// Works like [`follow`], for credentials that depend only on files.
pub(crate) async fn follow_files(
    (security, role): (&Security, Role),
    mut files: FollowedFiles,
    credentials: &watch::Sender<Arc<Credentials>>,
    states: &FileStates,
) {
    files.publish(states, &Ok::<_, Unusable>(()));
    let read_again = || {
        let taken = read_again((security, role), credentials).map(drop);
        taken.inspect_err(|error| tracing::error!(%error, "{NOT_USABLE}"))
    };
    files.follow(states, read_again).await;
}

fn take_over(
    security: (&Security, Role),
    credentials: &watch::Sender<Arc<Credentials>>,
    telemetry: &Telemetry,
) -> std::result::Result<(), Unusable> {
    let new = read_again(security, credentials);
    telemetry.set_shown(credentials.borrow().shown());
    let error = new.as_ref().err().map(ToString::to_string);
    if telemetry.set_credentials_error(error)
        && let Err(error) = &new
    {
        tracing::error!(%error, "{NOT_USABLE}");
    }
    new?;
    telemetry.in_force().credentials_taken(security.0);
    Ok(())
}

/// Loads the credentials again, and uses them if they are valid.
fn read_again(
    (security, role): (&Security, Role),
    credentials: &watch::Sender<Arc<Credentials>>,
) -> std::result::Result<Arc<Credentials>, Unusable> {
    let mut new = match Credentials::load(security, role) {
        Ok(new) => new,
        Err(error) => {
            let before = Arc::clone(&credentials.borrow());
            if let (Credentials::Keys(keys), Security::PublicKeys(new)) = (&*before, security)
                && let Some(reduced) = keys.reduced(new)
            {
                tracing::warn!(
                    "Keys that the new list does not have are removed, although the list is not usable"
                );
                credentials.send_replace(Arc::new(Credentials::Keys(reduced)));
            }
            return Err(error);
        }
    };
    if let (Credentials::Keys(new), Credentials::Keys(before)) = (&mut new, &**credentials.borrow())
    {
        new.remember(before);
    }
    tracing::info!("New credentials loaded; the gateway verifies the peers of its carriers again");
    let new = Arc::new(new);
    credentials.send_replace(Arc::clone(&new));
    Ok(new)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use muxtunnel_gateway_config::{Certificates, Peer, PublicKeys};
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// Whether `text` contains 8 consecutive bytes of `secret` in any usual encoding.
    fn shows(text: &str, secret: &[u8]) -> bool {
        let list = |write: fn(&u8) -> String, between| {
            move |part: &[u8]| part.iter().map(write).collect::<Vec<_>>().join(between)
        };
        let (decimal, hex) = (
            list(ToString::to_string, ", "),
            list(|byte| format!("{byte:02x}"), ""),
        );
        let text = text.replace(char::is_whitespace, "").to_lowercase();
        let has = |form: String| text.contains(&form.replace(' ', "").to_lowercase());
        // Base64 encodes each group of three bytes separately.
        secret
            .windows(8)
            .any(|part| has(decimal(part)) || has(hex(part)))
            || secret
                .chunks(9)
                .filter(|part| part.len() == 9)
                .any(|part| has(STANDARD.encode(part)))
    }

    #[test]
    fn secrets_are_recognised_in_what_is_shown() {
        let secret: Vec<u8> = (100..132).collect();
        assert!(shows(&format!("{secret:?}"), &secret) && shows(&format!("{secret:#?}"), &secret));
        assert!(shows(&format!("{secret:02x?}").replace(", ", ""), &secret));
        assert!(shows(&STANDARD.encode(&secret), &secret) && !shows("100, 101, 7", &secret));
    }

    #[test]
    fn neither_credentials_nor_their_configuration_nor_their_errors_show_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["a".to_owned()]).unwrap();
        let pem = certificate.self_signed(&key).unwrap().pem();
        let tls = Certificates {
            certificate: file("certificate", &pem),
            key: file("tls", &key.serialize_pem()),
            ca: file("ca", &pem),
            peers: vec![Peer::with_certificate_name("b".to_owned())],
        };
        let pair = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let ed25519 = pair.serialize_der();
        let keys = PublicKeys {
            private_key_files: vec![file("ed25519", &pair.serialize_pem())],
            peers: Vec::new(),
            peers_file: None,
            places: Vec::new(),
        };
        let broken_keys = PublicKeys {
            private_key_files: vec![file(
                "broken25519",
                &pair.serialize_pem().replacen("MC", "M", 1),
            )],
            ..keys.clone()
        };
        for security in [
            Security::PublicKeys(keys),
            Security::PublicKeys(broken_keys),
            Security::Certificates(tls),
        ] {
            let loaded = Credentials::load(&security, Role::Entry);
            let said = match &loaded {
                Ok(credentials) => format!("{security:?} {credentials:?} {credentials:#?}"),
                Err(error) => format!("{security:?} {error:?} {error}"),
            };
            // The private part of PKCS #8. The public part may be shown.
            for secret in [&key.serialize_der()[36..68], &ed25519[16..48]] {
                assert!(!shows(&said, secret), "{said}");
            }
        }
    }
}

//! The credentials of carriers: read from their files, followed, and proved to the other end.
//!
//! What comes in is a transport of which nothing is known; what goes out is one whose other end has proved
//! who it is. Changed files and peers are used for new carriers, and what the others have proved is verified again
//! by them.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_gateway_config::{Protocol, Reloadable, Security, status};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch;

use crate::base::files::{FollowedFiles, Unusable};
use crate::base::telemetry::Telemetry;
use crate::io::ssh;
use crate::io::transport::{
    self, Inside, Noise, Proof, ServerTls, Side, Standing, Tls, Transport, Upgrade,
};

/// How long the other end may take to prove who it is, as a rule.
pub(crate) const PROOF_MAX: Duration = Duration::from_secs(5);

/// What this end proves, and how the other's proof is judged.
#[derive(Debug)]
pub(crate) enum Credentials {
    None,
    Tls(Tls),
    ServerTls(ServerTls),
    Noise(Noise),
    Ssh(Arc<ssh::Keys>),
}

impl Credentials {
    /// Reads the files that `security` names.
    ///
    /// # Errors
    /// [`Unusable`] with the file.
    pub(crate) fn load(security: &Security) -> std::result::Result<Self, Unusable> {
        Ok(match security {
            Security::None {} => Self::None,
            Security::MutualTls(tls) => Self::Tls(Tls::load(tls)?),
            Security::ServerTls(tls) => Self::ServerTls(ServerTls::load(tls)?),
            Security::Noise(noise) => Self::Noise(Noise::load(noise)?),
            Security::Ssh(ssh) => Self::Ssh(Arc::new(ssh::Keys::load(ssh)?)),
        })
    }

    /// What this end shows, where both ends show a certificate.
    pub(crate) fn certificate(&self) -> Option<status::Certificate> {
        match self {
            Self::Tls(tls) => Some(tls.certificate().clone()),
            Self::None | Self::ServerTls(_) | Self::Noise(_) | Self::Ssh(_) => None,
        }
    }

    /// Whether what the other end has proved, which this `side` dialled or accepted, would be accepted now.
    pub(crate) fn standing(&self, proof: &Proof, side: Side) -> Standing {
        match self {
            Self::Tls(tls) => tls.standing(proof, side),
            Self::Noise(noise) => noise.standing(proof),
            Self::Ssh(keys) => keys.standing(proof),
            // The name that was dialled is no entry of a list that can change.
            Self::None | Self::ServerTls(_) => Standing::Good,
        }
    }

    /// `below`, as a transport that nobody else reads or changes, and whose other end is who it may be; as `upgrade` says a
    /// WebSocket connection: TLS is below that, Noise above, as both have it elsewhere. `protocol`: what is
    /// to run on it. `host`: what was dialled; nothing on the side that accepts. `within`: how long that may take.
    ///
    /// # Errors
    /// The other end did not prove that, or not in time.
    pub(crate) async fn secure(
        &self,
        below: Box<dyn Transport>,
        side: Side,
        host: &str,
        (protocol, upgrade): (Protocol, Upgrade<'_>),
        within: Duration,
    ) -> Result<Box<dyn Transport>> {
        let upgraded = async |below, web_socket| match web_socket {
            Some(web_socket) => transport::upgrade(below, side, web_socket).await,
            None => Ok(below),
        };
        let inside = Inside::of(protocol, upgrade);
        let proof = async {
            match self {
                Self::None | Self::Noise(_) => {
                    let web_socket = upgrade.heard(&*below).await?;
                    let below = upgraded(below, web_socket).await?;
                    match self {
                        Self::Noise(noise) => noise.secure(below, side).await,
                        _ => Ok(below),
                    }
                }
                Self::Tls(tls) => {
                    let (made, agreed) = tls.secure(below, side, inside).await?;
                    upgraded(made, upgrade.agreed(agreed)).await
                }
                Self::ServerTls(tls) => {
                    let (made, agreed) = tls.secure(below, side, host, inside).await?;
                    upgraded(made, upgrade.agreed(agreed)).await
                }
                Self::Ssh(_) => Err(no_bytes()),
            }
        };
        tokio::time::timeout(within, proof)
            .await
            .unwrap_or_else(|_| {
                let text = format!("no proof of who it is within {} s", within.as_secs());
                Err(Error::new(ErrorKind::TimedOut, text))
            })
    }
}

/// The same for QUIC, whose handshake is its library's.
impl Credentials {
    /// What the side that dials `host` needs for `protocol`, and whom it asks for.
    ///
    /// # Errors
    /// The credentials are no certificates, or those of the other side.
    pub(crate) fn quic_client(
        &self,
        protocol: Protocol,
        host: &str,
    ) -> Result<(ClientConfig, String)> {
        let inside = Inside::of(protocol, Upgrade::Never);
        match self {
            Self::Tls(tls) => Ok(tls.quic_client(inside)),
            Self::ServerTls(tls) => tls.quic_client(inside, host),
            Self::None | Self::Noise(_) | Self::Ssh(_) => Err(no_certificates()),
        }
    }

    /// What the side that accepts needs.
    ///
    /// # Errors
    /// The credentials are no certificates, or those of the other side.
    pub(crate) fn quic_server(&self, protocol: Protocol) -> Result<Arc<ServerConfig>> {
        let inside = Inside::of(protocol, Upgrade::Never);
        match self {
            Self::Tls(tls) => Ok(tls.quic_server(inside)),
            Self::ServerTls(tls) => tls.quic_server(inside),
            Self::None | Self::Noise(_) | Self::Ssh(_) => Err(no_certificates()),
        }
    }

    /// What an other end that has shown `chain` in a handshake has proved, on the side that dialled `name` or accepted it;
    /// `None`: it was not asked.
    ///
    /// # Errors
    /// None of its names is a peer's.
    pub(crate) fn quic_proof(
        &self,
        side: Side,
        name: &str,
        chain: Option<Vec<CertificateDer<'static>>>,
    ) -> Result<Option<Proof>> {
        match (self, side) {
            (Self::Tls(tls), _) => tls.proof(chain.unwrap_or_default()).map(Some),
            (Self::ServerTls(_), Side::Dials) => Ok(Some(Proof::of(name.to_owned()))),
            (Self::ServerTls(_), Side::Accepts) => Ok(None),
            (Self::None | Self::Noise(_) | Self::Ssh(_), _) => Err(no_certificates()),
        }
    }
}

/// The same for SSH, whose login is its library's.
impl Credentials {
    /// The keys of this side.
    ///
    /// # Errors
    /// The credentials are something else.
    pub(crate) fn ssh(&self) -> Result<Arc<ssh::Keys>> {
        match self {
            Self::Ssh(keys) => Ok(Arc::clone(keys)),
            Self::None | Self::Tls(_) | Self::ServerTls(_) | Self::Noise(_) => {
                let text = "SSH needs keys: security mode SSH";
                Err(Error::new(ErrorKind::InvalidInput, text))
            }
        }
    }
}

fn no_bytes() -> Error {
    let text = "security mode SSH is protocol SSH's alone";
    Error::new(ErrorKind::InvalidInput, text)
}

fn no_certificates() -> Error {
    let text = "QUIC needs certificates: security mode MutualTls or ServerTls";
    Error::new(ErrorKind::InvalidInput, text)
}

/// Sends what changed files and changed peers make of the credentials, for ever. Files that cannot be used change
/// nothing. `files`: those that they were read from, looked at before.
pub(crate) async fn follow(
    mut reloadable: watch::Receiver<Arc<Reloadable>>,
    mut files: FollowedFiles,
    credentials: &watch::Sender<Arc<Credentials>>,
    telemetry: &Telemetry,
) {
    let mut security = reloadable.borrow_and_update().security.clone();
    loop {
        let read_again = || take_over(&security, credentials, telemetry);
        // Which files there are needs a restart to change, who the peers are does not.
        let differs = |in_force: &Arc<Reloadable>| in_force.security != security;
        let changed = tokio::select! {
            () = files.follow(read_again) => return,
            changed = reloadable.wait_for(differs) => {
                changed.map(|in_force| in_force.security.clone())
            }
        };
        let Ok(changed) = changed else {
            return std::future::pending().await;
        };
        security = changed;
        take_over(&security, credentials, telemetry);
    }
}

/// The same of credentials that are read from files alone.
pub(crate) async fn follow_files(
    security: &Security,
    mut files: FollowedFiles,
    credentials: &watch::Sender<Arc<Credentials>>,
) {
    files
        .follow(|| drop(read_again(security, credentials)))
        .await;
}

fn take_over(
    security: &Security,
    credentials: &watch::Sender<Arc<Credentials>>,
    telemetry: &Telemetry,
) {
    if let Some(new) = read_again(security, credentials) {
        telemetry.set_certificate(new.certificate());
    }
}

/// Has the credentials be what the files say now, where they can be used.
fn read_again(
    security: &Security,
    credentials: &watch::Sender<Arc<Credentials>>,
) -> Option<Arc<Credentials>> {
    match Credentials::load(security) {
        Ok(new) => {
            tracing::info!("Credentials taken over; the proofs of carriers are verified by them");
            let new = Arc::new(new);
            credentials.send_replace(Arc::clone(&new));
            Some(new)
        }
        Err(error) => {
            tracing::error!(%error, "Credentials not taken over; the last good ones stay");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use muxtunnel_gateway_config::{MutualTls, Noise, PublicKey, encode_key};
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// Whether `text` has 8 bytes of `secret` in any of the forms that a byte is written in.
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
        // Base64 encodes each group of three bytes by itself.
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
        let (own, psk): ([u8; 32], [u8; 32]) = (rand::random(), rand::random());
        let noise = Noise {
            private_key: file("key", &encode_key(&own)),
            peers: vec![PublicKey([7; 32])],
            psk: Some(file("psk", &encode_key(&psk))),
        };
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["a".to_owned()]).unwrap();
        let pem = certificate.self_signed(&key).unwrap().pem();
        let tls = MutualTls {
            certificate: file("certificate", &pem),
            key: file("tls", &key.serialize_pem()),
            ca: file("ca", &pem),
            peers: vec!["b".to_owned()],
        };
        let broken = Noise {
            private_key: file("broken", &encode_key(&own)[1..]),
            ..noise.clone()
        };
        for security in [
            Security::Noise(noise),
            Security::MutualTls(tls),
            Security::Noise(broken),
        ] {
            let loaded = Credentials::load(&security);
            let said = match &loaded {
                Ok(credentials) => format!("{security:?} {credentials:?} {credentials:#?}"),
                Err(error) => format!("{security:?} {error:?} {error}"),
            };
            // Of PKCS #8, the private part: the public one may be shown.
            for secret in [&own[..], &psk, &key.serialize_der()[36..68]] {
                assert!(!shows(&said, secret), "{said}");
            }
        }
    }
}

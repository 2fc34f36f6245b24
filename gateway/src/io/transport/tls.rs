//! Mutual TLS 1.3 (RFC 8446): the configuration of a handshake, and its result.
//!
//! rustls does the handshake and the key schedule without a socket, and [`record`] seals the
//! records. Both sides verify the peer's chain, and one of the names in the peer's certificate must
//! be configured. Sessions are not resumed, so each carrier proves its identity.

mod handshake;
mod keys;
#[cfg(any(test, feature = "oracles"))]
pub(crate) mod oracle;
mod own_keys;
mod record;
mod reset_secret;
mod server;
mod verify;

use std::collections::BTreeMap;
use std::io::Result;
use std::path::Path;
use std::sync::Arc;

use muxtunnel_gateway_config::{Certificates, Peer, Protocol, Role, status};
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::UnbufferedServerConnection;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use sha2::{Digest, Sha256};
use time::format_description::well_known::Rfc3339;
use x509_parser::time::ASN1Time;
use zeroize::Zeroizing;

use super::sealed::Sealed;
use super::{Part, Side, To, Transport, Upgrade, invalid};
use crate::base::files::{Unusable, read};
use crate::io::proof::{Proof, Standing};
use verify::{PeerVerifier, Root};

pub(crate) use keys::KeyTls;
#[cfg(test)]
pub(crate) use keys::tests::{rotating, with_a_forger};
pub(crate) use own_keys::{Chosen, Presented};
pub(crate) use reset_secret::ResetSecret;
pub(crate) use server::{ServerTls, to_proxy};

/// The ALPN name of HTTP/1.1, with which WebSocket begins.
const WEB_SOCKET_ALPN: &[u8] = b"http/1.1";

/// The protocol inside TLS. Both sides name this protocol in the handshake (ALPN, RFC 7301). So a
/// server of another protocol refuses a carrier, and a listener for carriers refuses a browser. A
/// peer that sends no name is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inside {
    Carrier,
    WebSocket,
    /// Either a carrier or WebSocket, as the dialling side chooses.
    CarrierOrWebSocket,
    Http2,
    Quic,
    Http3,
    /// The messages between a leaf and its rendezvous.
    Rendezvous,
}

impl Inside {
    /// Returns the protocol inside TLS for carriers of `protocol`.
    pub(crate) const fn of(protocol: Protocol, upgrade: Upgrade<'_>) -> Self {
        match protocol {
            _ if matches!(upgrade, Upgrade::Always(_)) => Self::WebSocket,
            _ if matches!(upgrade, Upgrade::Asked(_)) => Self::CarrierOrWebSocket,
            // SSH never runs inside TLS.
            Protocol::Native | Protocol::Jmux | Protocol::Ssh => Self::Carrier,
            Protocol::Http2 | Protocol::Hbone => Self::Http2,
            Protocol::Quic => Self::Quic,
            Protocol::Http3 => Self::Http3,
        }
    }

    fn alpn(self) -> Vec<Vec<u8>> {
        let name: &[u8] = match self {
            Self::Carrier => b"muxtunnel/1",
            Self::WebSocket => WEB_SOCKET_ALPN,
            Self::CarrierOrWebSocket => {
                return [Self::Carrier.alpn(), Self::WebSocket.alpn()].concat();
            }
            Self::Http2 => b"h2",
            Self::Quic => b"muxtunnel-quic/1",
            Self::Http3 => b"h3",
            Self::Rendezvous => b"muxtunnel-rendezvous/1",
        };
        vec![name.to_vec()]
    }

    /// Returns the protocol inside TLS after a handshake in which both sides agreed on `alpn`.
    fn agreed(self, alpn: Option<&[u8]>) -> Self {
        match self {
            Self::CarrierOrWebSocket if alpn == Some(WEB_SOCKET_ALPN) => Self::WebSocket,
            Self::CarrierOrWebSocket => Self::Carrier,
            other => other,
        }
    }
}

/// The accepting side: one configuration for each protocol inside, and the secret of QUIC's resets.
#[derive(Debug)]
pub(crate) struct Servers {
    carrier: Arc<ServerConfig>,
    web_socket: Arc<ServerConfig>,
    carrier_or_web_socket: Arc<ServerConfig>,
    http2: Arc<ServerConfig>,
    quic: Arc<ServerConfig>,
    http3: Arc<ServerConfig>,
    rendezvous: Arc<ServerConfig>,
    reset_secret: ResetSecret,
}

impl Servers {
    fn new(config: ServerConfig, reset_secret: ResetSecret) -> Self {
        let with = |inside: Inside| {
            let mut config = config.clone();
            config.alpn_protocols = inside.alpn();
            Arc::new(config)
        };
        Self {
            carrier: with(Inside::Carrier),
            web_socket: with(Inside::WebSocket),
            carrier_or_web_socket: with(Inside::CarrierOrWebSocket),
            http2: with(Inside::Http2),
            quic: with(Inside::Quic),
            http3: with(Inside::Http3),
            rendezvous: with(Inside::Rendezvous),
            reset_secret,
        }
    }

    fn of(&self, inside: Inside) -> Arc<ServerConfig> {
        Arc::clone(match inside {
            Inside::Carrier => &self.carrier,
            Inside::WebSocket => &self.web_socket,
            Inside::CarrierOrWebSocket => &self.carrier_or_web_socket,
            Inside::Http2 => &self.http2,
            Inside::Quic => &self.quic,
            Inside::Http3 => &self.http3,
            Inside::Rendezvous => &self.rendezvous,
        })
    }
}

/// The configuration of both sides.
#[derive(Debug)]
pub(crate) struct Tls {
    /// At an entry, how it dials each exit, by the exit's name.
    exits: BTreeMap<String, Dials>,
    servers: Servers,
    /// Verifies certificates of any peer.
    verifier: Arc<PeerVerifier>,
    certificate: status::Certificate,
}

/// How an entry dials one exit.
#[derive(Debug)]
struct Dials {
    client: Arc<ClientConfig>,
    verifier: Arc<PeerVerifier>,
    /// The name that a client requests: the first name of the exit that is a valid server name.
    server_name: ServerName<'static>,
}

impl Dials {
    fn new(
        own: &Arc<SingleCertAndKey>,
        all: &PeerVerifier,
        exit: &Peer,
    ) -> std::result::Result<Self, rustls::Error> {
        let verifier = Arc::new(all.of_one(exit.clone()));
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<_>)
            .with_client_cert_resolver(Arc::clone(own) as Arc<_>);
        client.resumption = Resumption::disabled();
        client.enable_secret_extraction = true;
        let names = exit.certificate_names.iter().cloned();
        let unnamed = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
        Ok(Self {
            client: Arc::new(client),
            verifier,
            server_name: names
                .flat_map(ServerName::try_from)
                .next()
                .unwrap_or(unnamed),
        })
    }
}

impl Tls {
    /// Reads and checks the files of a gateway of `role`.
    ///
    /// # Errors
    /// [`Unusable`]: a file cannot be used.
    pub(crate) fn load(config: &Certificates, role: Role) -> std::result::Result<Self, Unusable> {
        let wrong = |path, problem: &dyn ToString| Unusable::new(path, problem.to_string());
        let roots = authorities(&config.ca)?;
        let provider = provider();
        let verifier = PeerVerifier::new(roots, &provider, config.peers.clone());
        let verifier = Arc::new(verifier.map_err(|error| wrong(&config.ca, &error))?);
        let mismatch = |error: rustls::Error| wrong(&config.key, &error);
        let (own, reset_secret) = own(&config.certificate, &config.key)?;
        let shown = own.cert.first().and_then(facts);
        let certificate = shown
            .ok_or_else(|| wrong(&config.certificate, &"its first certificate cannot be read"))?;
        let own = Arc::new(SingleCertAndKey::from(own));
        let mut exits = BTreeMap::new();
        for exit in config.peers.iter().filter(|_| role == Role::Entry) {
            let name = exit.name.clone().unwrap_or_default();
            let dials = Dials::new(&own, &verifier, exit).map_err(mismatch)?;
            exits.insert(name, dials);
        }
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(mismatch)?
            .with_client_cert_verifier(Arc::clone(&verifier) as Arc<_>)
            .with_cert_resolver(own);
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = true;
        Ok(Self {
            exits,
            servers: Servers::new(server, reset_secret),
            verifier,
            certificate,
        })
    }

    /// This side's own certificate.
    pub(crate) const fn certificate(&self) -> &status::Certificate {
        &self.certificate
    }

    /// Performs the handshake over `below`, and negotiates the protocol inside.
    ///
    /// # Errors
    /// The peer is not permitted, or does not use TLS.
    pub(crate) async fn secure(
        &self,
        below: Box<dyn Transport>,
        part: Part<'_>,
        inside: Inside,
    ) -> Result<(Box<dyn Transport>, Inside)> {
        let mut made = match part {
            Part::Dials(to) => {
                let exit = self.exit(to)?;
                let (config, name) = (Arc::clone(&exit.client), exit.server_name.clone());
                let connection =
                    UnbufferedClientConnection::new_with_alpn(config, name, inside.alpn());
                handshake::run(&*below, connection.map_err(invalid)?).await?
            }
            Part::Accepts => {
                let connection = UnbufferedServerConnection::new(self.servers.of(inside));
                handshake::run(&*below, connection.map_err(invalid)?).await?
            }
        };
        let proof = self.proof(part, std::mem::take(&mut made.chain))?;
        let agreed = inside.agreed(made.alpn.as_deref());
        Ok((sealed(below, made, Some(proof)), agreed))
    }

    /// Returns the proof of a peer that presented `chain`.
    ///
    /// # Errors
    /// The chain is empty, or no name of the certificate is permitted.
    pub(crate) fn proof(
        &self,
        part: Part<'_>,
        chain: Vec<CertificateDer<'static>>,
    ) -> Result<Proof> {
        let certificate = chain.first();
        let certificate = certificate.ok_or_else(|| invalid("the peer has no certificate"))?;
        let verifier = match part {
            Part::Dials(to) => &self.exit(to)?.verifier,
            Part::Accepts => &self.verifier,
        };
        let identity = verifier.identity(certificate, UnixTime::now());
        Ok(Proof {
            identity: identity.map_err(invalid)?,
            not_after: not_after(certificate),
            chain,
            presented: None,
            shown: None,
        })
    }

    fn exit(&self, to: To<'_>) -> Result<&Dials> {
        let exit = self.exits.get(to.exit);
        exit.ok_or_else(|| unlisted(to))
    }

    /// The accepted peers.
    pub(crate) fn peers(&self) -> Vec<status::Peer> {
        self.verifier.peers().iter().map(keys::shown).collect()
    }

    /// The QUIC configuration of the dialling side, and the name to request.
    ///
    /// # Errors
    /// The configuration does not list the exit.
    pub(crate) fn quic_client(&self, inside: Inside, to: To<'_>) -> Result<(ClientConfig, String)> {
        let exit = self.exit(to)?;
        Ok((
            for_quic(&exit.client, inside),
            exit.server_name.to_str().into(),
        ))
    }

    /// The QUIC configuration of the accepting side.
    pub(crate) fn quic_server(&self, inside: Inside) -> Arc<ServerConfig> {
        self.servers.of(inside)
    }

    /// The secret of QUIC's stateless resets.
    pub(crate) const fn reset_secret(&self) -> &ResetSecret {
        &self.servers.reset_secret
    }

    /// Whether `proof` would be accepted now. `side`: whether this side dialled or accepted the
    /// peer.
    pub(crate) fn standing(&self, proof: &Proof, side: Side) -> Standing {
        self.verifier_of(proof)
            .standing(proof, side, UnixTime::now())
    }

    /// Whether the passage of time alone makes `proof` invalid at `now`.
    pub(crate) fn standing_in_time(&self, proof: &Proof, now: UnixTime) -> Standing {
        match self.verifier.refused(&proof.identity, now) {
            Some(reason) => Standing::Revoked(reason),
            None if proof.has_expired(now.as_secs()) => Standing::Expired,
            None => Standing::Good,
        }
    }

    /// The verifier that accepted `proof`.
    fn verifier_of(&self, proof: &Proof) -> &PeerVerifier {
        let exit = self.exits.get(&proof.identity);
        exit.map_or(&self.verifier, |exit| &exit.verifier)
    }
}

/// The error for an exit that the configuration does not list.
fn unlisted(to: To<'_>) -> std::io::Error {
    invalid(format!("connect lists no exit with the name {:?}", to.exit))
}

/// A copy of `client` for QUIC.
fn for_quic(client: &ClientConfig, inside: Inside) -> ClientConfig {
    let mut client = client.clone();
    client.alpn_protocols = inside.alpn();
    client
}

/// The public facts of a certificate.
fn facts(certificate: &CertificateDer<'_>) -> Option<status::Certificate> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let date = |time: ASN1Time| time.to_datetime().format(&Rfc3339).ok();
    let fingerprint = Sha256::digest(certificate);
    Some(status::Certificate {
        fingerprint: fingerprint.iter().map(|b| format!("{b:02x}")).collect(),
        not_before: date(parsed.validity().not_before)?,
        not_after: date(parsed.validity().not_after)?,
    })
}

/// The last second at which a certificate is valid, in seconds since 1970.
fn not_after(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    u64::try_from(parsed.validity().not_after.timestamp()).ok()
}

/// Loads the certificates of this side and their private key. Returns them with a secret that is
/// derived from the private key. The bytes of the key are wiped after parsing.
///
/// # Errors
/// [`Unusable`]: a file contains no certificate or no key, or the key belongs to another
/// certificate.
fn own(
    certificate: &Path,
    key: &Path,
) -> std::result::Result<(CertifiedKey, ResetSecret), Unusable> {
    let certificates = certificates(certificate)?;
    let wrong = |error: rustls::Error| Unusable::new(key, error);
    let bytes = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|_| Unusable::new(key, "has no private key in PEM"))?;
    let bytes = Zeroizing::new(bytes);
    let signing = aws_lc_rs::sign::any_supported_type(&bytes).map_err(wrong)?;
    let own = CertifiedKey::new(certificates, signing);
    own.keys_match().map_err(wrong)?;
    let secret = ResetSecret::of(bytes.secret_der()).map_err(|error| Unusable::new(key, error))?;
    Ok((own, secret))
}

/// The result of a handshake over `below`.
fn sealed(
    below: Box<dyn Transport>,
    made: handshake::Made,
    proof: Option<Proof>,
) -> Box<dyn Transport> {
    Sealed::boxed(below, made.records, proof, &made.unread, made.plain)
}

/// The cipher suites of `aws-lc-rs`. AES is first, because processors are fastest with it.
fn provider() -> Arc<CryptoProvider> {
    use aws_lc_rs::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..aws_lc_rs::default_provider()
    })
}

/// The authorities in a file, as one store.
fn roots(path: &Path) -> std::result::Result<RootCertStore, Unusable> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let wrong = |error: rustls::Error| Unusable::new(path, error.to_string());
        roots.add(certificate).map_err(wrong)?;
    }
    Ok(roots)
}

/// The authorities in a file, each as a separate root.
fn authorities(path: &Path) -> std::result::Result<Vec<Root>, Unusable> {
    let root = |certificate: CertificateDer<'static>| {
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate)
            .map_err(|error| Unusable::new(path, error))?;
        let not_after = parsed.validity().not_after.timestamp();
        Ok(Root {
            not_after: u64::try_from(not_after).unwrap_or_default(),
            certificate,
        })
    };
    certificates(path)?.into_iter().map(root).collect()
}

fn certificates(path: &Path) -> std::result::Result<Vec<CertificateDer<'static>>, Unusable> {
    let bytes = read(path)?;
    let certificates: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&bytes).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(Unusable::new(
            path,
            "has no certificate in PEM, or a malformed certificate",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    /// Files with a certificate for `name`, the certificate's key, and the certificate's own
    /// authority.
    pub(super) fn issued(dir: &Path, name: &str) -> (PathBuf, PathBuf, PathBuf) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        let write = |name: &str, text: String| {
            std::fs::write(dir.join(name), text).unwrap();
            dir.join(name)
        };
        let key = write("key", key.serialize_pem());
        (write("certificate", certificate), key, write("ca", ca))
    }
}

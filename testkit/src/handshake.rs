//! TLS handshakes in memory. Certificates are verified as in gateways: first the chain, then the
//! name.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, CommonState, DigitallySignedStruct, Error,
    RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};
use webpki::EndEntityCert;

/// The files of one end of a handshake.
#[derive(Clone)]
pub struct Files {
    /// Certificate chain, PEM.
    pub certificate: String,
    /// Private key, PEM.
    pub key: String,
    /// The authorities of the other end, PEM.
    pub ca: String,
    /// The accepted peer: a URI in its certificate.
    pub peer: String,
}

impl Files {
    fn own(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let certificates = CertificateDer::pem_slice_iter(self.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        (certificates.map(Result::unwrap).collect(), key)
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.ca.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        Arc::new(roots)
    }

    /// Verifies the chains of clients.
    fn clients(&self) -> Arc<dyn ClientCertVerifier> {
        let provider = Arc::new(default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(self.roots(), provider);
        clients.build().unwrap()
    }

    /// Checks that the peer of `connection` has the accepted name.
    fn takes(&self, connection: &CommonState) -> Result<(), Error> {
        let chain = connection.peer_certificates().unwrap();
        let parsed = EndEntityCert::try_from(&chain[0]).unwrap();
        match parsed.valid_uri_names().any(|uri| uri == self.peer) {
            true => Ok(()),
            false => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
        }
    }
}

#[derive(Debug)]
struct At(i64);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        let since = Duration::from_secs(self.0.try_into().unwrap());
        Some(UnixTime::since_unix_epoch(since))
    }
}

/// Verifies the chains of servers without their names. Uses `clients` to verify signatures.
#[derive(Debug)]
struct Servers {
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let all = default_provider().signature_verification_algorithms.all;
        let server = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&server, &self.roots, intermediates, now, all)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verifier = &self.clients;
        verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verifier = &self.clients;
        verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.clients.supported_verify_schemes()
    }
}

/// Runs a handshake between an entry and an exit at `now`, in seconds since 1970.
///
/// # Errors
/// If one end rejects the other.
///
/// # Panics
/// If the files of one end are invalid.
pub fn shake_hands(entry: &Files, exit: &Files, now: i64) -> Result<(), Error> {
    let provider = Arc::new(default_provider());
    let servers = Servers {
        roots: entry.roots(),
        clients: entry.clients(),
    };
    let (certificates, key) = entry.own();
    let client = ClientConfig::builder_with_details(Arc::clone(&provider), Arc::new(At(now)))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(servers))
        .with_client_auth_cert(certificates, key)?;
    let (certificates, key) = exit.own();
    let server = ServerConfig::builder_with_details(provider, Arc::new(At(now)))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(exit.clients())
        .with_single_cert(certificates, key)?;
    let name = ServerName::try_from("exit").unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name)?;
    let mut server = ServerConnection::new(Arc::new(server))?;
    while client.is_handshaking() || server.is_handshaking() || client.wants_write() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut &bytes[..]).unwrap();
        client.process_new_packets()?;
    }
    entry.takes(&client)?;
    exit.takes(&server)
}

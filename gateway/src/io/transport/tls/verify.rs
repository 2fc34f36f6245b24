//! Verifies the peer of a TLS carrier: first its chain, then one of its names.
//!
//! The dialled host has no influence on the result: an address proves no identity.
//!
//! An authority is valid until it expires. WebPKI does not check the dates of a trust anchor, and a
//! party with the key of an expired anchor can issue certificates with any dates. So this verifier
//! skips expired anchors itself, and tries each of the other anchors separately.

use std::sync::Arc;

use muxtunnel_gateway_config::Peer;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use webpki::EndEntityCert;

use crate::io::key_refusal::KeyRefusal;
use crate::io::proof::{Proof, Standing};
use crate::io::transport::Side;

/// An authority.
#[derive(Debug)]
pub(super) struct Root {
    /// The authority's certificate.
    pub(super) certificate: CertificateDer<'static>,
    /// The last second at which the authority is valid, in seconds since 1970.
    pub(super) not_after: u64,
}

/// An authority as a trust anchor for certificates.
#[derive(Debug)]
struct Anchor {
    not_after: u64,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
}

/// Verifies certificates of servers and clients.
#[derive(Debug)]
pub(super) struct PeerVerifier {
    anchors: Arc<[Anchor]>,
    algorithms: WebPkiSupportedAlgorithms,
    peers: Vec<Peer>,
}

/// The certificate cannot serve as an authority.
#[derive(Debug, thiserror::Error)]
pub(super) enum RootError {
    #[error(transparent)]
    Unreadable(#[from] Error),
    #[error(transparent)]
    Unusable(#[from] VerifierBuilderError),
}

impl PeerVerifier {
    /// `peers` are the permitted peers; a certificate must contain a name of one of them.
    ///
    /// # Errors
    /// A certificate in `roots` is not usable.
    pub(super) fn new(
        roots: Vec<Root>,
        provider: &Arc<CryptoProvider>,
        peers: Vec<Peer>,
    ) -> Result<Self, RootError> {
        let mut anchors = Vec::new();
        for root in roots {
            let mut store = RootCertStore::empty();
            store.add(root.certificate)?;
            let store = Arc::new(store);
            let (roots, provider) = (Arc::clone(&store), Arc::clone(provider));
            anchors.push(Anchor {
                not_after: root.not_after,
                roots: store,
                clients: WebPkiClientVerifier::builder_with_provider(roots, provider).build()?,
            });
        }
        Ok(Self {
            anchors: anchors.into(),
            algorithms: provider.signature_verification_algorithms,
            peers,
        })
    }

    /// The verifier of a single peer, with the same authorities.
    pub(super) fn of_one(&self, peer: Peer) -> Self {
        Self {
            anchors: Arc::clone(&self.anchors),
            algorithms: self.algorithms,
            peers: vec![peer],
        }
    }

    /// The permitted peers.
    pub(super) fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// Returns the result of the first authority that is valid at `now` and accepts the
    /// certificate.
    fn by_anchors<T>(
        &self,
        now: UnixTime,
        judged_by: impl Fn(&Anchor) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let mut refused = unknown.clone();
        let good = self.anchors.iter();
        for anchor in good.filter(|anchor| now.as_secs() <= anchor.not_after) {
            match judged_by(anchor) {
                Ok(accepted) => return Ok(accepted),
                // The error of the certificate's own authority is more useful than "unknown issuer"
                // from another authority.
                Err(error) if refused == unknown => refused = error,
                Err(_) => {}
            }
        }
        Err(refused)
    }

    /// The identity of the peer with `certificate` at `now`. Of several names of peers in the
    /// certificate, the first in the list decides, or a later name that a pattern before covers. So a
    /// later peer takes over no certificate by another name in it.
    ///
    /// # Errors
    /// The certificate has no permitted name, or its peer is suspended or has expired.
    pub(super) fn identity(
        &self,
        certificate: &CertificateDer<'_>,
        now: UnixTime,
    ) -> Result<String, Error> {
        let parsed = EndEntityCert::try_from(certificate)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let names = self.peers.iter().flat_map(|peer| {
            let names = peer.certificate_names.iter();
            names.map(move |name| (peer, name))
        });
        let matching = names.filter(|(_, name)| has_name(&parsed, name));
        let (peer, name) = matching
            .reduce(|first, later| match is_below(later.1, first.1) {
                true => later,
                false => first,
            })
            .ok_or(Error::InvalidCertificate(CertificateError::NotValidForName))?;
        let identity = peer.identity(name);
        match peer.refused_at(now.as_secs()) {
            Some(reason) => Err(refused(format!("the peer {identity} {reason}"))),
            None => Ok(identity),
        }
    }

    /// Why the peer with `identity` is refused at `now`; `None`: it is not, or its name in the
    /// certificate has to decide.
    pub(super) fn refused(&self, identity: &str, now: UnixTime) -> Option<String> {
        let is_it = |peer: &&Peer| match (&peer.name, peer.certificate_names.first()) {
            (Some(name), _) | (None, Some(name)) => name == identity,
            (None, None) => false,
        };
        let Some(peer) = self.peers.iter().find(is_it) else {
            let lists = "security.peers or connect";
            return Some(format!("the peer {identity} is no longer in {lists}"));
        };
        let reason = peer.refused_at(now.as_secs());
        reason.map(|reason| format!("the peer {identity} {reason}"))
    }
}

/// The end of a pattern.
const ANY: &str = "/*";

/// The beginning of all names that a pattern covers.
fn stem(pattern: &str) -> Option<&str> {
    pattern.strip_suffix('*').filter(|_| pattern.ends_with(ANY))
}

/// Whether `pattern` is a pattern that covers `name` and more.
fn is_below(name: &str, pattern: &str) -> bool {
    stem(pattern).is_some_and(|stem| name != pattern && name.starts_with(stem))
}

/// Whether a certificate contains `name`. A pattern matches each longer URI.
fn has_name(certificate: &EndEntityCert<'_>, name: &str) -> bool {
    if let Some(stem) = stem(name) {
        let mut uris = certificate.valid_uri_names();
        return uris.any(|uri| uri.len() > stem.len() && uri.starts_with(stem));
    }
    match ServerName::try_from(name) {
        Ok(server) => certificate
            .verify_is_valid_for_subject_name(&server)
            .is_ok(),
        Err(_) => certificate.valid_uri_names().any(|uri| uri == name),
    }
}

fn refused(reason: String) -> Error {
    let cause = Arc::new(KeyRefusal::Here(reason));
    CertificateError::Other(OtherError(cause)).into()
}

impl PeerVerifier {
    /// Whether `proof` would be accepted at `now`. `side`: whether this side dialled or accepted
    /// the peer.
    pub(super) fn standing(&self, proof: &Proof, side: Side, now: UnixTime) -> Standing {
        if let Some(reason) = self.refused(&proof.identity, now) {
            return Standing::Revoked(reason);
        }
        let Some((own, between)) = proof.chain.split_first() else {
            return Standing::Good;
        };
        if proof.has_expired(now.as_secs()) {
            return Standing::Expired;
        }
        let verified = match side {
            Side::Accepts => self.verify_client_cert(own, between, now).err(),
            Side::Dials => self.verify_server(own, between, now).err(),
        };
        match verified {
            None if !self
                .identity(own, now)
                .is_ok_and(|found| found == proof.identity) =>
            {
                let identity = &proof.identity;
                Standing::Unverified(format!(
                    "the peer {identity} no longer has a name of this carrier's certificate"
                ))
            }
            None => Standing::Good,
            Some(error) => Standing::Unverified(error.to_string()),
        }
    }

    fn verify_server(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        self.by_anchors(now, |anchor| {
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &anchor.roots,
                intermediates,
                now,
                self.algorithms.all,
            )
        })?;
        self.identity(end_entity, now)?;
        Ok(())
    }
}

/// The methods that both verifier traits of rustls share. The provider's algorithms verify the
/// signatures.
macro_rules! verifies_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, certificate, signature, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify_server(end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    verifies_signatures!();
}

impl ClientCertVerifier for PeerVerifier {
    /// Returns an empty list. Names of authorities would reveal information to strangers, and
    /// gateways have only one certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.by_anchors(now, |anchor| {
            anchor
                .clients
                .verify_client_cert(end_entity, intermediates, now)
        })?;
        self.identity(end_entity, now)?;
        Ok(verified)
    }

    verifies_signatures!();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::crypto::aws_lc_rs;

    use super::*;

    /// When the first authority expires, in seconds since 1970.
    const END: i64 = 1_900_000_000;

    fn date(seconds: i64) -> time::OffsetDateTime {
        time::OffsetDateTime::from_unix_timestamp(seconds).unwrap()
    }

    /// An authority that expires at `end`, and a certificate signed by that authority with a later
    /// expiry.
    fn authority(end: i64) -> (Root, CertificateDer<'static>) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date(0);
        params.not_after = date(end);
        let key = KeyPair::generate().unwrap();
        let root = Root {
            certificate: params.self_signed(&key).unwrap().der().clone(),
            not_after: end.try_into().unwrap(),
        };
        let issuer = Issuer::new(params, key);
        let mut params = CertificateParams::new(["exit".to_owned()]).unwrap();
        params.not_before = date(0);
        params.not_after = date(END * 2);
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &issuer).unwrap().der().clone();
        (root, leaf)
    }

    fn peer(name: &str) -> Peer {
        Peer::with_certificate_name(name.to_owned())
    }

    #[test]
    fn the_first_name_decides_whose_a_certificate_is_and_its_peer_may_be_suspended() {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let uri = "spiffe://example.org/ns/site/entry";
        params.subject_alt_names = vec![
            rcgen::SanType::URI(uri.try_into().unwrap()),
            rcgen::SanType::DnsName("site.example.org".try_into().unwrap()),
        ];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let named = |name: &str, names: &[&str]| Peer {
            name: Some(name.to_owned()),
            certificate_names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Peer::default()
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let now = UnixTime::since_unix_epoch(Duration::from_secs(100));
        let identity = |peers: &[Peer]| {
            let verifier = PeerVerifier::new(Vec::new(), &provider, peers.to_vec()).unwrap();
            let found = verifier.identity(&certificate, now);
            found.map_err(|error| error.to_string())
        };
        let all = named("all", &["spiffe://example.org/*"]);
        let site = named("site", &["spiffe://example.org/ns/site/*"]);
        let by_name = named("name", &["other.example.org", "site.example.org"]);
        let exact = peer(uri);
        for (peers, expected) in [
            // A name that a pattern covers is more specific than the pattern.
            (&[all.clone(), site.clone()][..], "site"),
            (&[all.clone(), site.clone(), exact.clone()][..], uri),
            (&[exact.clone(), all.clone()][..], uri),
            // Another name in the certificate takes nothing from an earlier peer.
            (&[site.clone(), all.clone(), by_name.clone()][..], "site"),
            (&[by_name.clone(), exact.clone(), site.clone()][..], "name"),
            (&[exact, by_name][..], uri),
        ] {
            assert_eq!(identity(peers).as_deref(), Ok(expected));
        }
        for stranger in [
            "spiffe://example.org/ns/site/entry/*",
            "spiffe://example.org/ns/sit",
            "spiffe://example.net/*",
        ] {
            assert!(identity(&[peer(stranger)]).is_err(), "{stranger}");
        }
        let suspended = Peer {
            suspend: true,
            ..site
        };
        let refused = identity(&[all, suspended.clone()]).unwrap_err();
        assert!(refused.contains("the peer site is suspended"), "{refused}");
        let verifier = PeerVerifier::new(Vec::new(), &provider, vec![suspended]).unwrap();
        let reason = verifier.refused("site", now).unwrap();
        assert_eq!(reason, "the peer site is suspended");
        assert!(
            verifier
                .refused("gone", now)
                .unwrap()
                .contains("no longer in security.peers")
        );
    }

    #[test]
    fn an_authority_that_has_expired_vouches_for_nobody_however_long_its_certificates_live() {
        let ((first, of_first), (second, of_second)) = (authority(END), authority(END + 100));
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier =
            PeerVerifier::new(vec![first, second], &provider, vec![peer("exit")]).unwrap();
        let is_taken = |certificate: &CertificateDer<'_>, now: i64| {
            let now = UnixTime::since_unix_epoch(Duration::from_secs(now.try_into().unwrap()));
            let name = ServerName::try_from("exit").unwrap();
            let server = verifier.verify_server_cert(certificate, &[], &name, &[], now);
            let client = verifier.verify_client_cert(certificate, &[], now);
            assert_eq!(server.is_ok(), client.is_ok(), "{server:?} {client:?}");
            client.is_ok()
        };
        for (now, first, second) in [
            (END, true, true),
            (END + 1, false, true),
            (END + 100, false, true),
            (END + 101, false, false),
        ] {
            assert_eq!(is_taken(&of_first, now), first, "{now}");
            assert_eq!(is_taken(&of_second, now), second, "{now}");
        }
    }

    #[test]
    fn a_proof_stands_until_its_name_or_its_authority_is_taken_out_or_it_expires() {
        let ((first, of_first), (second, _)) = (authority(END * 3), authority(END * 3));
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = |root: &Root, peer: &str| {
            let root = Root {
                certificate: root.certificate.clone(),
                not_after: root.not_after,
            };
            PeerVerifier::new(vec![root], &provider, vec![self::peer(peer)]).unwrap()
        };
        let proof = Proof {
            identity: "exit".to_owned(),
            not_after: Some((END * 2).try_into().unwrap()),
            chain: vec![of_first],
            presented: None,
            shown: None,
        };
        let at =
            |now: i64| UnixTime::since_unix_epoch(Duration::from_secs(now.try_into().unwrap()));
        for side in [Side::Dials, Side::Accepts] {
            let is_revoked = |verifier: &PeerVerifier, now| {
                matches!(
                    verifier.standing(&proof, side, at(now)),
                    Standing::Revoked(_)
                )
            };
            let same = verifier(&first, "exit");
            assert_eq!(same.standing(&proof, side, at(END)), Standing::Good);
            assert_eq!(
                same.standing(&proof, side, at(END * 2 + 1)),
                Standing::Expired
            );
            assert!(is_revoked(&verifier(&first, "another"), END));
            assert!(is_revoked(&verifier(&first, "another"), END * 2 + 1));
            let other = verifier(&second, "exit").standing(&proof, side, at(END));
            assert!(matches!(other, Standing::Unverified(_)), "{other:?}");
        }
    }
}

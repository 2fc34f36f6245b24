//! The accepted keys, and the verification of a peer's key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muxtunnel_gateway_config::{GatewayKey, KEY_BYTES, Peer, PeerList, key_text};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, SignatureScheme,
};

use crate::io::key_refusal::KeyRefusal;
use crate::io::proof::{Proof, Standing};
use crate::io::transport::tls::own_keys::hint;

/// The bytes of a SubjectPublicKeyInfo before an Ed25519 key (RFC 8410).
const ED25519_SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// The Ed25519 key in a SubjectPublicKeyInfo.
pub(super) fn key_in(spki: &[u8]) -> Option<&[u8; KEY_BYTES]> {
    spki.strip_prefix(&ED25519_SPKI)?.try_into().ok()
}

/// The accepted keys of peers.
#[derive(Debug)]
pub(super) struct Pins {
    kind: PeerList,
    peers: Vec<Peer>,
    /// The index of the peer and of the key.
    by_key: BTreeMap<[u8; KEY_BYTES], (usize, usize)>,
    /// At a dialling side, the names of the accepted keys in its first message.
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Why a key is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The peer presents no Ed25519 key, or more than one key.
    NoKey,
    /// The list, which the text names, does not have the key.
    Unknown(String, String),
    /// The list has the key, but no longer permits the peer.
    Ended { identity: String, reason: String },
}

impl From<Refused> for KeyRefusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NoKey => {
                Self::Here("the peer does not present exactly one Ed25519 key".to_owned())
            }
            Refused::Unknown(keys, list) => Self::of_unknown(&keys, &list),
            Refused::Ended { identity, reason } => {
                Self::Here(format!("the peer {identity} {reason}"))
            }
        }
    }
}

impl Pins {
    pub(super) fn new(kind: PeerList, peers: Vec<Peer>, provider: &CryptoProvider) -> Self {
        let mut by_key = BTreeMap::new();
        for (index, peer) in peers.iter().enumerate() {
            for (at, key) in peer.public_keys.iter().enumerate() {
                by_key.insert(*key.bytes(), (index, at));
            }
        }
        let hinted = by_key.keys().map(hint);
        let hints = match kind.is_dialled() {
            true => hinted.collect(),
            false => Vec::new(),
        };
        Self {
            kind,
            peers,
            by_key,
            hints,
            algorithms: provider.signature_verification_algorithms,
        }
    }

    pub(super) const fn kind(&self) -> PeerList {
        self.kind
    }

    /// The list of the peers in the configuration.
    fn list(&self) -> String {
        let first = self.peers.first().and_then(|peer| peer.name.as_deref());
        let name = first.unwrap_or_default();
        match self.kind {
            PeerList::Exits => format!("publicKeys of the exit {name} in connect"),
            PeerList::Places => format!("publicKeys of the rendezvous {name}"),
            PeerList::Entries => "security.peers".to_owned(),
            PeerList::Members => "members".to_owned(),
        }
    }

    /// The peer with the key `bytes`, and the key.
    pub(super) fn listed(&self, bytes: &[u8; KEY_BYTES]) -> Option<(&Peer, GatewayKey)> {
        let &(index, at) = self.by_key.get(bytes)?;
        let peer = &self.peers[index];
        Some((peer, peer.public_keys[at]))
    }

    pub(super) fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// The identity of the peer that presents `spki`. `rest`: further entries of its message, of
    /// which RFC 7250 permits none.
    ///
    /// # Errors
    /// The key is not accepted at `now`.
    pub(super) fn identity(
        &self,
        spki: &[u8],
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<String, Refused> {
        let key = key_in(spki).filter(|_| rest.is_empty());
        let key = key.ok_or(Refused::NoKey)?;
        let Some(&(index, at)) = self.by_key.get(key) else {
            let texts = self.kind.roles().iter().map(|role| key_text(*role, key));
            let texts = texts.collect::<Vec<_>>().join(" or ");
            return Err(Refused::Unknown(texts, self.list()));
        };
        let peer = &self.peers[index];
        let identity = peer.identity(&peer.public_keys[at]);
        match peer.refused_at(now.as_secs()) {
            Some(reason) => Err(Refused::Ended { identity, reason }),
            None => Ok(identity),
        }
    }

    /// Whether `proof` would be accepted at `now`.
    pub(super) fn standing(&self, proof: &Proof, now: UnixTime) -> Standing {
        let spki = proof.chain.first().map_or(&[][..], AsRef::as_ref);
        match self.identity(spki, &[], now) {
            Ok(identity) if identity == proof.identity => Standing::Good,
            Err(Refused::Ended { identity, reason }) if identity == proof.identity => {
                Standing::Revoked(format!("the peer {identity} {reason}"))
            }
            _ => self.standing_of(proof, now),
        }
    }

    /// The standing of a peer whose key the list no longer has for this peer. Another key of the
    /// peer may be in the list.
    fn standing_of(&self, proof: &Proof, now: UnixTime) -> Standing {
        let identity = &proof.identity;
        let named = |peer: &&Peer| peer.name.as_ref() == Some(identity);
        let peer = self.peers.iter().find(named);
        match peer.map(|peer| peer.refused_at(now.as_secs())) {
            Some(Some(reason)) => Standing::Revoked(format!("the peer {identity} {reason}")),
            Some(None) => Standing::Unverified(format!(
                "the peer {identity} no longer has the key of this carrier in {}",
                self.list()
            )),
            None => Standing::Revoked(format!(
                "the peer {identity} is no longer in {}",
                self.list()
            )),
        }
    }

    /// The peers of `listed` with only those keys that are accepted now. Several exits may have one key,
    /// and a key of an entry counts once.
    pub(super) fn in_common(&self, listed: Vec<Peer>) -> Vec<Peer> {
        let (mut seen, are_dialled) = (BTreeSet::new(), self.kind.is_dialled());
        let common = listed.into_iter().map(|mut peer| {
            peer.public_keys.retain(|key| {
                self.by_key.contains_key(key.bytes()) && (are_dialled || seen.insert(*key.bytes()))
            });
            peer
        });
        common.filter(|peer| !peer.public_keys.is_empty()).collect()
    }

    /// Checks `signature` by the key of the peer, and then whether the list has the key. In this
    /// order, a peer without the private key of a listed key learns nothing about the list, and no
    /// report names a key that its owner did not prove.
    fn judge(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(spki.as_ref());
        let valid =
            verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)?;
        let judged = self.identity(spki, &[], UnixTime::now());
        judged.map(|_| valid).map_err(error_of)
    }
}

/// Checks that the peer presents one Ed25519 key.
fn is_one_key(spki: &[u8], rest: &[CertificateDer<'_>]) -> Result<(), Error> {
    match key_in(spki).filter(|_| rest.is_empty()) {
        Some(_) => Ok(()),
        None => Err(error_of(Refused::NoKey)),
    }
}

fn error_of(refused: Refused) -> Error {
    let cause = Arc::new(KeyRefusal::from(refused));
    CertificateError::Other(OtherError(cause)).into()
}

/// The methods that both verifier traits of rustls share.
macro_rules! verifies_raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.judge(message, key, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Pins {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        is_one_key(end_entity, intermediates)?;
        Ok(ServerCertVerified::assertion())
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        (!self.hints.is_empty()).then_some(&self.hints)
    }

    verifies_raw_keys!();
}

impl ClientCertVerifier for Pins {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        is_one_key(end_entity, intermediates)?;
        Ok(ClientCertVerified::assertion())
    }

    verifies_raw_keys!();
}

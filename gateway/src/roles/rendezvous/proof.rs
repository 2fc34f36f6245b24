//! Proofs that a side has the secret of a name. A proof is an HMAC-SHA-256 (RFC 2104) over all
//! bytes that both sides have sent.
//!
//! Both sides send a proof, each with its own label and over both nonces, so that a proof can be
//! neither replayed nor reflected. [`Secrets`](super::secrets::Secrets) determine which leaf may
//! use which name.

use hmac::{Hmac, KeyInit, Mac};
use muxtunnel_proto::rendezvous::{Purpose, Word, encode};
use sha2::Sha256;

use super::secrets::Secret;

const LEAF: &[u8] = b"muxtunnel rendezvous 1: leaf";
const RENDEZVOUS: &[u8] = b"muxtunnel rendezvous 1: rendezvous";

/// The exchange that precedes the proof.
pub(crate) struct Greeted {
    pub(crate) purpose: Purpose,
    pub(crate) nonce: [u8; 32],
    pub(crate) name: String,
    pub(crate) challenge: [u8; 32],
}

impl Greeted {
    fn mac(&self, secret: &Secret, label: &[u8]) -> Option<Hmac<Sha256>> {
        // HMAC accepts any key length.
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.bytes()).ok()?;
        mac.update(label);
        mac.update(&encode(&Word::Greeting {
            purpose: self.purpose,
            nonce: self.nonce,
            name: self.name.clone(),
        }));
        mac.update(&self.challenge);
        Some(mac)
    }

    /// Computes the leaf's proof.
    pub(super) fn proof(&self, secret: &Secret) -> [u8; 32] {
        let mac = self.mac(secret, LEAF);
        mac.map_or([0; 32], |mac| mac.finalize().into_bytes().into())
    }

    /// Whether `proof` is the leaf's proof.
    pub(super) fn is_proved_by(&self, secret: &Secret, proof: &[u8; 32]) -> bool {
        let mac = self.mac(secret, LEAF);
        mac.is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }

    /// Computes the rendezvous's proof.
    pub(super) fn acceptance(&self, secret: &Secret) -> [u8; 32] {
        let mac = self.mac(secret, RENDEZVOUS);
        mac.map_or([0; 32], |mac| mac.finalize().into_bytes().into())
    }

    /// Whether `proof` is the rendezvous's proof.
    pub(super) fn is_accepted_by(&self, secret: &Secret, proof: &[u8; 32]) -> bool {
        let mac = self.mac(secret, RENDEZVOUS);
        mac.is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::super::secrets::Secrets;
    use super::*;

    fn greeted() -> Greeted {
        Greeted {
            purpose: Purpose::Visit,
            nonce: [1; 32],
            name: "db".to_owned(),
            challenge: [2; 32],
        }
    }

    fn knows(secrets: &Secrets, greeted: &Greeted, proof: &[u8; 32]) -> bool {
        greeted.is_proved_by(secrets.of(&greeted.name, greeted.purpose), proof)
    }

    #[test]
    fn a_proof_is_of_one_secret_and_of_all_that_was_said() {
        let secrets =
            Secrets::parse("# all\n\ndb  exit-exit-exit-exit 0123456789abcdef\nweb fedcba9876543210 edcba9876543210f\n")
                .unwrap();
        let secret = Secret::new("0123456789abcdef").unwrap();
        let proof = greeted().proof(&secret);
        assert!(knows(&secrets, &greeted(), &proof));
        assert!(greeted().is_accepted_by(
            &secret,
            &greeted().acceptance(secrets.of("db", Purpose::Visit))
        ));
        assert!(
            !greeted().is_accepted_by(&secret, &proof),
            "the leaf's own proof, reflected"
        );
        // A leaf proves each purpose with the secret of the role that has this purpose.
        let exit = Secret::new("exit-exit-exit-exit").unwrap();
        for (purpose, is_exits) in [
            (Purpose::Register, true),
            (Purpose::Attend([0; 16]), true),
            (Purpose::Visit, false),
        ] {
            let greeted = Greeted {
                purpose,
                ..greeted()
            };
            assert_eq!(knows(&secrets, &greeted, &greeted.proof(&exit)), is_exits);
            assert_eq!(
                knows(&secrets, &greeted, &greeted.proof(&secret)),
                !is_exits
            );
        }
        let other = Secret::new("0123456789abcdeg").unwrap();
        assert!(!knows(&secrets, &greeted(), &greeted().proof(&other)));
        for said in [
            Greeted {
                purpose: Purpose::Register,
                ..greeted()
            },
            Greeted {
                purpose: Purpose::Attend([0; 16]),
                ..greeted()
            },
            Greeted {
                nonce: [3; 32],
                ..greeted()
            },
            Greeted {
                name: "web".to_owned(),
                ..greeted()
            },
            Greeted {
                name: "none".to_owned(),
                ..greeted()
            },
            Greeted {
                challenge: [1; 32],
                ..greeted()
            },
        ] {
            assert!(!knows(&secrets, &said, &proof));
        }
    }
}

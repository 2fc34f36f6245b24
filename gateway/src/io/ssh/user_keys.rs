//! The keys with which users may log in. Hosts and authorities have Ed25519 and ECDSA keys only
//! ([`is_usable`]).
//!
//! Only signatures of RSA and FIDO keys are verified here, and none is made.

use std::ops::RangeInclusive;

use russh::keys::ssh_key::Algorithm;
use russh::keys::ssh_key::public::{KeyData, RsaPublicKey};

use super::events::is_usable;

/// Length of the modulus of an RSA key, in bits. NIST SP 800-57, part 1, table 2, equates 3,072 bits
/// with a security strength of 128 bits. The library verifies no longer keys than 4,096 bits.
const RSA_BITS: RangeInclusive<usize> = 3072..=4096;

/// Checks that users may log in with this key.
///
/// # Errors
/// The reason why the key is refused.
pub(super) fn check_key(key: &KeyData) -> Result<(), String> {
    match key {
        KeyData::Rsa(rsa) => {
            let bits = bits_of(rsa);
            match RSA_BITS.contains(&bits) {
                true => Ok(()),
                false => Err(format!(
                    "the RSA key has {bits} bits: only keys of {} to {} bits are supported",
                    RSA_BITS.start(),
                    RSA_BITS.end()
                )),
            }
        }
        KeyData::SkEd25519(_) | KeyData::SkEcdsaSha2NistP256(_) => Ok(()),
        other if is_usable(&other.algorithm()) => Ok(()),
        other => Err(format!(
            "{}: only Ed25519, ECDSA, RSA and FIDO keys are supported",
            other.algorithm()
        )),
    }
}

/// Checks that a login may be signed with this algorithm. `ssh-rsa` signs with SHA-1 (RFC 8332).
///
/// # Errors
/// The reason why the signature is refused.
pub(super) fn check_signature(algorithm: &Algorithm) -> Result<(), String> {
    match algorithm {
        Algorithm::Rsa { hash: Some(_) }
        | Algorithm::SkEd25519
        | Algorithm::SkEcdsaSha2NistP256 => Ok(()),
        Algorithm::Rsa { hash: None } => Err(
            "ssh-rsa signs with SHA-1: use a client that supports rsa-sha2-256 or rsa-sha2-512"
                .to_owned(),
        ),
        other if is_usable(other) => Ok(()),
        other => Err(format!(
            "{other}: only Ed25519, ECDSA, RSA and FIDO keys are supported"
        )),
    }
}

fn bits_of(rsa: &RsaPublicKey) -> usize {
    let bytes = rsa.n().as_positive_bytes().unwrap_or_default();
    let leading = bytes.first().map_or(0, |first| first.leading_zeros());
    bytes.len() * 8 - leading as usize
}

#[cfg(test)]
mod tests {
    use russh::keys::ssh_key::{HashAlg, Mpint};

    use super::*;

    fn rsa(bits: usize) -> KeyData {
        let mut modulus = vec![0xff; bits.div_ceil(8)];
        modulus[0] = 0xff >> (modulus.len() * 8 - bits);
        let number = |bytes: &[u8]| Mpint::from_positive_bytes(bytes);
        let key = RsaPublicKey::new(number(&[1, 0, 1]), number(&modulus));
        KeyData::Rsa(key.unwrap())
    }

    #[test]
    fn rsa_keys_have_3072_to_4096_bits() {
        for (bits, is_good) in [
            (1024, false),
            (2048, false),
            (3071, false),
            (3072, true),
            (4096, true),
            (4097, false),
        ] {
            let checked = check_key(&rsa(bits));
            assert_eq!(checked.is_ok(), is_good, "{bits}: {checked:?}");
        }
    }

    #[test]
    fn no_login_is_signed_with_sha_1() {
        let with = |hash| check_signature(&Algorithm::Rsa { hash });
        assert!(with(None).unwrap_err().contains("SHA-1"));
        assert!(with(Some(HashAlg::Sha256)).is_ok() && with(Some(HashAlg::Sha512)).is_ok());
        assert!(check_signature(&Algorithm::Dsa).is_err());
    }
}

//! The secret of QUIC's stateless resets.
//!
//! An exit that restarts does not know the connections of its previous process. The exit answers
//! packets of such a connection with a stateless reset (RFC 9000, section 10.3). The entry then
//! dials again at once, and does not wait for the idle timeout. An entry accepts only the reset
//! token that the previous process assigned. Both processes have the private key of the
//! certificate, so HKDF (RFC 5869) derives the key of the tokens from this private key.

use std::fmt::{self, Debug};
use std::io::{Error, Result};
use std::net::SocketAddr;

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};
use aws_lc_rs::hmac::{HMAC_SHA256, Key};

/// Separates this secret from other secrets that may be derived from the private key.
const LABEL: &[u8] = b"muxtunnel quic stateless reset";

/// A secret that is the same in each process with the same private key.
#[derive(Clone)]
pub(crate) struct ResetSecret(Prk);

impl ResetSecret {
    /// Derives the secret from `private_key` in DER.
    ///
    /// # Errors
    /// The cryptographic library fails.
    pub(super) fn of(private_key: &[u8]) -> std::result::Result<Self, Unspecified> {
        let extracted = Salt::new(HKDF_SHA256, &[]).extract(private_key);
        let secret = Prk::from(extracted.expand(&[LABEL], HKDF_SHA256)?);
        Ok(Self(secret))
    }

    /// Returns the key for a listener on `address` of this host. Each listener has a key of its
    /// own: otherwise anyone could send the connection ids of one listener to another listener, and
    /// learn the tokens of these ids from the resets (RFC 9000, section 21.11).
    ///
    /// # Errors
    /// The cryptographic library fails.
    pub(crate) fn key(&self, address: SocketAddr) -> Result<Key> {
        let system = rustix::system::uname();
        self.key_of(system.nodename().to_bytes(), address)
    }

    fn key_of(&self, host: &[u8], address: SocketAddr) -> Result<Key> {
        let address = address.to_string();
        let place = [host, b"\n", address.as_bytes()];
        let key = self.0.expand(&place, HMAC_SHA256).map(Key::from);
        key.map_err(|Unspecified| Error::other("cannot derive the key of stateless resets"))
    }
}

impl Debug for ResetSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ResetSecret")
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac::sign;

    use super::*;

    #[test]
    fn the_key_is_the_same_for_the_same_private_key_host_and_address_alone() {
        let token = |key: &[u8], host: &[u8], address: &str| {
            let key = ResetSecret::of(key)
                .unwrap()
                .key_of(host, address.parse().unwrap());
            sign(&key.unwrap(), b"connection id").as_ref().to_vec()
        };
        let of = token(b"key", b"exit-0", "[::]:64000");
        assert_eq!(of, token(b"key", b"exit-0", "[::]:64000"));
        for other in [
            token(b"other", b"exit-0", "[::]:64000"),
            token(b"key", b"exit-1", "[::]:64000"),
            token(b"key", b"exit-0", "[::]:64001"),
        ] {
            assert_ne!(of, other);
        }
    }
}

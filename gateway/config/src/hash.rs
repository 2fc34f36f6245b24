//! The hash that identifies a version of a configuration.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// First 16 hexadecimal digits of the SHA-256 of the configuration file's bytes.
///
/// The operator hashes the file that it rendered. A gateway hashes the file in force. Equal hashes
/// mean that the rendered configuration is in force.
#[must_use]
pub fn config_hash(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text.as_bytes())[..8])
}

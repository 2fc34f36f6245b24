//! Authenticates the operator to a runner without a Secret, because the operator may not read
//! Secrets.
//!
//! The operator has a random key for the lifetime of its process. A benchmark's bearer token is
//! derived from the key and the benchmark's UID. A ConfigMap that the runner's pod mounts contains
//! the token's hash, from which the token cannot be computed. A restarted operator has another key
//! and publishes another hash. The runner accepts the new token when the kubelet has updated the
//! pod, within 90 seconds. Until then the runner continues to measure. The agents accept another
//! token, which only the runner and the agents know.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// The key of this process.
pub struct OperatorKey(pub(super) [u8; 32]);

impl OperatorKey {
    /// A key from a cryptographic generator.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The token for the runner of the benchmark with this UID. The token reveals nothing about the
    /// tokens of other benchmarks.
    pub fn token(&self, benchmark_uid: &str) -> String {
        let hash = Sha256::new_with_prefix(self.0).chain_update(benchmark_uid);
        HEXLOWER.encode(&hash.finalize())
    }
}

/// The published form of the token: its SHA-256, in hexadecimal digits.
pub fn published(token: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(token))
}

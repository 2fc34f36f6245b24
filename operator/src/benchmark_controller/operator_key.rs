//! How a runner knows the operator, although the operator may not read Secrets.
//!
//! The operator has a key that lives as long as its process. A benchmark's bearer token follows from it
//! and the benchmark's UID; the token's hash, which helps nobody to guess the token, goes into a
//! ConfigMap that the runner's pod mounts. An operator that was restarted has another key, publishes
//! another hash, and is known again when the kubelet has brought that to the pod, within 90 seconds;
//! the runner goes on measuring meanwhile. What agents want to see, they share with the runner alone.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// The key of this process.
pub struct OperatorKey([u8; 32]);

impl From<[u8; 32]> for OperatorKey {
    fn from(key: [u8; 32]) -> Self {
        Self(key)
    }
}

impl OperatorKey {
    /// A key that nobody can guess.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The token that the runner of the benchmark with that UID is shown. It says nothing about the
    /// tokens of other benchmarks.
    #[must_use]
    pub fn token(&self, benchmark_uid: &str) -> String {
        let hash = Sha256::new_with_prefix(self.0).chain_update(benchmark_uid);
        HEXLOWER.encode(&hash.finalize())
    }
}

/// What the runner knows of the token: its SHA-256, in hexadecimal.
#[must_use]
pub fn published(token: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(token))
}

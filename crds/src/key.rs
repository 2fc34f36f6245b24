//! The key pairs of gateways.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

/// The key pairs of the gateways of an object.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KeySource {
    /// Generations of the key that the operator creates: each number has its own key pair. To
    /// replace a key without an interruption, add the next generation, give the new public key to
    /// the other side, and then remove the old generation. Default: generation 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 2), inner(range(min = 1, max = 1_000_000)), extend("x-kubernetes-list-type" = "set"))]
    pub generations: Vec<i32>,
}

impl KeySource {
    /// The generations of `source`, in ascending order. Without any, generation 1.
    #[must_use]
    pub fn generations(source: Option<&Self>) -> Vec<i32> {
        let mut generations = source.map(|source| source.generations.clone());
        let generations = generations.get_or_insert_default();
        if generations.is_empty() {
            generations.push(1);
        }
        generations.sort_unstable();
        std::mem::take(generations)
    }
}

/// A key pair of an object's gateways.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KeyStatus {
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    pub secret_name: String,
    /// The generation of the key.
    pub generation: i32,
    /// The public key. Absent: the Secret existed before, and no gateway has reported its key.
    #[schemars(length(max = 63))]
    pub public_key: Option<String>,
    /// How the operator knows the public key.
    pub origin: KeyOrigin,
}

/// How the operator knows a public key.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrigin {
    /// The operator created the key pair.
    Created,
    /// The Secret existed, for example after a restore. The gateways reported the public key.
    Found,
}

//! The key pairs of gateways.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::{SecretRef, rules};

/// The key pairs of the gateways of an object: generations that the operator creates, or own Secrets.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::one_source_of_keys(),
    validation = rules::key_secrets_differ(),
)]
pub struct KeySource {
    /// Generations of the key that the operator creates: each number has its own key pair. To
    /// replace a key without an interruption, add the next generation, give the new public key to
    /// the other side, and then remove the old generation. Not permitted with `secretRefs`. Default
    /// without `secretRefs`: generation 1.
    #[schemars(length(min = 1, max = 2), inner(range(min = 1, max = 1_000_000)), extend("x-kubernetes-list-type" = "set"))]
    pub generations: Vec<i32>,
    /// Own Secrets with the data key `key`, which has a private key (Ed25519, PKCS #8 in PEM), the
    /// newest last. `muxgate keygen` creates such a key. The operator neither creates nor reads these
    /// Secrets, and the gateways report their public keys. Changed content reaches running gateways
    /// without a restart.
    #[schemars(length(min = 1, max = 2), extend("x-kubernetes-list-type" = "atomic"))]
    pub secret_refs: Vec<SecretRef>,
}

impl KeySource {
    /// The generations of `source`, in ascending order. Without any, generation 1.
    #[must_use]
    pub fn generations(source: Option<&Self>) -> Vec<i32> {
        let mut generations = source.map_or(Vec::new(), |source| source.generations.clone());
        if generations.is_empty() {
            generations.push(1);
        }
        generations.sort_unstable();
        generations
    }

    /// The own Secrets of `source`, the newest last.
    #[must_use]
    pub fn secrets(source: Option<&Self>) -> &[SecretRef] {
        source.map_or(&[], |source| &source.secret_refs)
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
    /// The generation of the key. Absent: an own Secret.
    pub generation: Option<i32>,
    /// The public key. Absent: the operator did not create the key, and no gateway has reported it.
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
    /// An own Secret of `key.secretRefs`. The gateways report the public key.
    Provided,
}

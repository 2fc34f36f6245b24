//! Key pairs of gateways: their creation, and the Secrets that store them. Pure, apart from random
//! keys.

use std::collections::BTreeMap;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use muxtunnel_contract::secrets::{
    ENTRY_KEY, ENTRY_NAME, ENTRY_PUBLIC_KEY, EXIT_KEY, EXIT_NAMES, EXIT_PUBLIC_KEY, KEY_TYPE,
    PRIVATE_KEY, PUBLIC_KEY,
};
use muxtunnel_gateway_config::{GatewayKey, Role};
use zeroize::Zeroizing;

use crate::labels;

/// The cryptographic library could not create a key.
#[derive(Debug, thiserror::Error)]
#[error("the cryptographic library cannot create a key")]
pub struct KeyPairError;

/// A new key pair (Ed25519).
pub struct KeyPair {
    /// PKCS #8 in PEM.
    private: Zeroizing<String>,
    /// The public key.
    pub public: GatewayKey,
}

impl KeyPair {
    /// A random key pair.
    ///
    /// # Errors
    /// [`KeyPairError`].
    pub fn random(role: Role) -> Result<Self, KeyPairError> {
        let key = Ed25519KeyPair::generate().map_err(|_| KeyPairError)?;
        let document = key.to_pkcs8v1().map_err(|_| KeyPairError)?;
        let text = Zeroizing::new(STANDARD.encode(document.as_ref()));
        let private = Zeroizing::new(format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            *text
        ));
        let bytes = key.public_key().as_ref().try_into();
        let public = GatewayKey::new(role, bytes.map_err(|_| KeyPairError)?);
        Ok(Self {
            private,
            public: public.map_err(|_| KeyPairError)?,
        })
    }

    /// The Secret `name` with this key pair, for an end whose other end belongs to another object.
    /// Without an owner, the identity survives a deletion of the object.
    #[must_use]
    pub fn secret(&self, place: Place<'_>) -> Secret {
        let data = [
            (PRIVATE_KEY, self.private.as_bytes().to_vec()),
            (PUBLIC_KEY, self.public.to_string().into_bytes()),
        ];
        secret(place, None, data)
    }
}

/// The Secret with the key pairs of both ends of a tunnel, which belongs to the tunnel.
#[must_use]
pub fn pair_secret(
    place: Place<'_>,
    owner: &OwnerReference,
    (entry, exit): (&KeyPair, &KeyPair),
) -> Secret {
    let lines = |key: &KeyPair, names: &[&str]| {
        let lines = names.iter().map(|name| format!("{} {name}\n", key.public));
        lines.collect::<String>().into_bytes()
    };
    let data = [
        (ENTRY_KEY, entry.private.as_bytes().to_vec()),
        (ENTRY_PUBLIC_KEY, lines(entry, &[ENTRY_NAME])),
        (EXIT_KEY, exit.private.as_bytes().to_vec()),
        (EXIT_PUBLIC_KEY, lines(exit, &EXIT_NAMES)),
    ];
    secret(place, Some(owner.clone()), data)
}

/// The name of a Secret with keys, and its labels.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Namespace of the object whose gateways use the keys.
    pub namespace: &'a str,
    /// Kind and name of the object.
    pub owner: (&'a str, &'a str),
    /// The component in the labels.
    pub component: &'a str,
    /// Name of the Secret.
    pub name: &'a str,
}

fn secret<const N: usize>(
    place: Place<'_>,
    owner: Option<OwnerReference>,
    data: [(&str, Vec<u8>); N],
) -> Secret {
    let data = data.map(|(key, bytes)| (key.to_owned(), ByteString(bytes)));
    Secret {
        metadata: ObjectMeta {
            name: Some(place.name.to_owned()),
            namespace: Some(place.namespace.to_owned()),
            labels: Some(labels::versioned(labels::child(
                place.owner.0,
                place.owner.1,
                place.component,
            ))),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        immutable: Some(true),
        type_: Some(KEY_TYPE.to_owned()),
        data: Some(BTreeMap::from(data)),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::parse_peers;

    use super::*;

    #[test]
    fn a_pair_has_the_key_of_each_end_with_its_role() {
        let (entry, exit) = (
            KeyPair::random(Role::Entry).unwrap(),
            KeyPair::random(Role::Exit).unwrap(),
        );
        assert_ne!(entry.public.bytes(), exit.public.bytes());
        let place = Place {
            namespace: "site",
            owner: ("MuxTunnel", "web"),
            component: "pair",
            name: "web-pair-1-abcde",
        };
        let owner = OwnerReference::default();
        let secret = pair_secret(place, &owner, (&entry, &exit));
        let data = secret.data.unwrap();
        let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
        assert!(text(ENTRY_PUBLIC_KEY).starts_with("mte1"));
        assert!(text(EXIT_PUBLIC_KEY).starts_with("mtx1"));
        let peers = parse_peers(&text(ENTRY_PUBLIC_KEY)).unwrap();
        assert_eq!(peers[0].1.name.as_deref(), Some("entry"));
        assert!(text(EXIT_KEY).starts_with("-----BEGIN PRIVATE KEY-----\n"));
        assert_eq!((secret.immutable, data.len()), (Some(true), 4));
        // A tool that prunes by this label would remove an identity.
        let labels = secret.metadata.labels.unwrap();
        assert!(
            !labels.contains_key("app.kubernetes.io/instance"),
            "{labels:?}"
        );
    }
}

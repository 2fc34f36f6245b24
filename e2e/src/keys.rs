//! Creates Secrets with newly generated certificates for carriers, and Secrets with given texts. Reads
//! the public keys of objects.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;

use crate::tunnel::Object;
use crate::{TestNamespace, wait};

/// Time-out for a public key in the status.
const KNOWN_WITHIN: Duration = Duration::from_secs(180);

/// The newest public key of a MuxTunnel or a MuxExit, when the status has it.
///
/// # Errors
/// If the status has no public key in time.
pub async fn public_key<K: Object>(ns: &TestNamespace, name: &str) -> Result<String> {
    let what = "the status has a public key";
    let known = |object: &K| !public_keys(object).is_empty();
    let object = wait::for_object(&ns.api(), name, what, KNOWN_WITHIN, known).await?;
    public_keys(&object).into_iter().next().context("a key")
}

/// The public keys in the status of an object, the newest first.
#[must_use]
pub fn public_keys<K: Object>(object: &K) -> Vec<String> {
    let value = serde_json::to_value(object).unwrap_or_default();
    let keys = value["status"]["publicKeys"].as_array();
    let keys = keys.into_iter().flatten();
    keys.filter_map(|key| Some(key.as_str()?.to_owned()))
        .collect()
}

/// Creates an authority. For each of `names`, creates a Secret with this name and a certificate for
/// this name.
///
/// # Errors
/// If a request fails.
pub async fn certificates(names: &[(&TestNamespace, &str)]) -> Result<()> {
    let authority = Authority::new()?;
    for (ns, name) in names {
        authority.certify(ns, name).await?;
    }
    Ok(())
}

/// An authority that signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// Creates an authority.
    ///
    /// # Errors
    /// If no keys can be generated.
    pub fn new() -> Result<Self> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let certificate = authority.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(authority, key),
            certificate,
        })
    }

    /// Creates a key and a certificate for `name`, and writes them to the Secret `name`, which it
    /// creates or updates.
    ///
    /// # Errors
    /// If a request fails.
    pub async fn certify(&self, ns: &TestNamespace, name: &str) -> Result<()> {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new([name.to_owned()])?;
        let certificate = certificate.signed_by(&key, &self.issuer)?;
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "stringData": {
                "tls.crt": certificate.pem(),
                "tls.key": key.serialize_pem(),
                "ca.crt": self.certificate,
            },
        });
        let how = PatchParams::apply("muxtunnel-e2e").force();
        let secrets = ns.api::<Secret>();
        secrets.patch(name, &how, &Patch::Apply(&secret)).await?;
        Ok(())
    }
}

/// Creates the Secret `name` with the keys and texts of `data`.
///
/// # Errors
/// If a request fails.
pub async fn secret<K: AsRef<str>, V: AsRef<str>>(
    ns: &TestNamespace,
    name: &str,
    data: &[(K, V)],
) -> Result<()> {
    let text = |(key, text): &(K, V)| (key.as_ref().to_owned(), text.as_ref().to_owned());
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        string_data: Some(data.iter().map(text).collect()),
        ..Secret::default()
    };
    ns.api().create(&PostParams::default(), &secret).await?;
    Ok(())
}

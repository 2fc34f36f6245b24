//! Creates Secrets with newly generated keys for carriers, and Secrets with given texts.

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;

use crate::TestNamespace;

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

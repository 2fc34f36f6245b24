//! Secrets: keys for carriers, generated on each call, and users.

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;

use crate::TestNamespace;

/// Makes an authority, and for each of `names` a certificate of it with that name, in a Secret of that name in
/// its namespace.
///
/// # Errors
/// If that fails.
pub async fn certificates(names: &[(&TestNamespace, &str)]) -> Result<()> {
    let authority = Authority::new()?;
    for (ns, name) in names {
        authority.certify(ns, name).await?;
    }
    Ok(())
}

/// Somebody whose certificates count.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// If no keys can be made.
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

    /// Makes a new key and a certificate with that name, in a Secret of that name in the namespace: a new one, or what
    /// an existing one has from now on.
    ///
    /// # Errors
    /// If that fails.
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

/// Makes a Secret of keys and texts.
///
/// # Errors
/// If that fails.
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

//! Secrets: keys for carriers, made anew each time, and users.

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::TestNamespace;

/// Makes an authority, and for each of `names` a certificate of it with that name, in a Secret of that name in
/// its namespace.
///
/// # Errors
/// If that fails.
pub async fn certificates(names: &[(&TestNamespace, &str)]) -> Result<()> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let ca = authority.self_signed(&key)?.pem();
    let issuer = Issuer::new(authority, key);
    for (ns, name) in names {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new([(*name).to_owned()])?.signed_by(&key, &issuer)?;
        let data = [
            ("tls.crt", certificate.pem()),
            ("tls.key", key.serialize_pem()),
            ("ca.crt", ca.clone()),
        ];
        secret(ns, name, &data).await?;
    }
    Ok(())
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

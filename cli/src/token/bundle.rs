//! A join bundle: its required keys, and the public facts that may be shown. Pure.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use muxtunnel_contract::secrets;
use sha2::{Digest, Sha256};
use x509_parser::pem::Pem;

/// The type of a bundle's Secret.
pub(super) const TYPE: &str = secrets::JOIN_TYPE;
/// Greatest size of a bundle in bytes. A bundle has a key and two certificates. While an authority
/// is replaced, it has a few more certificates.
pub(super) const LENGTH_MAX: u64 = 1 << 20;

const ADDRESS: &str = "address";
const AUTHORITY: &str = secrets::AUTHORITIES;
const CERTIFICATE: &str = secrets::CERTIFICATE;
const KEY: &str = secrets::KEY;
const EXIT: &str = "exit-identity";
const ENTRY: &str = "entry-identity";
const EXPIRES: &str = "expires";
/// The required keys. The address is not required, because it is absent if exit and entry meet at a
/// rendezvous.
const NEEDED: [&str; 6] = [AUTHORITY, CERTIFICATE, KEY, EXIT, ENTRY, EXPIRES];

/// A valid bundle.
pub(super) struct Bundle {
    data: std::collections::BTreeMap<String, ByteString>,
    /// Address of the exit; `None`: both sides meet at a rendezvous.
    pub(super) address: Option<String>,
    /// Identity of the exit.
    pub(super) exit: String,
    /// Identity of the entry.
    pub(super) entry: String,
    /// SHA-256 of the certificate of the exit's authority, in openssl's format.
    pub(super) fingerprint: String,
    /// When the bundle expires.
    pub(super) expires: Timestamp,
}

/// Why a bundle is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BundleError {
    #[error("the text is not the manifest of one Secret: {0}")]
    NoSecret(String),
    #[error("the Secret's type is {0}, not {TYPE}")]
    OtherType(String),
    #[error("the Secret's key {0} is missing or empty")]
    Missing(&'static str),
    #[error("the Secret's key {0} is not UTF-8 text")]
    NoText(&'static str),
    #[error("the Secret's key {ADDRESS} is {0:?}, not HOST:PORT")]
    Address(String),
    #[error("the Secret's key {0} is not a SPIFFE ID")]
    Identity(&'static str),
    #[error("the Secret's key {EXPIRES} is {0:?}, not a time such as 2030-01-31T12:00:00Z")]
    Time(String),
    #[error("the Secret's key {0} has no certificate: {1}")]
    Certificate(&'static str, String),
    #[error("the Secret's key {KEY} has no private key")]
    Key,
    #[error("the bundle expired at {0}: issue a new bundle in the exit's cluster")]
    Expired(Timestamp),
}

impl Bundle {
    /// Parses a manifest, YAML or JSON.
    ///
    /// # Errors
    /// If the bundle is invalid, with the reason.
    pub(super) fn parse(text: &str, now: Timestamp) -> Result<Self, BundleError> {
        let secret = serde_yaml::from_str(text);
        let secret: Secret = secret.map_err(|error| BundleError::NoSecret(error.to_string()))?;
        Self::new(secret, now)
    }

    /// Checks a Secret.
    ///
    /// # Errors
    /// If the bundle is invalid, with the reason.
    pub(super) fn new(secret: Secret, now: Timestamp) -> Result<Self, BundleError> {
        let type_ = secret.type_.unwrap_or_default();
        if type_ != TYPE {
            return Err(BundleError::OtherType(type_));
        }
        let mut data = secret.data.unwrap_or_default();
        let texts = secret.string_data.unwrap_or_default();
        data.extend(
            texts
                .into_iter()
                .map(|(key, text)| (key, ByteString(text.into_bytes()))),
        );
        // Drops other keys of the Secret, so that their data does not reach another cluster.
        data.retain(|key, _| key == ADDRESS || NEEDED.contains(&key.as_str()));
        let text = |key: &'static str| match data.get(key) {
            Some(bytes) if !bytes.0.is_empty() => std::str::from_utf8(&bytes.0)
                .map(str::trim)
                .map_err(|_| BundleError::NoText(key)),
            _ => Err(BundleError::Missing(key)),
        };
        for key in NEEDED {
            text(key)?;
        }
        let address = match data.contains_key(ADDRESS) {
            true => Some(address(text(ADDRESS)?)?),
            false => None,
        };
        let fingerprint = certificate(AUTHORITY, text(AUTHORITY)?)?.0;
        let (_, not_after) = certificate(CERTIFICATE, text(CERTIFICATE)?)?;
        let labels = Pem::iter_from_buffer(text(KEY)?.as_bytes()).filter_map(Result::ok);
        if !labels
            .into_iter()
            .any(|pem| pem.label.ends_with("PRIVATE KEY"))
        {
            return Err(BundleError::Key);
        }
        let expires = text(EXPIRES)?;
        let expires: Timestamp = expires
            .parse()
            .map_err(|_| BundleError::Time(expires.to_owned()))?;
        let expires = expires.min(not_after);
        if expires <= now {
            return Err(BundleError::Expired(expires));
        }
        let (exit, entry) = (identity(EXIT, text(EXIT)?)?, identity(ENTRY, text(ENTRY)?)?);
        Ok(Self {
            address,
            exit,
            entry,
            fingerprint,
            expires,
            data,
        })
    }

    /// The Secret with this name, to be applied. If `namespace` is `None`, the manifest has no
    /// namespace, and the command that applies the Secret selects it.
    pub(super) fn manifest(&self, name: &str, namespace: Option<&str>) -> Secret {
        Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: namespace.map(str::to_owned),
                ..ObjectMeta::default()
            },
            type_: Some(TYPE.to_owned()),
            data: Some(self.data.clone()),
            ..Secret::default()
        }
    }
}

fn address(text: &str) -> Result<String, BundleError> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(1..) => Ok(text.to_owned()),
        _ => Err(BundleError::Address(text.to_owned())),
    }
}

fn identity(key: &'static str, text: &str) -> Result<String, BundleError> {
    match text.strip_prefix("spiffe://") {
        Some(rest) if !rest.is_empty() => Ok(text.to_owned()),
        _ => Err(BundleError::Identity(key)),
    }
}

/// Fingerprint and expiry of the first certificate. All certificates must parse.
fn certificate(key: &'static str, text: &str) -> Result<(String, Timestamp), BundleError> {
    let fail = |why: String| BundleError::Certificate(key, why);
    let mut first = None;
    for pem in Pem::iter_from_buffer(text.as_bytes()) {
        let pem = pem.map_err(|error| fail(error.to_string()))?;
        let parsed = pem.parse_x509().map_err(|error| fail(error.to_string()))?;
        let end = parsed.validity().not_after.timestamp();
        let end = Timestamp::from_second(end).map_err(|error| fail(error.to_string()))?;
        first.get_or_insert_with(|| (fingerprint(&pem.contents), end));
    }
    first.ok_or_else(|| fail("the value is not PEM".to_owned()))
}

/// The fingerprint in openssl's format, `AB:CD:...`.
fn fingerprint(der: &[u8]) -> String {
    let bytes: Vec<_> = Sha256::digest(der)
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    bytes.join(":")
}

#[cfg(test)]
pub(super) mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use serde_json::{Value, json};

    use super::*;

    pub(crate) fn now() -> Timestamp {
        "2030-01-01T00:00:00Z".parse().unwrap()
    }

    /// A valid bundle as JSON, with `stringData`.
    fn good() -> Value {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(2031, 1, 1);
        let certificate = params.self_signed(&key).unwrap().pem();
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "web-join", "namespace": "backend", "uid": "u"},
            "type": TYPE,
            "stringData": {
                "address": "far.example.com:64000",
                "ca.crt": certificate,
                "tls.crt": certificate,
                "tls.key": key.serialize_pem(),
                "exit-identity": "spiffe://far/ns/backend/mt/web/exit",
                "entry-identity": "spiffe://far/ns/backend/mt/web/entry",
                "expires": "2030-12-31T00:00:00Z",
                "more": "is not ours",
            },
        })
    }

    fn error(change: impl FnOnce(&mut Value)) -> BundleError {
        let mut secret = good();
        change(&mut secret);
        let bundle = Bundle::parse(&secret.to_string(), now());
        bundle.map(|_| ()).unwrap_err()
    }

    #[test]
    fn a_bundle_goes_from_cluster_to_cluster_and_takes_nothing_else_along() {
        let bundle = Bundle::parse(&serde_yaml::to_string(&good()).unwrap(), now()).unwrap();
        assert_eq!(bundle.address.as_deref(), Some("far.example.com:64000"));
        assert_eq!(bundle.expires.to_string(), "2030-12-31T00:00:00Z");
        assert_eq!(bundle.fingerprint.len(), 32 * 3 - 1);
        let manifest = bundle.manifest("joined", Some("shop"));
        assert_eq!(manifest.metadata.name.as_deref(), Some("joined"));
        assert_eq!(manifest.metadata.uid, None);
        let keys: Vec<_> = manifest.data.iter().flat_map(|data| data.keys()).collect();
        assert_eq!(
            keys,
            [
                "address",
                "ca.crt",
                "entry-identity",
                "exit-identity",
                "expires",
                "tls.crt",
                "tls.key"
            ]
        );
        let again = Bundle::parse(&serde_yaml::to_string(&manifest).unwrap(), now()).unwrap();
        assert_eq!(again.fingerprint, bundle.fingerprint);
        assert_eq!(again.data, bundle.data);
    }

    #[test]
    fn without_an_address_they_meet_at_a_rendezvous() {
        let mut secret = good();
        secret["stringData"]
            .as_object_mut()
            .unwrap()
            .remove("address");
        assert_eq!(
            Bundle::parse(&secret.to_string(), now()).unwrap().address,
            None
        );
    }

    #[test]
    fn it_ends_with_its_certificate_at_the_latest() {
        let mut secret = good();
        secret["stringData"]["expires"] = json!("2099-01-01T00:00:00Z");
        let bundle = Bundle::parse(&secret.to_string(), now()).unwrap();
        assert_eq!(bundle.expires.to_string(), "2031-01-01T00:00:00Z");
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_the_reason() {
        for key in NEEDED {
            let missing = error(|secret| {
                secret["stringData"].as_object_mut().unwrap().remove(key);
            });
            assert_eq!(missing, BundleError::Missing(key));
        }
        let with = |key: &'static str, text: &'static str| {
            error(|secret| secret["stringData"][key] = json!(text))
        };
        assert_eq!(with("address", "far"), BundleError::Address("far".into()));
        assert_eq!(
            with("address", "far:0"),
            BundleError::Address("far:0".into())
        );
        assert_eq!(with("expires", "soon"), BundleError::Time("soon".into()));
        assert_eq!(
            with("exit-identity", "web"),
            BundleError::Identity("exit-identity")
        );
        assert_eq!(with("tls.key", "secret"), BundleError::Key);
        assert!(matches!(
            with("ca.crt", "garbage"),
            BundleError::Certificate("ca.crt", _)
        ));
        let expired = with("expires", "2029-12-31T00:00:00Z");
        assert_eq!(
            expired.to_string(),
            "the bundle expired at 2029-12-31T00:00:00Z: issue a new bundle in the exit's cluster"
        );
        let other = error(|secret| secret["type"] = json!("Opaque"));
        assert_eq!(other, BundleError::OtherType("Opaque".into()));
        let kind = error(|secret| secret["kind"] = json!("ConfigMap"));
        assert!(matches!(kind, BundleError::NoSecret(_)));
    }
}

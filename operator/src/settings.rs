//! Settings of the installation, which apply to all objects.

use std::collections::BTreeMap;
use std::str::FromStr;

use muxtunnel_crds::TemplateMetadata;

/// Settings of the operator, from its flags.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Image with `/usr/local/bin/muxgate`.
    pub gateway_image: String,
    /// Image with `/usr/local/bin/muxwan`.
    pub netem_image: String,
    /// Image with `/usr/local/bin/muxbench`.
    pub bench_image: String,
    /// `Always`, `IfNotPresent` or `Never`, for all pods that the operator creates.
    pub image_pull_policy: String,
    /// Whether a tunnel may have WAN emulation. Its containers need NET_ADMIN.
    pub wan_emulation: bool,
    /// Whether a tunnel may carry IP packets. The init containers for this purpose need NET_ADMIN
    /// and MKNOD.
    pub network: bool,
    /// Whether the operator may patch the annotation [`REFRESH`](crate::labels::REFRESH) of the
    /// gateways' pods.
    pub refresh_volumes: bool,
    /// The keys of labels that a tunnel may set on its pods.
    pub permitted_labels: Vec<LabelKey>,
    /// The keys of annotations that a tunnel may set on its pods.
    pub permitted_annotations: Vec<KeyPattern>,
    /// Whether gateways get NetworkPolicies, and which peers may use their admin port.
    pub network_policy: Option<AdminPeers>,
    /// The trust domain in the SPIFFE IDs of certificates that cert-manager issues.
    pub trust_domain: String,
}

impl Settings {
    /// Labels make pods endpoints of Services. Labels and annotations can make other controllers
    /// add images, volumes and networks to pods. So pods may only have permitted keys. The first
    /// other key of `metadata`, as a sentence.
    #[must_use]
    pub fn refused_key(&self, metadata: &TemplateMetadata) -> Option<String> {
        let is_label = |key: &&String| self.permitted_labels.iter().any(|own| own.is(key));
        let is_annotation = |key: &&String| {
            let mut patterns = self.permitted_annotations.iter();
            patterns.any(|pattern| pattern.matches(key))
        };
        let label = metadata.labels.keys().find(|key| !is_label(key));
        let annotation = metadata.annotations.keys().find(|key| !is_annotation(key));
        let label = label.map(|key| ("labels", key));
        let (field, key) = label.or(annotation.map(|key| ("annotations", key)))?;
        Some(format!(
            "template.metadata.{field} {key}: the installation does not permit this key on pods: remove it, or add it \
             to the chart's value podMetadata.{field}"
        ))
    }
}

/// The key of a label: `PREFIX/NAME`, or `NAME` for a key without a prefix. The key is no pattern: a
/// Service selects pods by labels with any key, so each key needs its own decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelKey(String);

impl LabelKey {
    /// Whether `key` is this key.
    #[must_use]
    pub fn is(&self, key: &str) -> bool {
        self.0 == key
    }
}

impl FromStr for LabelKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (prefix, name) = split(text);
        if prefix.is_none_or(is_part) && is_part(name) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "{text:?} is not the key of a label: expected NAME or PREFIX/NAME, without a pattern"
        ))
    }
}

/// Keys of annotations: `PREFIX/NAME`, or `NAME` for a key without a prefix. The name `*` matches
/// every name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPattern {
    prefix: Option<String>,
    name: String,
}

impl KeyPattern {
    /// Whether `key` matches.
    #[must_use]
    pub fn matches(&self, key: &str) -> bool {
        let (prefix, name) = split(key);
        prefix == self.prefix.as_deref() && (self.name == "*" || self.name == name)
    }
}

impl FromStr for KeyPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (prefix, name) = split(text);
        if prefix.is_none_or(is_part) && (name == "*" || is_part(name)) {
            return Ok(Self {
                prefix: prefix.map(str::to_owned),
                name: name.to_owned(),
            });
        }
        Err(format!(
            "{text:?} is not a pattern of keys: expected NAME, *, PREFIX/NAME or PREFIX/*"
        ))
    }
}

fn is_part(part: &str) -> bool {
    let is_taken = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !part.is_empty() && part.bytes().all(is_taken)
}

fn split(key: &str) -> (Option<&str>, &str) {
    key.split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name))
}

/// The peers that may use the gateways' admin port, in addition to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminPeers {
    /// The operator's own namespace.
    pub operator_namespace: String,
    /// Labels of the operator's pods.
    pub operator_labels: BTreeMap<String, String>,
    /// Labels of the namespaces whose pods may read metrics. If empty, no pod may read metrics.
    pub metrics_namespace_labels: BTreeMap<String, String>,
}

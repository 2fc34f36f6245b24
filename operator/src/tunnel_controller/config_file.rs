//! The file with a gateway's configuration, as a ConfigMap carries it. Pure.

use k8s_openapi::api::core::v1::ConfigMap;
use muxtunnel_gateway_config::{Config, ConfigError, config_hash};

/// Key of the ConfigMap, and name of the mounted file.
pub(super) const FILE: &str = "config.yaml";
/// Annotation of pods: a change of it is a roll-out. Forwards are not part of it.
pub(super) const STATIC_HASH: &str = "muxtunnel.dev/static-config-hash";

/// The configuration in a ConfigMap; `None`: there is none that a gateway would take over.
pub(super) fn config_in(config_map: &ConfigMap) -> Option<Config> {
    let text = config_map.data.as_ref()?.get(FILE)?;
    Config::from_yaml(text).ok()
}

/// The hash of what a running gateway cannot take over.
///
/// # Errors
/// [`ConfigError`]: it cannot be written down.
pub(super) fn static_hash(config: &Config) -> Result<String, ConfigError> {
    Ok(config_hash(&config.static_part().to_yaml()?))
}

/// The key of a ConfigMap under which it keeps a configuration whose static part has that hash, for a template that is
/// gone back to.
#[must_use]
pub(super) fn kept_key(hash: &str) -> String {
    format!("static-{hash}.yaml")
}

/// The hash in such a key.
#[must_use]
pub(super) fn hash_of_kept(key: &str) -> Option<&str> {
    key.strip_prefix("static-")?.strip_suffix(".yaml")
}

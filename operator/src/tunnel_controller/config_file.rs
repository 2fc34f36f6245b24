//! The file with a gateway's configuration in a ConfigMap. Pure.

use k8s_openapi::api::core::v1::ConfigMap;
use muxtunnel_gateway_config::{Config, ConfigError, config_hash};

/// Key of the ConfigMap, and name of the mounted file.
pub(super) const FILE: &str = "config.yaml";
/// Annotation of pods with [`static_hash`]. A change of the hash causes a roll-out. The hash does
/// not cover forwards.
pub(super) const STATIC_HASH: &str = "muxtunnel.dev/static-config-hash";

/// The configuration in a ConfigMap. `None` if the configuration is missing or invalid.
pub(super) fn config_in(config_map: &ConfigMap) -> Option<Config> {
    let text = config_map.data.as_ref()?.get(FILE)?;
    Config::from_yaml(text).ok()
}

/// The hash of the fields that a running gateway cannot reload.
///
/// # Errors
/// [`ConfigError`]: the configuration cannot be serialized.
pub(super) fn static_hash(config: &Config) -> Result<String, ConfigError> {
    Ok(config_hash(&config.static_part().to_yaml()?))
}

/// The key of a ConfigMap for a kept configuration with this static hash. An end may return to an
/// earlier template, whose pods start with this configuration.
#[must_use]
pub(super) fn kept_key(hash: &str) -> String {
    format!("static-{hash}.yaml")
}

/// The hash in a key of [`kept_key`].
#[must_use]
pub(super) fn hash_of_kept(key: &str) -> Option<&str> {
    key.strip_prefix("static-")?.strip_suffix(".yaml")
}

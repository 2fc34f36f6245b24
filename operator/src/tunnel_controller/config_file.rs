//! The files with the configurations of gateways in a ConfigMap. Pure.
//!
//! The ConfigMap of an end has one document for each form of the configuration that its pods mount.
//! The form consists of the gateway's image, which decides which fields the gateway knows, and of
//! the fields that need a restart. A pod's template names the key of its document, so a pod that
//! restarts during a roll-out starts with a configuration for its own image and its own volumes.

use k8s_openapi::api::core::v1::PodSpec;
use muxtunnel_gateway_config::{Config, ConfigError, config_hash};

/// Name of the mounted file. Also the key of the document that a volume without keys mounts.
pub(super) const FILE: &str = "config.yaml";
/// The key of the ports of an exit that MuxPeers name, by name. No pod mounts it. While the exit's spec
/// is not applied, it tells which port of the gateways a MuxPeer means.
pub(super) const REVERSE_PORTS: &str = "reverse-ports.yaml";
/// Number of digits of the hash of an image in a key.
const IMAGE_DIGITS: usize = 8;

/// The key of the document `config` for gateways with the image `image`. A change of the key causes
/// a roll-out. The key does not depend on the fields that a running gateway reloads.
///
/// # Errors
/// [`ConfigError`]: the configuration cannot be serialized.
pub(super) fn key(image: &str, config: &Config) -> Result<String, ConfigError> {
    let hash = config_hash(&config.static_part().to_yaml()?);
    Ok(format!("{}-{hash}.yaml", hash_of_image(image)))
}

/// Whether the document `key` is for gateways with the image `image`.
pub(super) fn is_for_image(key: &str, image: &str) -> bool {
    let rest = key.strip_prefix(&hash_of_image(image));
    rest.is_some_and(|rest| rest.starts_with('-'))
}

/// Whether `key` is the key of a document.
pub(super) fn is_key(key: &str) -> bool {
    let is_hash = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let own = key
        .strip_suffix(".yaml")
        .and_then(|key| key.split_once('-'));
    key == FILE || own.is_some_and(|(image, hash)| is_hash(image) && is_hash(hash))
}

/// The key of the document `key` as it was before it was reduced. No pod mounts it.
pub(super) fn whole_key(key: &str) -> String {
    format!("whole-{key}")
}

fn hash_of_image(image: &str) -> String {
    let mut hash = config_hash(image);
    hash.truncate(IMAGE_DIGITS);
    hash
}

/// The key of the ConfigMap `name` that a pod mounts.
pub(super) fn mounted_key<'a>(pod: &'a PodSpec, name: &str) -> Option<&'a str> {
    let volumes = pod.volumes.iter().flatten();
    let mut sources = volumes.filter_map(|volume| volume.config_map.as_ref());
    let source = sources.find(|source| source.name == name)?;
    let item = source.items.iter().flatten().find(|item| item.path == FILE);
    match (&source.items, item) {
        (None, _) => Some(FILE),
        (Some(_), item) => item.map(|item| item.key.as_str()),
    }
}

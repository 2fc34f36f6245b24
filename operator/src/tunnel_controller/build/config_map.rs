//! The ConfigMap with the configuration of an end's gateways, and with those of earlier pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use muxtunnel_gateway_config::{Config, ConfigError, Peer, config_hash};

use super::{End, metadata, reduce};
use crate::tunnel_controller::config_file;
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::validate::{JudgedPeer, ValidatedObject};

/// Maximum number of earlier configurations in a ConfigMap. Several roll-outs at the same time need
/// several configurations.
const KEPT_MAX: usize = 4;
/// Maximum size of all configurations in a ConfigMap, in bytes. The API server accepts 1 MiB for the
/// whole object.
pub(super) const BYTES_MAX: usize = 900 << 10;

/// Renders `config`, and the earlier configurations that pods mount, each without what `config` does
/// not permit. Also returns descriptions of the earlier configurations for which there is no room.
pub(super) fn build(
    object: &ValidatedObject,
    end: End,
    config: &Config,
) -> Result<(ConfigMap, Vec<String>), ConfigError> {
    let image = &object.class.part.images.gateway;
    let (own, text) = (config_file::key(image, config)?, config.to_yaml()?);
    let mut bytes = text.len();
    if bytes > BYTES_MAX {
        let problem = format!(
            "the file has {bytes} bytes, at most {BYTES_MAX} fit into a ConfigMap: use fewer or wider rules, and fewer peers"
        );
        return Err(ConfigError::field("", problem));
    }
    let mut data = BTreeMap::from([(own.clone(), text)]);
    let is_exit = object.kind() == Kind::Exit;
    if is_exit {
        let ports = object.listen_ports(end);
        let ports: BTreeMap<_, _> = ports.map(|port| (&port.name, port.port)).collect();
        let text = serde_yaml::to_string(&ports).unwrap_or_default();
        bytes += text.len();
        data.insert(config_file::REVERSE_PORTS.to_owned(), text);
    }
    let peers = object.peers.iter().filter_map(JudgedPeer::of_any_mode);
    let peers: Vec<_> = peers.collect();
    let (mut count, mut dropped) = (0, Vec::new());
    let kept = object.rollout(end).into_iter();
    let kept = kept.flat_map(|rollout| &rollout.kept);
    for (key, text) in kept.filter(|(key, _)| *key != own) {
        let is_for_image = config_file::is_for_image(key, image);
        let earlier = earlier(text, config).filter(|_| is_for_image);
        // What returns to the spec returns to the pods, so the whole document stays.
        let whole = earlier.is_none().then_some(text);
        let text = earlier.unwrap_or_else(|| reduce::reduced(text, config));
        // The mode may have changed, and the peers still count for pods of the former mode.
        let with = |peers: &[&Peer]| match is_exit {
            true => reduce::with_peers(&text, peers),
            false => text.clone(),
        };
        let text = with(&peers);
        let whole = whole.filter(|whole| **whole != text);
        // Without room for the peers, no peer keeps access that was withdrawn.
        let least = is_exit.then(|| reduce::with_peers(&text, &[]));
        let forms = [
            (Some(&text), whole),
            (Some(&text), None),
            (least.as_ref(), None),
        ];
        let mut forms = forms.into_iter().filter_map(|(text, whole)| {
            let text = text.filter(|_| count < KEPT_MAX)?;
            let needed = bytes + text.len() + whole.map_or(0, String::len);
            (needed <= BYTES_MAX).then_some((text, whole, needed))
        });
        let Some((text, whole, needed)) = forms.next() else {
            dropped.push(format!("{key} of ConfigMap {}", object.child(end)));
            continue;
        };
        data.extend(whole.map(|whole| (config_file::whole_key(key), whole.clone())));
        data.insert(key.clone(), text.clone());
        (count, bytes) = (count + 1, needed);
    }
    let config_map = ConfigMap {
        metadata: metadata(object, end),
        data: Some(data),
        ..ConfigMap::default()
    };
    Ok((config_map, dropped))
}

/// The earlier configuration `text` with the fields of `config` that a running gateway reloads.
/// `None` if this version cannot read the earlier configuration, or if a gateway refuses the result.
fn earlier(text: &str, config: &Config) -> Option<String> {
    let earlier = Config::from_yaml(text).ok()?.reloaded(config);
    earlier.check().ok()?;
    earlier.to_yaml().ok()
}

/// The `configHash` that gateways report when they run the document `key` of `config_map`.
pub fn expected_hash(config_map: &ConfigMap, key: &str) -> Option<String> {
    let text = config_map.data.as_ref()?.get(key)?;
    Some(config_hash(text))
}

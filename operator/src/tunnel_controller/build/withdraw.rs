//! The configuration of running gateways while the spec cannot be applied: targets without
//! permission are removed. Pure.
//!
//! A revoked permission takes effect at once in every state of the tunnel. The tunnel's owner
//! controls this state (a pause, an invalid spec, a Secret of another owner), so an exception for a
//! state would let the owner keep a revoked permission. While the test of sysctls has not passed,
//! gateways keep a configuration that they can reload and with which they can start. Input: the
//! existing ConfigMaps. Output: the same ConfigMaps with fewer targets.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use muxtunnel_gateway_config::{Config, Direction, Forward, HostPattern, Role, Rule};

use crate::grants::NotKnown;
use crate::tunnel_controller::config_file::{FILE, config_in};
use crate::tunnel_controller::dereference::{Live, LiveConfig};
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::references::{
    ServiceName, foreign, host_of_rule, host_of_target, services_of_config,
};

/// A ConfigMap, unchanged or with fewer targets.
#[derive(Debug)]
pub struct Kept {
    /// The resource version of the original.
    pub version: Option<String>,
    /// The ConfigMap to apply.
    pub config_map: ConfigMap,
}

/// The ConfigMaps of a tunnel in `namespace` without targets that are no longer permitted. The list
/// is empty if no target has to be removed.
///
/// # Errors
/// [`NotKnown`]. An unreadable configuration is not an error, because no gateway can reload it.
pub(super) fn withdrawn(live: &Live, namespace: &str) -> Result<Vec<Kept>, NotKnown> {
    let (mut kept, mut is_less) = (Vec::new(), false);
    for config in live.config_maps.values() {
        let less = lessened(live, config, namespace)?;
        is_less |= less.is_some();
        kept.push(Kept {
            version: config.config_map.resource_version(),
            config_map: less.unwrap_or_else(|| bare(&config.config_map)),
        });
    }
    kept.truncate(if is_less { kept.len() } else { 0 });
    Ok(kept)
}

/// The ConfigMap that replaces `built` while the Deployment of `end` stays unchanged. If running
/// gateways could not start with `built`, returns their present configuration without unpermitted
/// targets. Otherwise returns `None`.
///
/// # Errors
/// [`NotKnown`].
pub(super) fn held(
    live: &Live,
    end: End,
    built: &ConfigMap,
    namespace: &str,
) -> Result<Option<ConfigMap>, NotKnown> {
    let runs = live.deployments.contains_key(&end);
    let Some(own) = live.config_maps.get(&end).filter(|_| runs) else {
        return Ok(None);
    };
    Ok(match (&own.config, config_in(built)) {
        (Some(has), Some(wanted)) if has.static_part() != wanted.static_part() => {
            let less = lessened(live, own, namespace)?;
            Some(less.unwrap_or_else(|| bare(&own.config_map)))
        }
        _ => None,
    })
}

/// The ConfigMap without unpermitted targets. `None` if there is no such target.
fn lessened(live: &Live, own: &LiveConfig, namespace: &str) -> Result<Option<ConfigMap>, NotKnown> {
    let Some(config) = &own.config else {
        return Ok(None);
    };
    let named = services_of_config(config, namespace);
    if named.is_empty() {
        return Ok(None);
    }
    let withdrawn = live.withdrawn.as_ref().ok_or(NotKnown::Unlisted)?;
    let text = without(config, namespace, withdrawn).and_then(|less| less.to_yaml().ok());
    Ok(text.map(|text| ConfigMap {
        data: Some([(FILE.to_owned(), text)].into()),
        ..bare(&own.config_map)
    }))
}

/// The fields that the operator owns.
pub(in crate::tunnel_controller) fn bare(live: &ConfigMap) -> ConfigMap {
    let meta = &live.metadata;
    ConfigMap {
        metadata: ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            labels: meta.labels.clone(),
            owner_references: meta.owner_references.clone(),
            ..ObjectMeta::default()
        },
        data: live.data.clone(),
        ..ConfigMap::default()
    }
}

/// The configuration without the forwards to, and the allow rules for, the Services in `refused`.
/// The result has deny rules for their host names, which end the open streams. `None` if the
/// configuration names no Service in `refused`.
fn without(config: &Config, namespace: &str, refused: &BTreeSet<ServiceName>) -> Option<Config> {
    let is_refused = |host: &str| !foreign(host, namespace).is_disjoint(refused);
    let mut less = config.clone();
    less.forwards.retain(|forward| {
        let host = forward.target.as_ref().and_then(host_of_target);
        !host.is_some_and(is_refused)
    });
    let is_withdrawn = |rule: &Rule| {
        let host = host_of_rule(&rule.host);
        host.is_some_and(|host| is_refused(&host))
    };
    less.policy.allow.retain(|rule| !is_withdrawn(rule));
    let here = |forward: &&Forward| {
        config.role == Role::Entry && forward.direction == Direction::ExitToEntry
    };
    let targets = config.forwards.iter().filter(here);
    let dialled = targets.filter_map(|forward| forward.target.as_ref().map(Rule::of_target));
    let withdrawn = dialled.filter(is_withdrawn);
    let withdrawn = withdrawn.chain(
        config
            .policy
            .allow
            .iter()
            .filter(|rule| is_withdrawn(rule))
            // A pattern gets no deny rule, because it may cover Services that are still permitted.
            .filter(|rule| matches!(rule.host, HostPattern::Name(_)))
            .cloned(),
    );
    for rule in withdrawn {
        if !less.policy.deny.contains(&rule) {
            less.policy.deny.push(rule);
        }
    }
    (less != *config).then_some(less)
}

//! What gateways that run lose, and keep, while what the spec asks for cannot be applied. Pure.
//!
//! A permission that another namespace takes back counts at once, whatever state the tunnel is in: its owner decides that
//! (a pause, an invalid spec, a Secret in the way), and must not keep by it what is no longer granted. And while sysctls
//! have not passed, gateways keep a configuration that they can take over and start with.
//! In: the ConfigMaps as they are. Out: the same with less.

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

/// A ConfigMap as it is, or with less.
#[derive(Debug)]
pub struct Kept {
    /// The version that this follows from.
    pub version: Option<String>,
    /// What it is to be.
    pub config_map: ConfigMap,
}

/// All that the gateways of a tunnel in `namespace` have, without what is no longer permitted; empty: there is nothing of
/// that.
///
/// # Errors
/// [`NotKnown`]; not where a configuration cannot be read, which no gateway takes over either.
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

/// What `end` has instead of `built` while Deployments stay as they are: where gateways that run could not start with that,
/// what these have, less what is no longer permitted.
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

/// The ConfigMap without what is no longer permitted; `None`: there is nothing of that in it.
fn lessened(live: &Live, own: &LiveConfig, namespace: &str) -> Result<Option<ConfigMap>, NotKnown> {
    let Some(config) = &own.config else {
        return Ok(None);
    };
    let named = services_of_config(config, namespace);
    if named.is_empty() {
        return Ok(None);
    }
    let withdrawn = live.withdrawn.as_ref().ok_or(NotKnown)?;
    let text = without(config, namespace, withdrawn).and_then(|less| less.to_yaml().ok());
    Ok(text.map(|text| ConfigMap {
        data: Some([(FILE.to_owned(), text)].into()),
        ..bare(&own.config_map)
    }))
}

/// What of it is ours to say.
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

/// The configuration without forwards to `refused`, and without rules for them, and with rules that deny what was dialled
/// by them, which end the open streams; `None`: there were none.
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
            // A pattern may cover what others still permit.
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

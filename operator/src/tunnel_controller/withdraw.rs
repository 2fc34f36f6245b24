//! What gateways that run lose, and keep, while what the spec asks for cannot be applied.
//!
//! A permission that another namespace takes back counts at once, whatever state the tunnel is in: its owner decides that
//! (a pause, an invalid spec, a Secret in the way), and must not keep by it what is no longer granted. And while sysctls
//! have not passed, gateways keep a configuration that they can take over and start with.
//! In: the ConfigMaps as they are. Out: the same with less. The functions on configurations are pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use muxtunnel_crds::MuxTunnel;
use muxtunnel_gateway_config::{Config, Direction, Forward, HostPattern, Role, Rule};

use super::config_file::{FILE, config_in};
use super::end::End;
use super::error::{DereferenceError, Error};
use super::references::{ServiceName, foreign, host_of_rule, host_of_target, services_of_config};
use crate::apply::{Children, apply, is_owned, owner_reference};
use crate::caches::Cluster;
use crate::grants::Grants;

/// Takes from the tunnel's gateways what leads to Services that permit it no more, and nothing else. Nothing is written
/// where there is nothing of that.
///
/// # Errors
/// [`Error::Dereference`] where it is not known yet what is permitted, [`Error::Apply`]; not where a configuration cannot
/// be read, which no gateway takes over either.
pub async fn withdraw(cluster: &Cluster, grants: &Grants, tunnel: &MuxTunnel) -> Result<(), Error> {
    let (namespace, name) = (tunnel.namespace().unwrap_or_default(), tunnel.name_any());
    let Some(owner) = owner_reference(tunnel) else {
        return Ok(());
    };
    let children = Children {
        namespace: &namespace,
        instance: &name,
        components: &End::ALL.map(End::component),
        owner: &owner,
        generation: tunnel.meta().generation,
    };
    let known = cluster.caches.config_maps.children(
        children.namespace,
        children.instance,
        children.components,
    )?;
    let own = known.iter().filter(|live| is_owned(live.as_ref(), &owner));
    let mut kept = Vec::new();
    let mut is_less = false;
    for live in own {
        let less = lessened(live, tunnel, grants)?;
        is_less |= less.is_some();
        kept.push(less.unwrap_or_else(|| bare(live)));
    }
    if is_less {
        apply(cluster, children, kept).await?;
    }
    Ok(())
}

/// Of `built`, those that gateways which run could not start with are replaced by what these have, less what is no
/// longer permitted: for while Deployments stay as they are.
///
/// # Errors
/// [`DereferenceError`] where it is not known yet what there is, or is permitted.
pub fn hold(
    cluster: &Cluster,
    grants: &Grants,
    tunnel: &MuxTunnel,
    built: &mut [ConfigMap],
) -> Result<(), DereferenceError> {
    let namespace = tunnel.namespace().unwrap_or_default();
    let Some(owner) = owner_reference(tunnel) else {
        return Ok(());
    };
    let caches = &cluster.caches;
    for built in built {
        let name = built.name_any();
        let (live, runs) = (
            caches.config_maps.get(&namespace, &name)?,
            caches.deployments.get(&namespace, &name)?.is_some(),
        );
        let Some(live) = live.filter(|live| runs && is_owned(live.as_ref(), &owner)) else {
            continue;
        };
        if let (Some(has), Some(wanted)) = (config_in(&live), config_in(built))
            && has.static_part() != wanted.static_part()
        {
            *built = lessened(&live, tunnel, grants)?.unwrap_or_else(|| bare(&live));
        }
    }
    Ok(())
}

/// The ConfigMap without what is no longer permitted; `None`: there is nothing of that in it.
fn lessened(
    live: &ConfigMap,
    tunnel: &MuxTunnel,
    grants: &Grants,
) -> Result<Option<ConfigMap>, DereferenceError> {
    let Some(config) = config_in(live) else {
        return Ok(None);
    };
    let namespace = tunnel.namespace().unwrap_or_default();
    let mut refused = BTreeSet::new();
    for service in services_of_config(&config, &namespace) {
        if !grants.permit(&namespace, &service)? {
            refused.insert(service);
        }
    }
    let text = without(&config, &namespace, &refused).and_then(|less| less.to_yaml().ok());
    Ok(text.map(|text| ConfigMap {
        data: Some([(FILE.to_owned(), text)].into()),
        ..bare(live)
    }))
}

/// What of it is ours to say.
fn bare(live: &ConfigMap) -> ConfigMap {
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

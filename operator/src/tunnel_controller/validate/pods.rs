//! The settings of the pods of all ends. Pure.

use std::collections::{BTreeMap, BTreeSet};

use muxtunnel_contract::sysctls;
use muxtunnel_crds::{Tuning, TuningProfile, WanEmulation};

use super::{ValidatedGateway, ValidatedObject, rollouts};
use crate::class::Class;
use crate::tunnel_controller::dereference::{Dereferenced, SeenProbe};
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::object::Object;
use crate::tunnel_controller::rollouts::{Auto, Rollout};

/// The settings of the pods of all ends.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedPods {
    /// The sysctls that the spec or its class names, without those of profile `Auto`.
    named: BTreeMap<String, String>,
    /// The WAN emulation, if it is requested.
    pub wan: Option<WanEmulation>,
    /// Whether the spec has `sysctls`. A Job tests the sysctls before gateways get them.
    pub is_probed: bool,
    /// The Jobs that test sysctls, running and ended.
    pub probes: Vec<SeenProbe>,
    /// The state of each end's roll-out. This field does not come from the spec alone.
    pub rollouts: BTreeMap<End, Rollout>,
}

impl ValidatedPods {
    pub(super) fn of(
        object: &Object,
        named: &Dereferenced,
        gateways: &BTreeMap<End, ValidatedGateway>,
        class: &Class,
    ) -> Self {
        // A MuxRendezvous has no kernel settings.
        let asked = match object.rendezvous() {
            Some(_) => Tuning {
                profile: Some(TuningProfile::None),
                ..Tuning::default()
            },
            None => class.tuning(object.tuning()).cloned().unwrap_or_default(),
        };
        let profile = asked.profile.unwrap_or_default();
        let own = pairs(&asked);
        let of_profile = match profile {
            TuningProfile::Wan => sysctls::WAN,
            TuningProfile::Lan => sysctls::LAN,
            TuningProfile::Auto | TuningProfile::None => &[],
        };
        let pods = Self {
            named: joined(of_profile, &own),
            wan: object.wan_emulation().filter(|wan| wan.emulates()).cloned(),
            is_probed: !asked.sysctls.is_empty(),
            probes: named.probes.clone(),
            rollouts: BTreeMap::new(),
        };
        let names = sysctls::WAN.iter().map(|(name, _)| (*name).to_owned());
        let automatic: BTreeSet<_> = match profile {
            TuningProfile::Auto => names.filter(|name| !own.contains_key(name)).collect(),
            _ => BTreeSet::new(),
        };
        let rollouts = gateways.iter().map(|(end, gateway)| {
            let (end, template) = (*end, &gateway.template);
            let auto = match automatic.is_empty() {
                true => Auto::NotRequested,
                false => {
                    let tuning = joined(sysctls::WAN, &own);
                    let all = for_pods(tuning.clone());
                    // Pods with another image are created anyway, so the sysctls are tried again.
                    let wanted = rollouts::asked(&all, template, Some(&class.part.images.gateway));
                    match rollouts::untuned(end, &wanted, &all, named) {
                        Some(untuned) => Auto::Untuned(untuned),
                        None => {
                            let rollout = (tuning, Auto::Tuned(automatic.clone()));
                            return (end, rollouts::rollout(end, rollout, wanted, named));
                        }
                    }
                }
            };
            let wanted = rollouts::asked(&pods.probed(), template, None);
            let rollout = (pods.named.clone(), auto);
            (end, rollouts::rollout(end, rollout, wanted, named))
        });
        let rollouts = rollouts.collect();
        Self { rollouts, ..pods }
    }

    /// The requested sysctls of the pods of `end`. `None` without any.
    #[must_use]
    pub fn tuning(&self, end: End) -> Option<&BTreeMap<String, String>> {
        let tuning = self.rollouts.get(&end).map(|rollout| &rollout.tuning);
        tuning.filter(|tuning| !tuning.is_empty())
    }

    /// All sysctls of the pods of `end`: the requested ones, and the one that every gateway needs.
    #[must_use]
    pub fn sysctls(&self, end: End) -> BTreeMap<String, String> {
        for_pods(self.tuning(end).cloned().unwrap_or_default())
    }

    /// All sysctls of the pods of a Job that tests sysctls. Without the sysctls of profile `Auto`,
    /// because pods need not get them.
    #[must_use]
    pub fn probed(&self) -> BTreeMap<String, String> {
        for_pods(self.named.clone())
    }
}

impl ValidatedObject {
    /// The roll-out of `end`.
    #[must_use]
    pub fn rollout(&self, end: End) -> Option<&Rollout> {
        self.pods.rollouts.get(&end)
    }
}

/// `tuning`, with the sysctl that every gateway needs.
fn for_pods(mut tuning: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let (name, value) = sysctls::UNPRIVILEGED_PORT_START;
    tuning.insert(name.to_owned(), value.to_owned());
    tuning
}

fn pairs(asked: &Tuning) -> BTreeMap<String, String> {
    let own = asked.sysctls.iter();
    own.map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()))
        .collect()
}

/// The sysctls of a profile, and those of the spec (`own`), which override them.
fn joined(profile: &[(&str, &str)], own: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let profile = profile.iter();
    profile
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .chain(own.clone())
        .collect()
}

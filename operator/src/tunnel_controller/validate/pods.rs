//! The settings of the pods of all ends. Pure.

use std::collections::BTreeMap;

use muxtunnel_contract::sysctls;
use muxtunnel_crds::{Profile, Tuning, WanEmulation};

use super::{ValidatedGateway, ValidatedObject, asked, rollouts};
use crate::class::Class;
use crate::tunnel_controller::dereference::{Dereferenced, SeenProbe};
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::object::Object;
use crate::tunnel_controller::rollouts::Rollout;

/// The settings of the pods of all ends.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedPods {
    /// The requested sysctls, by name.
    pub tuning: BTreeMap<String, String>,
    /// The WAN emulation, if it is requested.
    pub wan: Option<WanEmulation>,
    /// Whether the spec names sysctls. A Job tests the sysctls before gateways get them.
    pub is_probed: bool,
    /// The Jobs that test sysctls, running and ended.
    pub probes: Vec<SeenProbe>,
    /// The state of each end's roll-out. This field does not come from the spec.
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
            Some(_) => None,
            None => class.tuning(object.tuning()),
        };
        let mut pods = Self {
            tuning: asked.map(tuning).unwrap_or_default(),
            wan: object.wan_emulation().filter(|wan| wan.emulates()).cloned(),
            is_probed: asked.is_some_and(|tuning| !tuning.sysctls.is_empty()),
            probes: named.probes.clone(),
            rollouts: BTreeMap::new(),
        };
        let rollouts = gateways.iter().map(|(end, gateway)| {
            let asked = self::asked(&pods.sysctls(), &gateway.template);
            (*end, rollouts::rollout(*end, asked, named))
        });
        pods.rollouts = rollouts.collect();
        pods
    }

    /// All sysctls of the gateways' pods: the requested ones, and the one that every gateway needs.
    #[must_use]
    pub fn sysctls(&self) -> BTreeMap<String, String> {
        let (name, value) = sysctls::UNPRIVILEGED_PORT_START;
        let mut sysctls = self.tuning.clone();
        sysctls.insert(name.to_owned(), value.to_owned());
        sysctls
    }
}

impl ValidatedObject {
    /// The roll-out of `end`.
    #[must_use]
    pub fn rollout(&self, end: End) -> Option<&Rollout> {
        self.pods.rollouts.get(&end)
    }
}

fn tuning(asked: &Tuning) -> BTreeMap<String, String> {
    let profile = match asked.profile.unwrap_or_default() {
        Profile::Wan => sysctls::WAN,
        Profile::Lan => sysctls::LAN,
        Profile::None => &[],
    };
    let own = asked.sysctls.iter();
    let own = own.map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()));
    let profile = profile.iter();
    profile
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .chain(own)
        .collect()
}

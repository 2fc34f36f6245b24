//! Decides where packets of entries may go, by the rules of the exit's network.
//!
//! [`Authorizer`] decides about destinations as it decides about targets of streams. A flow has
//! many packets, so a cache keeps one verdict for each flow. The cache has [`VERDICTS`] slots. If
//! two flows have the same slot, the later flow replaces the verdict of the earlier flow.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

use muxtunnel_gateway_config::{self as config, HostPattern, Policy, Ports, Rule};
use muxtunnel_packet::Packet;

use crate::io::transport::Side;
use crate::net::policy::{Authorizer, Host};
use crate::net::protected_addresses::ProtectedAddresses;

/// Number of verdicts in the cache, a power of two. The cache takes 160 KiB.
const VERDICTS: usize = 4096;

/// The rules of one gateway.
pub(super) struct Judge {
    /// `None` at an entry, which accepts every packet of its exit.
    rules: Option<Rules>,
    verdicts: RefCell<Vec<Option<Verdict>>>,
}

struct Rules {
    policy: Policy,
    /// The rules for packets without ports: `allow` rules for all ports, and every `deny` rule.
    portless: Policy,
    protected: Arc<ProtectedAddresses>,
}

/// Whether a destination is permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Verdict {
    destination: IpAddr,
    port: Option<u16>,
    permitted: bool,
}

impl Judge {
    pub(super) fn of(
        configured: &config::Network,
        side: Side,
        protected: &Arc<ProtectedAddresses>,
    ) -> Self {
        let rules = (side == Side::Accepts).then(|| Rules::of(configured, Arc::clone(protected)));
        let kept = if rules.is_some() { VERDICTS } else { 0 };
        Self {
            rules,
            verdicts: RefCell::new(vec![None; kept]),
        }
    }

    /// Whether the destination of a received packet is permitted. `flow`: the hash of its flow.
    pub(super) fn permits(&self, packet: &Packet, flow: u32) -> bool {
        let Some(rules) = &self.rules else {
            return true;
        };
        let (destination, port) = (packet.destination, packet.ports.map(|(_, port)| port));
        let mut verdicts = self.verdicts.borrow_mut();
        let place = &mut verdicts[flow as usize % VERDICTS];
        match place {
            Some(known) if (known.destination, known.port) == (destination, port) => {
                known.permitted
            }
            _ => {
                let permitted = rules.permit(destination, port);
                *place = Some(Verdict {
                    destination,
                    port,
                    permitted,
                });
                permitted
            }
        }
    }
}

impl Rules {
    fn of(configured: &config::Network, protected: Arc<ProtectedAddresses>) -> Self {
        let of_network = |cidr: &config::Cidr| Rule {
            host: HostPattern::Network(*cidr),
            ports: Ports::ALL,
            peer: None,
        };
        let mut destinations = configured.exit_cidrs.clone();
        if configured.peers_reach_each_other {
            destinations.extend(&configured.entry_cidrs);
        }
        let policy = Policy {
            allow: match configured.allow.is_empty() {
                true => destinations.iter().map(of_network).collect(),
                false => configured.allow.clone(),
            },
            deny: configured.deny.clone(),
            ..Policy::default()
        };
        let has_all = |rule: &&Rule| rule.ports == Ports::ALL;
        let with_all = |rule: &Rule| Rule {
            ports: Ports::ALL,
            ..rule.clone()
        };
        let portless = Policy {
            allow: policy.allow.iter().filter(has_all).cloned().collect(),
            deny: policy.deny.iter().map(with_all).collect(),
            ..Policy::default()
        };
        Self {
            policy,
            portless,
            protected,
        }
    }

    fn permit(&self, destination: IpAddr, port: Option<u16>) -> bool {
        // No server can listen on port 0, so a packet to port 0 counts as a packet without ports.
        let port = port.filter(|port| *port > 0);
        let policy = match port {
            Some(_) => &self.policy,
            None => &self.portless,
        };
        let authorizer = Authorizer::of(policy, &self.protected, None);
        let any = Ports::ALL.last;
        authorizer.permits(Host::Address(destination), destination, port.unwrap_or(any))
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::Config;

    use super::*;

    fn rules(network: &str) -> Rules {
        let text = format!(
            "role: Exit\nsecurity: {{mode: None}}\nlisten: 0.0.0.0:64000\nadmin: 0.0.0.0:64001\n\
             network: {{entryCIDRs: [10.8.0.0/24], exitCIDRs: [10.0.0.0/14, 10.96.0.0/12, 169.0.0.0/8], {network}}}\n"
        );
        let config = Config::from_yaml(&text).unwrap();
        let protected = ProtectedAddresses::new("10.96.0.1", &config, |address| {
            address == IpAddr::from([10, 1, 0, 1])
        });
        Rules::of(config.network.as_ref().unwrap(), Arc::new(protected))
    }

    fn permits(rules: &Rules, destination: &str, port: Option<u16>) -> bool {
        rules.permit(destination.parse().unwrap(), port)
    }

    #[test]
    fn without_rules_all_is_permitted_but_what_a_rule_has_to_name() {
        let rules = rules("mtu: 1500");
        for port in [Some(80), None] {
            assert!(permits(&rules, "10.2.0.1", port));
            assert!(
                !permits(&rules, "192.0.2.1", port),
                "the address is not on the exit's side"
            );
            assert!(
                !permits(&rules, "169.254.169.254", port),
                "a metadata service"
            );
            assert!(!permits(&rules, "10.96.0.1", port), "the API server");
        }
        assert!(permits(&rules, "10.1.0.1", Some(80)));
        assert!(
            !permits(&rules, "10.1.0.1", Some(64001)),
            "the gateway's own port"
        );
    }

    #[test]
    fn entries_that_reach_each_other_are_destinations_unless_rules_name_others() {
        for (network, is_permitted) in [
            ("mtu: 1500", false),
            ("peersReachEachOther: true", true),
            ("peersReachEachOther: true, allow: [10.2.0.0/16]", false),
        ] {
            let rules = rules(network);
            assert_eq!(permits(&rules, "10.8.0.7", None), is_permitted, "{network}");
        }
    }

    #[test]
    fn a_rule_for_ports_is_none_for_packets_without_and_denies_them() {
        let rules = rules("allow: ['10.2.0.0/16:80', 10.3.0.0/16], deny: ['10.3.0.7:22']");
        assert!(permits(&rules, "10.2.0.1", Some(80)));
        assert!(!permits(&rules, "10.2.0.1", Some(81)));
        assert!(!permits(&rules, "10.2.0.1", None));
        assert!(permits(&rules, "10.3.0.1", None));
        assert!(permits(&rules, "10.3.0.7", Some(80)));
        assert!(!permits(&rules, "10.3.0.7", Some(22)));
        assert!(
            !permits(&rules, "10.3.0.7", None),
            "a fragment may be of port 22"
        );
    }
}

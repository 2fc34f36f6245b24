//! Decides where packets of peers may go. The same [`Authorizer`] decides about targets of streams.
//!
//! At an exit, the rules of `network` and of the peer apply. At an entry, every destination is permitted. At both
//! ends, the gateway's own listeners and the protected addresses need a rule that names them, so an
//! entry denies them. A packet that no rule permits passes if it replies to a flow that the other
//! side of the packet began ([`super::flows`]). A reply never passes to an own listener.
//!
//! A flow has many packets, so a cache keeps one verdict for each flow and peer, for at most
//! [`VERDICT_LIFETIME`]. The cache has [`VERDICTS`] slots. If two flows have the same slot, the
//! later flow replaces the verdict of the earlier flow.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::{
    self as config, HostPattern, Policy, Ports, Reloadable, Rule, Security,
};
use muxtunnel_packet::Packet;
use tokio::sync::watch;

use super::flows::{Flow, Flows};
use super::owner::Owner;
use crate::io::transport::Side;
use crate::net::policy::{Authorizer, Host};
use crate::net::protected_addresses::ProtectedAddresses;

/// Number of verdicts in the cache, a power of two. The cache takes 288 KiB.
const VERDICTS: usize = 4096;
/// Maximum age of a verdict. The addresses of this host can change at any time.
const VERDICT_LIFETIME: Duration = Duration::from_secs(1);

/// The rules of one gateway.
pub(super) struct Judge {
    network: config::Network,
    side: Side,
    protected: Arc<ProtectedAddresses>,
    reloadable: RefCell<watch::Receiver<Arc<Reloadable>>>,
    state: RefCell<State>,
    flows: Arc<Flows>,
}

/// The rules in force, and verdicts by these rules.
struct State {
    rules: Rules,
    verdicts: Vec<Option<Verdict>>,
}

struct Rules {
    policy: Policy,
    /// The rules of the peers themselves.
    security: Security,
    /// Whether a rule is for one peer.
    has_peers: bool,
    protected: ProtectedAddresses,
}

/// The peer that sent a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived<'a> {
    pub(super) owner: &'a Owner,
    /// The identity that the peer's carriers proved.
    pub(super) identity: Option<&'a Arc<str>>,
    /// The entry that has the packet's destination; `None`: this side has it.
    pub(super) other: Option<&'a Owner>,
}

/// Destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Destination {
    address: IpAddr,
    port: Option<u16>,
    is_fragment: bool,
}

/// What the rules decide about a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Permitted,
    Denied,
    /// The destination is an own listener of the gateway.
    Own,
}

#[derive(Debug, Clone)]
struct Verdict {
    to: Destination,
    peer: Option<Arc<str>>,
    at: Instant,
    decision: Decision,
}

impl Judge {
    pub(super) fn of(
        network: &config::Network,
        side: Side,
        protected: &Arc<ProtectedAddresses>,
        reloadable: watch::Receiver<Arc<Reloadable>>,
        flows: &Arc<Flows>,
    ) -> Self {
        let rules = Rules::of(network, side, &reloadable.borrow(), protected);
        Self {
            network: network.clone(),
            side,
            protected: Arc::clone(protected),
            reloadable: RefCell::new(reloadable),
            state: RefCell::new(State {
                rules,
                verdicts: vec![None; VERDICTS],
            }),
            flows: Arc::clone(flows),
        }
    }

    /// Whether a received packet passes. `flow`: the hash of its flow.
    pub(super) fn permits(
        &self,
        packet: &Packet,
        flow: u32,
        from: Arrived<'_>,
        now: Instant,
    ) -> bool {
        match self.decide(Destination::of(packet), flow, from.identity, now) {
            Decision::Permitted => true,
            Decision::Own => false,
            Decision::Denied => self.flows.has_reply(from.other, packet, from.owner, now),
        }
    }

    /// Remembers the flow of a packet to `to` if the rules do not permit its replies. `beginner`:
    /// the entry that sent the packet, or `None` for this side.
    pub(super) fn sends(
        &self,
        packet: &Packet,
        flow: u32,
        to: &Owner,
        beginner: Option<&Owner>,
        now: Instant,
    ) {
        let peer = match to {
            Owner::Peer(identity) => Some(identity),
            Owner::Side | Owner::Session(_) => None,
        };
        let decision = self.decide(Destination::of_replies_to(packet), flow, peer, now);
        // The identity of `Owner::Side` is unknown here, so a rule for one peer may apply.
        let may_differ = *to == Owner::Side && self.state.borrow().rules.has_peers;
        if decision == Decision::Denied || may_differ {
            self.flows.begin(beginner, Flow::begun_by(packet, to), now);
        }
    }

    fn decide(
        &self,
        to: Destination,
        flow: u32,
        peer: Option<&Arc<str>>,
        now: Instant,
    ) -> Decision {
        let state = &mut *self.state.borrow_mut();
        self.follow_configuration(state);
        let place = &mut state.verdicts[flow as usize % VERDICTS];
        if let Some(known) = place
            && known.to == to
            && known.peer.as_ref() == peer
            && now.saturating_duration_since(known.at) < VERDICT_LIFETIME
        {
            return known.decision;
        }
        let decision = state.rules.decide(to, peer.map(|peer| &**peer));
        *place = Some(Verdict {
            to,
            peer: peer.cloned(),
            at: now,
            decision,
        });
        decision
    }

    /// Applies a changed configuration.
    fn follow_configuration(&self, state: &mut State) {
        let mut reloadable = self.reloadable.borrow_mut();
        if reloadable.has_changed().unwrap_or_default() {
            let changed = reloadable.borrow_and_update();
            state.rules = Rules::of(&self.network, self.side, &changed, &self.protected);
            state.verdicts.fill(None);
        }
    }
}

impl Destination {
    fn of(packet: &Packet) -> Self {
        let ports = packet.ports.or(packet.fragment_ports);
        Self {
            address: packet.destination,
            port: ports.map(|(_, destination)| destination),
            is_fragment: packet.is_fragment(),
        }
    }

    fn of_replies_to(packet: &Packet) -> Self {
        let ports = packet.ports.or(packet.fragment_ports);
        Self {
            address: packet.source,
            port: ports.map(|(source, _)| source),
            is_fragment: packet.is_fragment(),
        }
    }
}

impl Rules {
    fn of(
        network: &config::Network,
        side: Side,
        reloadable: &Reloadable,
        protected: &ProtectedAddresses,
    ) -> Self {
        // Every destination here is an address of the packet's other side ([`super::addresses`]).
        let any = Rule {
            host: HostPattern::Any,
            ports: Ports::ALL,
            peer: None,
        };
        let policy = Policy {
            allow: match network.allow.is_empty() {
                true => vec![any],
                false => network.allow.clone(),
            },
            deny: network.deny.clone(),
            protected: reloadable.policy.protected.clone(),
            nat64_prefixes: reloadable.policy.nat64_prefixes.clone(),
        };
        let mut rules = policy.allow.iter().chain(&policy.deny);
        Self {
            has_peers: rules.any(|rule| rule.peer.is_some()) || reloadable.security.has_rules(),
            policy,
            security: reloadable.security.clone(),
            protected: match side {
                Side::Dials => protected.with_listeners(&reloadable.listeners),
                Side::Accepts => protected.clone(),
            },
        }
    }

    fn decide(&self, to: Destination, peer: Option<&str>) -> Decision {
        // No server can listen on port 0, so a packet to port 0 counts as a packet without ports.
        let port = to.port.filter(|port| *port > 0);
        let authorizer = Authorizer {
            allow: &self.policy.allow,
            policy: &self.policy,
            protected: &self.protected,
            peer,
            of_peer: self.security.rules_of(peer),
            is_portless: port.is_none() || to.is_fragment,
        };
        let host = Host::Address(to.address);
        if authorizer.permits(host, to.address, port.unwrap_or(Ports::ALL.last)) {
            return Decision::Permitted;
        }
        match port.is_some_and(|port| authorizer.is_own(to.address, port)) {
            true => Decision::Own,
            false => Decision::Denied,
        }
    }
}

#[cfg(test)]
mod tests;

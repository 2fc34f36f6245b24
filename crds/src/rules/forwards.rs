//! The rules of forwards, and of the policy that dynamic forwards need.

use kube::core::Rule;
use muxtunnel_contract::ports;

use super::{reserved, rule};

/// CEL: the clients of the forward `forward` speak plain TCP, the default.
fn is_tcp(forward: &str) -> String {
    format!("(!has({forward}.listen.protocol) || {forward}.listen.protocol == 'Tcp')")
}

pub(crate) fn listen_ports_unique() -> Rule {
    rule(
        "self.all(f, self.exists_one(g, g.listen.port == f.listen.port))",
        "'listen.port %d is used by more than one forward: choose another port'.format([self.filter(f, !self.exists_one(g, \
         g.listen.port == f.listen.port))[0].listen.port])",
    )
}

pub(crate) fn listen_ports_reserved() -> Rule {
    let reserved = reserved();
    rule(
        format!("self.all(f, !(f.listen.port in {reserved}))"),
        format!(
            "'listen.port %d is reserved: gateways use {} for carriers and {} for their admin \
             endpoint: choose another port'.format([self.filter(f, f.listen.port in {reserved})[0].listen.port])",
            ports::CARRIER,
            ports::ADMIN
        ),
    )
}

pub(crate) fn target_exactly_one() -> Rule {
    rule(
        "!has(self.target) || has(self.target.service) != has(self.target.address)",
        "'forward ' + self.name + ': target needs exactly one of service and address'",
    )
}

pub(crate) fn target_needed() -> Rule {
    rule(
        format!("!{} || has(self.target)", is_tcp("self")),
        "'forward ' + self.name + ': listen.protocol Tcp needs a target: set target, or use Socks5, HttpConnect or Auto, \
         whose clients name their targets'",
    )
}

pub(crate) fn target_forbidden() -> Rule {
    rule(
        "!has(self.listen.protocol) || !(self.listen.protocol in ['Socks5', 'HttpConnect']) || !has(self.target)",
        "'forward ' + self.name + ': with protocol ' + self.listen.protocol + ' each client names its target: remove \
         target, and allow the targets in policy'",
    )
}

pub(crate) fn users_are_asked_for() -> Rule {
    rule(
        format!(
            "!has(self.auth) || (!{} && !has(self.target))",
            is_tcp("self")
        ),
        "'forward ' + self.name + ': gateways do not authenticate clients of a forward with a target: remove auth, or use Socks5, \
         HttpConnect, or Auto without a target'",
    )
}

/// A reverse forward listens for plain TCP, and no header tells the entry the client's address.
pub(crate) fn reverse_is_plain() -> Rule {
    rule(
        format!(
            "!has(self.direction) || self.direction == 'EntryToExit' || ({} && !has(self.proxyProtocol))",
            is_tcp("self")
        ),
        "'forward ' + self.name + ': direction ExitToEntry needs listen.protocol Tcp, and no proxyProtocol'",
    )
}

pub(crate) fn sources_are_native() -> Rule {
    let sends = "has(f.proxyProtocol) && has(f.proxyProtocol.send) && f.proxyProtocol.send";
    rule(
        format!(
            "!has(self.carrier) || self.carrier.protocol == 'Native' || self.forwards.all(f, !({sends}))"
        ),
        format!(
            "'forward %s: proxyProtocol.send needs carrier.protocol Native: %s cannot send the address of the client to \
             the exit'.format([self.forwards.filter(f, {sends})[0].name, self.carrier.protocol])"
        ),
    )
}

/// CEL: `policy` allows targets in addition to those of forwards.
const ALLOWS: &str = "(has(self.policy) && has(self.policy.allow) && self.policy.allow.size() > 0)";

pub(crate) fn forwards_needed() -> Rule {
    rule(
        format!(
            "self.side == 'Rendezvous' || self.forwards.size() > 0 || has(self.network) || (self.side == 'Exit' && {ALLOWS})"
        ),
        "'side ' + self.side + ' needs forwards' + (self.side == 'Exit' ? ', policy.allow' : '') + ' or network'",
    )
}

/// If the exit belongs to another object, the policy of that object applies.
pub(crate) fn dynamic_needs_policy() -> Rule {
    let dynamic = format!("!{} && !has(f.target)", is_tcp("f"));
    rule(
        format!(
            "self.side in ['Entry', 'Rendezvous'] || {ALLOWS} || self.forwards.all(f, !({dynamic}))"
        ),
        format!(
            "'forward %s: each client names its target, and policy permits no targets: set \
             policy.allow'.format([self.forwards.filter(f, {dynamic})[0].name])"
        ),
    )
}

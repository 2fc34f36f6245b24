//! The rules of forwards, and of what dynamic ones need.

use kube::core::Rule;
use muxtunnel_contract::ports;

use super::{reserved, rule};

pub(crate) fn listen_ports_unique() -> Rule {
    rule(
        "self.all(f, self.exists_one(g, g.listen.port == f.listen.port))",
        "'listen.port %d is used by more than one forward'.format([self.filter(f, !self.exists_one(g, \
         g.listen.port == f.listen.port))[0].listen.port])",
    )
}

pub(crate) fn listen_ports_reserved() -> Rule {
    let reserved = reserved();
    rule(
        format!("self.all(f, !(f.listen.port in {reserved}))"),
        format!(
            "'listen.port %d is reserved: gateways use {} for carriers and {} for their admin \
             endpoint'.format([self.filter(f, f.listen.port in {reserved})[0].listen.port])",
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
        "self.listen.protocol != 'Tcp' || has(self.target)",
        "'forward ' + self.name + ': protocol Tcp needs a target; with Socks5, HttpConnect and Auto \
         clients name theirs'",
    )
}

pub(crate) fn target_forbidden() -> Rule {
    rule(
        "!(self.listen.protocol in ['Socks5', 'HttpConnect']) || !has(self.target)",
        "'forward ' + self.name + ': with protocol ' + self.listen.protocol + ' each client names its \
         target: leave target out, and allow theirs in policy'",
    )
}

pub(crate) fn users_are_asked_for() -> Rule {
    rule(
        "!has(self.auth) || (self.listen.protocol != 'Tcp' && !has(self.target))",
        "'forward ' + self.name + ': clients that are led to a target are not asked who they are: leave auth \
         out, or use Socks5, HttpConnect, or Auto without a target'",
    )
}

/// What the exit listens for is plain TCP, and no header tells the entry who came.
pub(crate) fn reverse_is_plain() -> Rule {
    rule(
        "!has(self.direction) || self.direction == 'EntryToExit' || \
         (self.listen.protocol == 'Tcp' && !has(self.proxyProtocol))",
        "'forward ' + self.name + ': direction ExitToEntry is for protocol Tcp without proxyProtocol'",
    )
}

pub(crate) fn sources_are_native() -> Rule {
    let sends = "has(f.proxyProtocol) && has(f.proxyProtocol.send) && f.proxyProtocol.send";
    rule(
        format!(
            "!has(self.carrier) || self.carrier.protocol == 'Native' || self.forwards.all(f, !({sends}))"
        ),
        format!(
            "'forward %s: proxyProtocol.send is for carrier.protocol Native: %s cannot tell the exit who \
             the client is'.format([self.forwards.filter(f, {sends})[0].name, self.carrier.protocol])"
        ),
    )
}

/// CEL: something is allowed beside the targets of forwards.
const ALLOWS: &str = "(has(self.policy) && has(self.policy.allow) && self.policy.allow.size() > 0)";

pub(crate) fn forwards_needed() -> Rule {
    rule(
        format!(
            "self.side == 'Rendezvous' || self.forwards.size() > 0 || has(self.network) || (self.side == 'Exit' && {ALLOWS})"
        ),
        "'side ' + self.side + ' needs at least one of forwards' + (self.side == 'Exit' ? ', or policy.allow' : '') + \
         ', or network'",
    )
}

/// Where the exit is elsewhere, its own object says what may be dialled.
pub(crate) fn dynamic_needs_policy() -> Rule {
    let dynamic = "f.listen.protocol != 'Tcp' && !has(f.target)";
    rule(
        format!(
            "self.side in ['Entry', 'Rendezvous'] || {ALLOWS} || self.forwards.all(f, !({dynamic}))"
        ),
        format!(
            "'forward %s: each client names its target, and without policy.allow none may be \
             dialled'.format([self.forwards.filter(f, {dynamic})[0].name])"
        ),
    )
}

//! The rules of `exit.ssh`.

use kube::core::Rule;
use muxtunnel_contract::ports;

use super::{listens, reserved, rule};

/// CEL: the object has `exit.ssh`.
const HAS: &str = "(has(self.exit) && has(self.exit.ssh))";

pub(crate) fn ssh_is_of_the_exit() -> Rule {
    rule(
        "!has(self.entry) || !has(self.entry.ssh)",
        "'entry.ssh: only exits have an ssh server: use exit.ssh'",
    )
}

pub(crate) fn ssh_needs_an_exit() -> Rule {
    rule(
        format!("self.side != 'Entry' || !{HAS}"),
        "'exit.ssh: side Entry has no exit: set exit.ssh in the MuxTunnel of the exit'",
    )
}

pub(crate) fn ssh_port_reserved() -> Rule {
    rule(
        format!("!(self.port in {})", reserved()),
        format!(
            "'exit.ssh.port %d is reserved: gateways use {} for carriers and {} for their admin endpoint: choose \
             another port'.format([self.port])",
            ports::CARRIER,
            ports::ADMIN
        ),
    )
}

pub(crate) fn ssh_port_is_no_forwards() -> Rule {
    let same = format!("{} && f.listen.port == self.exit.ssh.port", listens("exit"));
    rule(
        format!("!{HAS} || self.forwards.all(f, !({same}))"),
        format!(
            "'forward %s: listen.port %d is also exit.ssh.port: choose another \
             port'.format([self.forwards.filter(f, {same})[0].name, self.exit.ssh.port])"
        ),
    )
}

pub(crate) fn ssh_port_is_no_probe() -> Rule {
    let port = ports::WAN_PROBE;
    rule(
        format!("!has(self.wan) || !{HAS} || self.exit.ssh.port != {port}"),
        format!(
            "'exit.ssh.port {port} is reserved for the probes of WAN emulation while wan is set: choose another port'"
        ),
    )
}

/// The same rule as `listen_from_needed` for the ports of forwards.
pub(crate) fn ssh_from_needed() -> Rule {
    rule(
        "!has(self.service) || !has(self.service.type) || self.service.type == 'ClusterIP' || has(self.from)",
        "'exit.ssh.service of type ' + self.service.type + ' needs exit.ssh.from, the clients that may reach the \
         port: namespaces, podLabels, ipBlocks, or all: true'",
    )
}

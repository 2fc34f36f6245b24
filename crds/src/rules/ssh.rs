//! The rules of the port at which users log in with ssh.

use kube::core::Rule;
use muxtunnel_contract::ports;

use super::{listens, reserved, rule};

/// CEL: there is such a port.
const HAS: &str = "(has(self.exit) && has(self.exit.ssh))";

pub(crate) fn ssh_is_of_the_exit() -> Rule {
    rule(
        "!has(self.entry) || !has(self.entry.ssh)",
        "'entry.ssh: users of ssh log in at the exit, which dials their targets: use exit.ssh'",
    )
}

pub(crate) fn ssh_needs_an_exit() -> Rule {
    rule(
        format!("self.side != 'Entry' || !{HAS}"),
        "'exit.ssh: side Entry has no exit of its own: write it in the MuxTunnel of the exit'",
    )
}

pub(crate) fn ssh_port_reserved() -> Rule {
    rule(
        format!("!(self.port in {})", reserved()),
        format!(
            "'exit.ssh.port %d is reserved: gateways use {} for carriers and {} for their admin endpoint: choose \
             another'.format([self.port])",
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
            "'forward %s: listen.port %d is exit.ssh.port, and the exit listens on both: choose \
             another'.format([self.forwards.filter(f, {same})[0].name, self.exit.ssh.port])"
        ),
    )
}

pub(crate) fn ssh_port_is_no_probe() -> Rule {
    let port = ports::WAN_PROBE;
    rule(
        format!("!has(self.wan) || !{HAS} || self.exit.ssh.port != {port}"),
        format!(
            "'exit.ssh.port {port} is reserved for the probes of WAN emulation while wan is set: choose another'"
        ),
    )
}

/// As the ports of forwards have it.
pub(crate) fn ssh_from_needed() -> Rule {
    rule(
        "!has(self.service) || !has(self.service.type) || self.service.type == 'ClusterIP' || has(self.from)",
        "'exit.ssh.service of type ' + self.service.type + ' needs exit.ssh.from, the clients that reach the port: \
         namespaces, podLabels, ipBlocks, or all: true'",
    )
}

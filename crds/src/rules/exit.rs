//! The rules of a MuxExit.

use kube::core::Rule;
use muxtunnel_contract::ports;

use super::ports::{reserved, reserved_ports};
use super::{excludes, given, no_item, rule};

pub(crate) fn exit_has_work() -> Rule {
    rule(
        format!(
            "{} || {} || has(self.ssh) || has(self.network)",
            given("allow"),
            given("reversePorts")
        ),
        "'a MuxExit needs allow, reversePorts, ssh or network'",
    )
}

pub(crate) fn rendezvous_replaces_the_port() -> Rule {
    excludes(
        &given("rendezvous"),
        "with rendezvous, the exit has no carrier port",
        &["service", "from", "advertisedEndpoint", "trustedProxies[]"],
    )
}

pub(crate) fn ssh_port_reserved() -> Rule {
    rule(
        format!("!has(self.port) || !(self.port in {})", reserved()),
        format!(
            "'ssh.port %d is reserved: {}'.format([self.port])",
            reserved_ports()
        ),
    )
}

pub(crate) fn ssh_port_is_no_reverse_port() -> Rule {
    no_item(
        "!has(self.ssh)",
        "self.reversePorts",
        "f.port == (has(self.ssh.port) ? self.ssh.port : 2222)",
        "reversePorts %s has the port of ssh, %d: choose another port",
        &[".name", ".port"],
    )
}

pub(crate) fn ssh_port_is_no_probe() -> Rule {
    let port = ports::WAN_PROBE;
    rule(
        format!(
            "!has(self.wanEmulation) || !has(self.ssh) || !has(self.ssh.port) || self.ssh.port != {port}"
        ),
        format!(
            "'ssh.port {port} is reserved for the probes of wanEmulation: choose another port'"
        ),
    )
}

pub(crate) fn ssh_from_needed() -> Rule {
    rule(
        "has(self.from) || !has(self.service) || !has(self.service.type) || self.service.type == 'ClusterIP'",
        "'ssh.service of type ' + self.service.type + ' needs ssh.from, the clients that may reach the port'",
    )
}

//! The rules of listening ports.

use kube::core::Rule;
use muxtunnel_contract::ports;

use super::rule;

/// CEL: the ports that gateways use for carriers and the admin endpoint.
pub(super) fn reserved() -> String {
    format!("[{}, {}]", ports::CARRIER, ports::ADMIN)
}

/// The explanation of [`reserved`] in messages.
pub(super) fn reserved_ports() -> String {
    format!(
        "gateways use {} for carriers and {} for their admin endpoint: choose another port",
        ports::CARRIER,
        ports::ADMIN
    )
}

pub(crate) fn ports_unique() -> Rule {
    let shared = "!self.exists_one(g, g.port == f.port)";
    rule(
        format!("self.all(f, !({shared}))"),
        format!(
            "'port %d is used more than once: choose another port'.format([self.filter(f, {shared})[0].port])"
        ),
    )
}

pub(crate) fn ports_reserved() -> Rule {
    let reserved = reserved();
    rule(
        format!("self.all(f, !(f.port in {reserved}))"),
        format!(
            "'%s: port %d is reserved: {}'.format([self.filter(f, f.port in {reserved})[0].name, self.filter(f, f.port \
             in {reserved})[0].port])",
            reserved_ports()
        ),
    )
}

pub(crate) fn ports_are_no_probes(list: &str) -> Rule {
    let port = ports::WAN_PROBE;
    rule(
        format!(
            "!has(self.wanEmulation) || !has(self.{list}) || self.{list}.all(f, f.port != {port})"
        ),
        format!(
            "'{list} %s: port {port} is reserved for the probes of wanEmulation: choose another \
             port'.format([self.{list}.filter(f, f.port == {port})[0].name])"
        ),
    )
}

/// Forwards and proxies are ports of the same gateways.
pub(crate) fn ports_of_one_end() -> Rule {
    let same = "self.proxies.exists(p, p.port == f.port)";
    rule(
        format!("!has(self.forwards) || !has(self.proxies) || self.forwards.all(f, !{same})"),
        format!(
            "'forward %s and a proxy have the same port: choose another port'.format([self.forwards.filter(f, \
             {same})[0].name])"
        ),
    )
}

/// Logs and metrics name a port by its name alone.
pub(crate) fn names_unique(list: &str, other: &str) -> Rule {
    let same = format!("self.{other}.exists(g, g.name == f.name)");
    rule(
        format!("!has(self.{list}) || !has(self.{other}) || self.{list}.all(f, !{same})"),
        format!(
            "'{list} and {other} both have the name %s: choose another name'.format([self.{list}.filter(f, \
             {same})[0].name])"
        ),
    )
}

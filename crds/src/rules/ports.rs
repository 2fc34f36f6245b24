//! The rules of listening ports.

use kube::core::Rule;
use muxtunnel_contract::ports;

use super::no_item;

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
    no_item(
        "",
        "self",
        "!self.exists_one(g, g.port == f.port)",
        "port %d is used more than once: choose another port",
        &[".port"],
    )
}

pub(crate) fn ports_reserved() -> Rule {
    let fault = format!("f.port in {}", reserved());
    let text = format!("%s: port %d is reserved: {}", reserved_ports());
    no_item("", "self", &fault, &text, &[".name", ".port"])
}

pub(crate) fn ports_are_no_probes(list: &str) -> Rule {
    let port = ports::WAN_PROBE;
    let text = format!(
        "{list} %s: port {port} is reserved for the probes of wanEmulation: choose another port"
    );
    let (list, fault) = (format!("self.{list}"), format!("f.port == {port}"));
    no_item("!has(self.wanEmulation)", &list, &fault, &text, &[".name"])
}

/// Forwards and proxies are ports of the same gateways.
pub(crate) fn ports_of_one_end() -> Rule {
    no_item(
        "!has(self.proxies)",
        "self.forwards",
        "self.proxies.exists(p, p.port == f.port)",
        "forward %s and a proxy have the same port: choose another port",
        &[".name"],
    )
}

/// Logs and metrics name a port by its name alone.
pub(crate) fn names_unique(list: &str, other: &str) -> Rule {
    let fault = format!("self.{other}.exists(g, g.name == f.name)");
    let text = format!("{list} and {other} both have the name %s: choose another name");
    let (list, unless) = (format!("self.{list}"), format!("!has(self.{other})"));
    no_item(&unless, &list, &fault, &text, &[".name"])
}

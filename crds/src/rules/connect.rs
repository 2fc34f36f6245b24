//! The rules of a MuxTunnel with and without `connect`.

use kube::core::Rule;

use super::security::mode;
use super::{any, excludes, given, has, no_item, rule};

pub(crate) fn connect_has_an_address() -> Rule {
    rule(
        "has(self.host) != has(self.rendezvous)",
        "'connect ' + self.name + ' needs exactly one of host and rendezvous'",
    )
}

pub(crate) fn connect_has_a_port() -> Rule {
    rule(
        "has(self.host) == has(self.port)",
        "'connect ' + self.name + (has(self.host) ? ': host ' + self.host + ' needs port' : ': port needs host')",
    )
}

pub(crate) fn connect_excludes_an_own_exit() -> Rule {
    excludes(
        &given("connect"),
        "the exits of connect belong to other objects, which have these settings",
        &[
            "exit",
            "allow[]",
            "deny[]",
            "nat64Prefixes[]",
            "security.certificates.entryNames[]",
            "security.certificates.exitNames[]",
            "network.exit.addresses[]",
            "network.exit.forwarding",
            "network.dns",
            "network.allow[]",
            "network.deny[]",
        ],
    )
}

pub(crate) fn certificates_of_own_ends() -> Rule {
    let connect = given("connect");
    rule(
        format!(
            "!{} || {connect} != has(self.security.certificates.exit)",
            has("self.security.certificates")
        ),
        format!(
            "{connect} ? 'the exits of connect have their own certificates: remove security.certificates.exit' : \
             'security.certificates needs exit, the certificate of the exit gateways'"
        ),
    )
}

pub(crate) fn reverse_ports_are_of_the_exit() -> Rule {
    no_item(
        &format!("!{}", given("connect")),
        "self.reverseForwards",
        "has(f.serviceName) || has(f.nodePort) || has(f.from)",
        "reverse forward %s: with connect, the MuxExit has serviceName, nodePort and from of its port: remove them",
        &[".name"],
    )
}

/// The operator knows only the Services of its own cluster.
pub(crate) fn services_are_of_the_exit(list: &str, targets: &str) -> Rule {
    no_item(
        &format!("!{}", given("connect")),
        &format!("self.{list}"),
        &format!("has(f.{targets}) && f.{targets}.exists(t, has(t.serviceRef))"),
        &format!(
            "{list} %s: with connect, the exit dials the target: use host in place of serviceRef"
        ),
        &[".name"],
    )
}

pub(crate) fn exits_have_identities(mode_needed: &str, field: &str) -> Rule {
    let mode = mode();
    let needed = format!("({mode} == '{mode_needed}')");
    let wrong = format!("has(c.{field}) != {needed}");
    let name = format!("self.connect.filter(c, {wrong})[0].name");
    rule(
        format!("!has(self.connect) || self.connect.all(c, !({wrong}))"),
        format!(
            "{needed} ? 'connect %s: security.mode {mode_needed} needs {field} of the exit'.format([{name}]) : \
             'connect %s: security.mode %s has no {field}: remove {field}'.format([{name}, {mode}])"
        ),
    )
}

pub(crate) fn web_socket_hosts_have_a_path() -> Rule {
    no_item(
        &has("self.carrier.webSocket"),
        "self.connect",
        "has(f.webSocket)",
        "connect %s: webSocket needs carrier.webSocket.path",
        &[".name"],
    )
}

/// With certificates, TLS runs outside of the WebSocket connection, so a proxy cannot end it.
pub(crate) fn https_has_no_certificates() -> Rule {
    rule(
        format!(
            "{} != 'Certificates' || !has(self.connect) || !self.connect.exists(c, has(c.webSocket) && \
             has(c.webSocket.scheme) && c.webSocket.scheme == 'HTTPS')",
            mode()
        ),
        "'connect[].webSocket.scheme HTTPS needs security.mode PublicKeys or None, not Certificates'",
    )
}

pub(crate) fn https_has_a_host() -> Rule {
    let https = format!(
        "{} && self.webSocket.scheme == 'HTTPS'",
        has("self.webSocket.scheme")
    );
    rule(
        format!("has(self.host) || !({https})"),
        "'connect ' + self.name + ': webSocket.scheme HTTPS needs host, and is not for a rendezvous'",
    )
}

/// A rendezvous knows an exit by its key.
pub(crate) fn rendezvous_has_keys(field: &str) -> Rule {
    let mode = mode();
    rule(
        format!("!{} || {mode} == 'PublicKeys'", any(field)),
        format!("'a rendezvous needs security.mode PublicKeys, not ' + {mode}"),
    )
}

pub(crate) fn tunnel_has_work() -> Rule {
    rule(
        format!(
            "{} || {} || {} || has(self.network)",
            given("forwards"),
            given("reverseForwards"),
            given("proxies")
        ),
        "'a MuxTunnel needs forwards, reverseForwards, proxies or network'",
    )
}

/// If the exit belongs to another object, the rules of that object apply.
pub(crate) fn proxies_have_targets() -> Rule {
    rule(
        format!(
            "!{} || {} || {}",
            given("proxies"),
            given("allow"),
            given("connect")
        ),
        "'proxy ' + self.proxies[0].name + ': each client names its target, and allow permits no targets: set allow'",
    )
}

//! The rules of a MuxTunnel with and without `connect`.

use kube::core::Rule;

use super::security::mode;
use super::{excludes, given, has, rule};

/// CEL: an exit is reached at a rendezvous.
pub(super) const AT_A_RENDEZVOUS: &str =
    "(has(self.connect) && self.connect.exists(c, has(c.rendezvous)))";

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
    let set = "(has(f.serviceName) || has(f.nodePort) || has(f.from))";
    rule(
        format!(
            "!{} || !has(self.reverseForwards) || self.reverseForwards.all(f, !{set})",
            given("connect")
        ),
        format!(
            "'reverse forward %s: with connect, the MuxExit has serviceName, nodePort and from of its port: remove \
             them'.format([self.reverseForwards.filter(f, {set})[0].name])"
        ),
    )
}

/// The operator knows only the Services of its own cluster.
pub(crate) fn services_are_of_the_exit(list: &str, targets: &str) -> Rule {
    let elsewhere = format!("has(f.{targets}) && f.{targets}.exists(t, has(t.serviceRef))");
    rule(
        format!(
            "!{} || !has(self.{list}) || self.{list}.all(f, !({elsewhere}))",
            given("connect")
        ),
        format!(
            "'{list} %s: with connect, the exit dials the target: use host in place of \
             serviceRef'.format([self.{list}.filter(f, {elsewhere})[0].name])"
        ),
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
    rule(
        format!(
            "!has(self.connect) || {} || self.connect.all(c, !has(c.webSocket))",
            has("self.carrier.webSocket")
        ),
        "'connect %s: webSocket needs carrier.webSocket.path'.format([self.connect.filter(c, \
         has(c.webSocket))[0].name])",
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
pub(crate) fn connected_rendezvous_has_keys() -> Rule {
    rendezvous_has_keys_if(AT_A_RENDEZVOUS)
}

pub(crate) fn rendezvous_has_keys() -> Rule {
    rendezvous_has_keys_if(&given("rendezvous"))
}

fn rendezvous_has_keys_if(condition: &str) -> Rule {
    let mode = mode();
    rule(
        format!("!{condition} || {mode} == 'PublicKeys'"),
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

//! The CEL rules of the schemas, with the messages of the API server's refusals.
//!
//! Each function returns one rule. Messages contain the offending value, so rules have a
//! `messageExpression`. For every rule, `tests/bad_objects` has an object that breaks it. A local
//! test checks these objects with kube's CEL, and an e2e test with an API server, because their
//! results can differ.

mod forwards;
mod network;
mod quic;
mod security;
mod ssh;
mod sysctls;

use kube::core::{Message, Rule};
use muxtunnel_contract::ports;

pub(crate) use forwards::*;
pub(crate) use network::*;
pub(crate) use quic::*;
pub(crate) use security::*;
pub(crate) use ssh::*;
pub use sysctls::is_unsafe_sysctl;
pub(crate) use sysctls::*;

/// Pattern of the name of a Secret. Source: RFC 1123 subdomains as in Kubernetes, except that
/// labels may begin or end with a hyphen.
pub(crate) const SECRET_NAME: &str = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$";

/// Pattern of the key of an entry: `mte`, the separator `1`, and 59 characters of bech32m.
pub(crate) const ENTRY_KEY: &str = "^mte1[02-9ac-hj-np-z]{59}$";
/// Pattern of the key of an exit.
pub(crate) const EXIT_KEY: &str = "^mtx1[02-9ac-hj-np-z]{59}$";

/// Pattern of `host:port`, IPv6 addresses in brackets, ports from 1 to 65535.
pub(crate) const HOST_PORT: &str = "^([-_.a-zA-Z0-9]+|\\[[0-9a-fA-F:.]+\\]):\
     ([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$";
/// Pattern of `host:port` or `host`.
pub(crate) const HOST_MAYBE_PORT: &str = "^([-_.a-zA-Z0-9]+|\\[[0-9a-fA-F:.]+\\])\
     (:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?$";

/// Pattern of a network in CIDR notation. A prefix length of 0 (every address) does not match.
pub(crate) const NETWORK: &str = "^[0-9a-fA-F:.]+/[1-9][0-9]{0,2}$";

/// CEL: the ports that forwards must not use, because gateways use them for carriers and the admin
/// endpoint.
fn reserved() -> String {
    format!("[{}, {}]", ports::CARRIER, ports::ADMIN)
}

/// Builds a rule. A message that quotes an element of a list must use `format`. With `+`, the API
/// server estimates an unbounded length for a result of `filter` or `string`, and refuses the
/// definition.
fn rule(expression: impl Into<String>, message_expression: impl Into<String>) -> Rule {
    Rule::new(expression).message(Message::Expression(message_expression.into()))
}

/// Children have the object's name with a suffix, and the name of a Service must be a DNS-1035
/// label.
pub(crate) fn name(length_max: usize) -> Rule {
    rule(
        format!(
            "self.metadata.name.size() <= {length_max} && \
             self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')"
        ),
        format!(
            "'metadata.name ' + self.metadata.name + ' must be at most {length_max} lower-case \
             letters, digits and hyphens, and begin with a letter'"
        ),
    )
}

/// The name of a peer is the value of a label of metrics.
pub(crate) fn label_name() -> Rule {
    rule(
        "self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && \
         !self.metadata.name.matches('^mt[exr]1')",
        "'metadata.name ' + self.metadata.name + ' must be at most 63 lower-case letters, digits and hyphens, begin \
         and end with a letter or digit, and not begin like a key'",
    )
}

pub(crate) fn side_immutable() -> Rule {
    rule(
        "self == oldSelf",
        "'side cannot be changed from ' + oldSelf + ' to ' + self + ': create another tunnel'",
    )
}

pub(crate) fn carrier_address_needed() -> Rule {
    rule(
        "self.side != 'Entry' || !has(self.carrier) || has(self.carrier.address) != has(self.carrier.rendezvous)",
        "has(self.carrier.address) ? 'carrier.address and carrier.rendezvous exclude each other: remove one of them' : \
         'side Entry needs carrier.address or carrier.rendezvous'",
    )
}

pub(crate) fn carrier_address_forbidden() -> Rule {
    rule(
        "!has(self.carrier) || !has(self.carrier.address) || self.side in ['Entry', 'Rendezvous'] || \
         (self.side == 'Exit' && !has(self.carrier.rendezvous))",
        "self.side == 'Exit' ? 'carrier.address and carrier.rendezvous exclude each other: remove one of them' : \
         'carrier.address ' + self.carrier.address + ' is only for sides Entry and Exit, and side ' + self.side \
         + ' has its own exit: remove carrier.address'",
    )
}

/// An exit can use the port of its Service, but an entry needs a port in the address.
pub(crate) fn carrier_address_has_port() -> Rule {
    rule(
        "self.side != 'Entry' || !has(self.carrier) || !has(self.carrier.address) || \
         self.carrier.address.matches(':[1-9][0-9]{0,4}$')",
        "'invalid carrier.address ' + self.carrier.address + ': expected host:port'",
    )
}

pub(crate) fn meeting_is_of_one_side() -> Rule {
    rule(
        "self.side != 'Both' || !has(self.carrier) || !has(self.carrier.rendezvous)",
        "'carrier.rendezvous ' + self.carrier.rendezvous.address + ' is only for sides Entry and Exit, and the \
         entry of side Both dials its exit: remove carrier.rendezvous'",
    )
}

pub(crate) fn web_socket_host_is_an_entrys() -> Rule {
    rule(
        "self.side != 'Exit' || !has(self.carrier) || !has(self.carrier.webSocket) || \
         !has(self.carrier.webSocket.host)",
        "'carrier.webSocket.host ' + self.carrier.webSocket.host + ' is sent by entries, and side Exit accepts any \
         host: remove carrier.webSocket.host'",
    )
}

pub(crate) fn carrier_needed() -> Rule {
    rule(
        "self.side != 'Entry' || has(self.carrier)",
        "'side ' + self.side + ' needs carrier, with address or rendezvous'",
    )
}

pub(crate) fn rendezvous_needed() -> Rule {
    rule(
        "(self.side == 'Rendezvous') == has(self.rendezvous)",
        "self.side == 'Rendezvous' ? 'side Rendezvous needs rendezvous.secretName, the Secret with the secrets of \
         names' : 'rendezvous is for side Rendezvous, not for side ' + self.side + ': remove rendezvous (sides Entry and \
         Exit name a rendezvous in carrier.rendezvous)'",
    )
}

pub(crate) fn rendezvous_alone() -> Rule {
    rule(
        "self.side != 'Rendezvous' || (self.forwards.size() == 0 && !has(self.carrier) && \
         !has(self.entry) && !has(self.exit) && !has(self.policy) && !has(self.timeouts))",
        "'side Rendezvous has no forwards, carrier, entry, exit, policy or timeouts: set them in the MuxTunnels of the \
         entry and the exit'",
    )
}

/// CEL: whether the gateways of `side` listen for forward `f`.
fn listens(side: &str) -> String {
    let reverse = "(has(f.direction) && f.direction == 'ExitToEntry')";
    match side {
        "exit" => reverse.to_owned(),
        _ => format!("!{reverse}"),
    }
}

/// A forward with `target.service` needs a MuxTunnel that also has the gateways that dial the
/// target, because the operator knows only the Services of its own cluster.
pub(crate) fn service_needs_own_exit() -> Rule {
    let elsewhere = format!(
        "(has(f.target) && has(f.target.service) && ((self.side == 'Entry' && {}) || (self.side == 'Exit' && \
         {})))",
        listens("entry"),
        listens("exit")
    );
    rule(
        format!("self.side == 'Both' || self.forwards.all(f, !{elsewhere})"),
        format!(
            "'forward %s: target.service is not supported with side %s, because this operator does not know the Services \
             of the side that dials the target: use target.address'.format([self.forwards.filter(f, {elsewhere})[0].name, self.side])"
        ),
    )
}

/// Without `from` the NetworkPolicy admits only the tunnel's namespace, so a public port would have
/// no clients.
pub(crate) fn listen_from_needed(side: &str, service: &str) -> Rule {
    let exposed = format!(
        "(has(self.{side}) && has(self.{side}.{service}) && has(self.{side}.{service}.type) && \
         self.{side}.{service}.type != 'ClusterIP')"
    );
    let open = format!("({} && !has(f.listen.from))", listens(side));
    rule(
        format!("!{exposed} || self.forwards.all(f, !{open})"),
        format!(
            "'forward %s: {side}.{service} of type %s needs listen.from, the clients that may reach the port: \
             namespaces, podLabels, ipBlocks, or all: true'.format([self.forwards.filter(f, {open})[0].name, \
             self.{side}.{service}.type])"
        ),
    )
}

pub(crate) fn listen_from_all_or_some() -> Rule {
    let some = "(has(self.namespaces) || has(self.podLabels) || has(self.ipBlocks))";
    rule(
        format!("(has(self.all) && self.all) != {some}"),
        "'listen.from needs either all: true, or some of namespaces, podLabels and ipBlocks'",
    )
}

pub(crate) fn reverse_service_is_of_the_exit() -> Rule {
    rule(
        "!has(self.entry) || !has(self.entry.reverseService)",
        "'entry.reverseService: the exit listens for forwards with direction ExitToEntry: use exit.reverseService'",
    )
}

/// Only exits accept carriers.
pub(crate) fn trusted_proxies_are_of_the_exit() -> Rule {
    rule(
        "!has(self.entry) || !has(self.entry.trustedProxies)",
        "'entry.trustedProxies: only exits have a carrier port: use exit.trustedProxies'",
    )
}

pub(crate) fn trusted_proxies_need_a_port() -> Rule {
    rule(
        "!has(self.exit) || !has(self.exit.trustedProxies) || !has(self.carrier) || !has(self.carrier.rendezvous)",
        "'exit.trustedProxies: with carrier.rendezvous ' + self.carrier.rendezvous.address + ' the exit has no carrier \
         port: set rendezvous.trustedProxies in the MuxTunnel of the rendezvous'",
    )
}

/// Kubernetes refuses `externalTrafficPolicy` for a Service of type ClusterIP, which clients
/// outside the cluster cannot reach.
pub(crate) fn traffic_policy_needs_exposure() -> Rule {
    rule(
        "!has(self.externalTrafficPolicy) || (has(self.type) && self.type != 'ClusterIP')",
        "'externalTrafficPolicy ' + self.externalTrafficPolicy + ' is for type NodePort or LoadBalancer: \
         remove it, or set type'",
    )
}

/// Only some protocols can request a listener from the other side.
pub(crate) fn reverse_needs_listeners() -> Rule {
    rule(
        format!(
            "!has(self.carrier) || self.carrier.protocol in ['Native', 'HTTP2', 'QUIC', 'Auto'] || self.forwards.all(f, {})",
            listens("entry")
        ),
        format!(
            "'forward %s: direction ExitToEntry needs carrier.protocol Native, HTTP2, QUIC or Auto'.format([self.forwards.filter(f, \
             {})[0].name])",
            listens("exit")
        ),
    )
}

pub(crate) fn policy_host_or_cidr() -> Rule {
    rule(
        "has(self.host) != has(self.cidr)",
        "'policy: a rule needs exactly one of host and cidr'",
    )
}

pub(crate) fn policy_ports_in_order() -> Rule {
    rule(
        "!has(self.endPort) || (has(self.port) && self.port <= self.endPort)",
        "'policy: endPort %d needs a port that is not greater than endPort'.format([self.endPort])",
    )
}

pub(crate) fn wan_port_reserved() -> Rule {
    let port = ports::WAN_PROBE;
    rule(
        format!("!has(self.wan) || self.forwards.all(f, f.listen.port != {port})"),
        format!(
            "'forward %s: listen.port {port} is reserved for the probes of WAN emulation while wan is \
             set: choose another port'.format([self.forwards.filter(f, f.listen.port == {port})[0].name])"
        ),
    )
}

/// JMUX cannot add a carrier to a session.
pub(crate) fn pool_has_several() -> Rule {
    rule(
        "self.protocol != 'Jmux' || !has(self.pool)",
        "'carrier.pool is not for protocol Jmux, whose sessions have one carrier: remove carrier.pool'",
    )
}

pub(crate) fn resume_is_native() -> Rule {
    rule(
        "self.protocol in ['Native', 'Auto'] || !has(self.resume)",
        "'carrier.resume is for protocols Native and Auto, and streams of ' + self.protocol + ' end with their carrier: \
         remove carrier.resume'",
    )
}

/// WebSocket runs below the native protocol and JMUX, but not below HTTP.
pub(crate) fn http_is_no_web_socket() -> Rule {
    rule(
        "!(self.protocol in ['HTTP2', 'HBONE']) || !has(self.webSocket)",
        "'carrier.webSocket is for protocols Native, Jmux and Auto, not for ' + self.protocol + ': remove \
         carrier.webSocket'",
    )
}

/// The results show the protocols Native and Auto under one name, Native.
pub(crate) fn native_measured_once() -> Rule {
    rule(
        "!('Native' in self.protocols && 'Auto' in self.protocols)",
        "'protocols: the results name both Native and Auto as Native: remove one of them'",
    )
}

/// `field` applies only to Native and Auto, so the matrix needs one of them. It may also have other
/// protocols.
pub(crate) fn native_measured(field: &str) -> Rule {
    rule(
        format!(
            "!has(self.tunnel.carrier.{field}) || self.protocols.exists(p, p in ['Native', 'Auto'])"
        ),
        format!(
            "'tunnel.carrier.{field} needs protocol Native or Auto in protocols: add one of them, or \
             remove tunnel.carrier.{field}'"
        ),
    )
}

/// Other rules check the transport of QUIC, HTTP/3 and Auto.
pub(crate) fn kcp_is_native() -> Rule {
    rule(
        "!has(self.transport) || self.transport != 'KCP' || self.protocol in ['Native', 'QUIC', 'HTTP3', 'Auto']",
        "'carrier.transport KCP needs protocol Native, because ' + self.protocol + ' runs over TCP'",
    )
}

pub(crate) fn kcp_is_no_tcp() -> Rule {
    let other = "(has(self.webSocket) || has(self.rendezvous) || (has(self.congestionControl) && \
                 self.congestionControl != 'Auto'))";
    rule(
        format!("!has(self.transport) || self.transport != 'KCP' || !{other}"),
        "'carrier.transport KCP runs only on UDP: remove ' + (has(self.webSocket) ? 'carrier.webSocket' : \
         has(self.rendezvous) ? 'carrier.rendezvous' : 'carrier.congestionControl')",
    )
}

pub(crate) fn auto_chooses() -> Rule {
    rule(
        "self.protocol != 'Auto' || !(has(self.transport) || has(self.rendezvous))",
        "'carrier.protocol Auto selects the transport, and needs an exit that entries can dial: remove carrier.' + \
         (has(self.transport) ? 'transport' : 'rendezvous')",
    )
}

/// Trusted proxies send their clients' addresses at the beginning of a TCP connection.
pub(crate) fn kcp_has_no_trusted_proxies() -> Rule {
    rule(
        "!has(self.exit) || !has(self.exit.trustedProxies) || !has(self.carrier) || (self.carrier.protocol != 'Auto' && \
         (!has(self.carrier.transport) || self.carrier.transport != 'KCP'))",
        "'exit.trustedProxies needs carriers over TCP, and ' + (self.carrier.protocol == 'Auto' ? \
         'carrier.protocol Auto also uses UDP' : 'carrier.transport KCP uses UDP') + ': remove exit.trustedProxies'",
    )
}

pub(crate) fn pool_needs_resume() -> Rule {
    rule(
        "!has(self.resume) || self.resume || !has(self.pool) || self.pool.min == 1 && \
         (!has(self.pool.max) || self.pool.max == 1)",
        "'carrier.pool: without carrier.resume a session has one carrier, not %d: remove carrier.pool, or set \
         carrier.resume to true'.format([has(self.pool.max) ? self.pool.max : self.pool.min])",
    )
}

pub(crate) fn pool_in_order() -> Rule {
    rule(
        "!has(self.max) || self.min <= self.max",
        "'carrier.pool: min %d is more than max %d: lower min, or raise max'.format([self.min, self.max])",
    )
}

pub(crate) fn policy_is_of_an_exit() -> Rule {
    rule(
        "self.side != 'Entry' || !has(self.policy)",
        "'policy is for exit gateways, and side Entry has none: set policy in the MuxTunnel of the exit'",
    )
}

pub(crate) fn replicas_or_autoscaling() -> Rule {
    rule(
        "!has(self.replicas) || !has(self.autoscaling)",
        "'replicas %d and autoscaling exclude each other: remove replicas, and set autoscaling.minReplicas and \
         maxReplicas'.format([self.replicas])",
    )
}

pub(crate) fn autoscaling_in_order() -> Rule {
    rule(
        "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
        "'autoscaling: minReplicas %d is more than maxReplicas %d: lower minReplicas, or raise \
         maxReplicas'.format([self.minReplicas, self.maxReplicas])",
    )
}

/// The default CPU request is so small that the usage under any traffic is a multiple of the
/// request.
pub(crate) fn autoscaling_needs_cpu() -> Rule {
    let has_cpu = |kind: &str| {
        format!("(has(self.template.resources.{kind}) && 'cpu' in self.template.resources.{kind})")
    };
    rule(
        format!(
            "!has(self.autoscaling) || (has(self.template) && has(self.template.resources) && ({} || {}))",
            has_cpu("requests"),
            has_cpu("limits")
        ),
        "'autoscaling up to maxReplicas %d measures CPU time in percent of the request: set \
         template.resources.requests.cpu'.format([self.autoscaling.maxReplicas])",
    )
}

/// Gateways use whole seconds, so a fraction of a second would become 0, which disables the
/// time-out.
pub(crate) fn timeout_bounded(field: &str) -> Rule {
    rule(
        "duration(self) == duration('0s') || (duration(self) >= duration('1s') && \
         duration(self) <= duration('720h'))",
        format!("'{field} ' + self + ' is out of range: use 1s to 720h, or 0s for no time-out'"),
    )
}

pub(crate) fn keepalive_bounded() -> Rule {
    rule(
        "duration(self) == duration('0s') || (duration(self) >= duration('1s') && \
         duration(self) <= duration('2h'))",
        "'timeouts.keepalive ' + self + ' is out of range: use 1s to 2h, or 0s for no probes'",
    )
}

pub(crate) fn delay_bounded(field: &str) -> Rule {
    rule(
        "duration(self) <= duration('10s')",
        format!("'{field} ' + self + ' is more than the maximum 10s: set a shorter delay'"),
    )
}

pub(crate) fn jitter_within_delay() -> Rule {
    rule(
        "!has(self.jitter) || duration(self.jitter) <= duration(self.delay)",
        "'wan.jitter ' + self.jitter + ' is more than wan.delay ' + self.delay + ': set a smaller jitter'",
    )
}

pub(crate) fn delays_bounded() -> Rule {
    rule(
        "self.all(d, duration(d) <= duration('10s'))",
        "'delay %s is more than the maximum 10s: set a shorter delay'\
         .format([self.filter(d, duration(d) > duration('10s'))[0]])",
    )
}

pub(crate) fn measurement_bounded() -> Rule {
    rule(
        "duration(self) >= duration('1s') && duration(self) <= duration('1h')",
        "'duration ' + self + ' is out of range: use 1s to 1h'",
    )
}

pub(crate) fn warm_up_shorter() -> Rule {
    rule(
        "duration(self.warmUp) < duration(self.duration)",
        "'warmUp ' + self.warmUp + ' must be shorter than duration ' + self.duration + ', which includes the warm-up'",
    )
}

pub(crate) fn spec_immutable() -> Rule {
    Rule::new("self.spec == oldSelf.spec")
        .message("spec cannot be changed: create another MuxBenchmark")
}

//! The CEL rules of the schemas: what the API server refuses, and the sentence it refuses it with.
//!
//! Each function is one rule. The sentence names the offending value, so rules carry a
//! `messageExpression`. Every rule has an object in `tests/bad_objects` that breaks it; that table runs
//! here against kube's local CEL and in `e2e` against an API server, which do not always agree.

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

/// Pattern of the name of a Secret. Source: RFC 1123 subdomains, as Kubernetes takes them, dots at either end
/// aside.
pub(crate) const SECRET_NAME: &str = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$";

/// Pattern of `host:port`, IPv6 addresses in brackets, ports from 1 to 65535.
pub(crate) const HOST_PORT: &str = "^([-_.a-zA-Z0-9]+|\\[[0-9a-fA-F:.]+\\]):\
     ([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$";
/// The same with a port that may be left out.
pub(crate) const HOST_MAYBE_PORT: &str = "^([-_.a-zA-Z0-9]+|\\[[0-9a-fA-F:.]+\\])\
     (:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?$";

/// Pattern of a network that is not every address.
pub(crate) const NETWORK: &str = "^[0-9a-fA-F:.]+/[1-9][0-9]{0,2}$";

/// CEL: ports that no forward may listen on: carriers, admin endpoint.
fn reserved() -> String {
    format!("[{}, {}]", ports::CARRIER, ports::ADMIN)
}

/// A message that quotes something out of a list uses `format`: the API server takes what `+` joins to
/// be of any length once it has gone through `filter` or `string`, and refuses the definition.
fn rule(expression: impl Into<String>, message_expression: impl Into<String>) -> Rule {
    Rule::new(expression).message(Message::Expression(message_expression.into()))
}

/// Children are named after the object with a suffix, and a Service's name is a DNS-1035 label.
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

pub(crate) fn side_immutable() -> Rule {
    rule(
        "self == oldSelf",
        "'side cannot be changed from ' + oldSelf + ' to ' + self + ': create another tunnel'",
    )
}

pub(crate) fn carrier_address_needed() -> Rule {
    rule(
        "self.side != 'Entry' || !has(self.carrier) || (has(self.carrier.joinFrom) \
         ? !(has(self.carrier.address) && has(self.carrier.rendezvous)) \
         : has(self.carrier.address) != has(self.carrier.rendezvous))",
        "'side ' + self.side + ' needs carrier.address, the host:port of the exit on the other side, or \
         carrier.rendezvous, where both meet, or carrier.joinFrom, the bundle of the exit; and not both of \
         the first two'",
    )
}

pub(crate) fn carrier_address_forbidden() -> Rule {
    rule(
        "!has(self.carrier) || !has(self.carrier.address) || self.side in ['Entry', 'Rendezvous'] || \
         (self.side == 'Exit' && !has(self.carrier.rendezvous))",
        "'carrier.address ' + self.carrier.address + (self.side == 'Exit' ? ' is not dialled: with \
         carrier.rendezvous the exit is met there' : ' is for sides Entry and Exit; side ' + self.side \
         + ' has an exit of its own')",
    )
}

/// An exit's Service may say its port; an entry has nothing else to go by.
pub(crate) fn carrier_address_has_port() -> Rule {
    rule(
        "self.side != 'Entry' || !has(self.carrier) || !has(self.carrier.address) || \
         self.carrier.address.matches(':[1-9][0-9]{0,4}$')",
        "'carrier.address ' + self.carrier.address + ' has no port: an entry dials host:port'",
    )
}

pub(crate) fn join_is_an_entrys() -> Rule {
    rule(
        "self.side == 'Entry' || !has(self.carrier) || !has(self.carrier.joinFrom)",
        "'carrier.joinFrom ' + self.carrier.joinFrom.secretName + ' is for side Entry; side ' + self.side \
         + ' has an exit of its own'",
    )
}

pub(crate) fn join_has_its_own_security() -> Rule {
    rule(
        "!has(self.joinFrom) || !has(self.security)",
        "'carrier.joinFrom ' + self.joinFrom.secretName + ' says how carriers are secured: leave \
         carrier.security out'",
    )
}

pub(crate) fn meeting_is_of_one_side() -> Rule {
    rule(
        "self.side != 'Both' || !has(self.carrier) || !has(self.carrier.rendezvous)",
        "'carrier.rendezvous ' + self.carrier.rendezvous.address + ' is for sides Entry and Exit; with side \
         Both the entry dials the exit'",
    )
}

pub(crate) fn web_socket_host_is_an_entrys() -> Rule {
    rule(
        "self.side != 'Exit' || !has(self.carrier) || !has(self.carrier.webSocket) || \
         !has(self.carrier.webSocket.host)",
        "'carrier.webSocket.host ' + self.carrier.webSocket.host + ' is what an entry asks for; side Exit \
         answers to any'",
    )
}

pub(crate) fn carrier_needed() -> Rule {
    rule(
        "self.side != 'Entry' || has(self.carrier)",
        "'side ' + self.side + ' needs carrier, which says where the exit is'",
    )
}

pub(crate) fn rendezvous_needed() -> Rule {
    rule(
        "(self.side == 'Rendezvous') == has(self.rendezvous)",
        "self.side == 'Rendezvous' ? 'side Rendezvous needs rendezvous, with the secrets of the names' \
         : 'rendezvous is for side Rendezvous; side ' + self.side + ' meets there by carrier.rendezvous'",
    )
}

pub(crate) fn rendezvous_alone() -> Rule {
    rule(
        "self.side != 'Rendezvous' || (self.forwards.size() == 0 && !has(self.carrier) && \
         !has(self.entry) && !has(self.exit) && !has(self.policy) && !has(self.timeouts))",
        "'side Rendezvous joins the carriers of others: forwards, carrier, entry, exit, policy and timeouts \
         belong to the entry and the exit that meet there'",
    )
}

/// CEL: the side whose gateways listen for forward `f` is `side`.
fn listens(side: &str) -> String {
    let reverse = "(has(f.direction) && f.direction == 'ExitToEntry')";
    match side {
        "exit" => reverse.to_owned(),
        _ => format!("!{reverse}"),
    }
}

/// A Service is looked up here, and dialled by gateways of the same object.
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
            "'forward %s: target.service cannot be used with side %s, where targets are dialled \
             elsewhere; use target.address'.format([self.forwards.filter(f, {elsewhere})[0].name, self.side])"
        ),
    )
}

/// Without it the NetworkPolicy would let in the tunnel's namespace alone, and a public port would serve none outside.
pub(crate) fn listen_from_needed(side: &str, service: &str) -> Rule {
    let exposed = format!(
        "(has(self.{side}) && has(self.{side}.{service}) && has(self.{side}.{service}.type) && \
         self.{side}.{service}.type != 'ClusterIP')"
    );
    let open = format!("({} && !has(f.listen.from))", listens(side));
    rule(
        format!("!{exposed} || self.forwards.all(f, !{open})"),
        format!(
            "'forward %s: {side}.{service} of type %s needs listen.from, the clients that reach the port: namespaces, \
             podLabels, ipBlocks, or all: true'.format([self.forwards.filter(f, {open})[0].name, \
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

/// Carriers arrive at exits.
pub(crate) fn trusted_proxies_are_of_the_exit() -> Rule {
    rule(
        "!has(self.entry) || !has(self.entry.trustedProxies)",
        "'entry.trustedProxies: load balancers in front of a carrier port are those of an exit: use \
         exit.trustedProxies'",
    )
}

pub(crate) fn trusted_proxies_need_a_port() -> Rule {
    rule(
        "!has(self.exit) || !has(self.exit.trustedProxies) || !has(self.carrier) || !has(self.carrier.rendezvous)",
        "'exit.trustedProxies: with carrier.rendezvous ' + self.carrier.rendezvous.address + ' the exit has no carrier \
         port: use rendezvous.trustedProxies of the rendezvous'",
    )
}

/// Kubernetes refuses it of a ClusterIP, which nothing outside of the cluster reaches.
pub(crate) fn traffic_policy_needs_exposure() -> Rule {
    rule(
        "!has(self.externalTrafficPolicy) || (has(self.type) && self.type != 'ClusterIP')",
        "'externalTrafficPolicy ' + self.externalTrafficPolicy + ' is for type NodePort or LoadBalancer: nothing \
         outside of the cluster reaches a ClusterIP'",
    )
}

/// Not every protocol can ask the other side to listen.
pub(crate) fn reverse_needs_listeners() -> Rule {
    rule(
        format!(
            "!has(self.carrier) || self.carrier.protocol in ['Native', 'HTTP2', 'QUIC', 'Auto'] || self.forwards.all(f, {})",
            listens("entry")
        ),
        format!(
            "'forward %s: direction ExitToEntry is for carrier.protocol Native, HTTP2, QUIC or Auto'.format([self.forwards.filter(f, \
             {})[0].name])",
            listens("exit")
        ),
    )
}

pub(crate) fn policy_host_or_cidr() -> Rule {
    rule(
        "has(self.host) != has(self.cidr)",
        "'a rule of policy needs exactly one of host and cidr'",
    )
}

pub(crate) fn policy_ports_in_order() -> Rule {
    rule(
        "!has(self.endPort) || (has(self.port) && self.port <= self.endPort)",
        "'policy: endPort %d needs a port that is not more'.format([self.endPort])",
    )
}

pub(crate) fn wan_port_reserved() -> Rule {
    let port = ports::WAN_PROBE;
    rule(
        format!("!has(self.wan) || self.forwards.all(f, f.listen.port != {port})"),
        format!(
            "'forward %s: listen.port {port} is reserved for the probes of WAN emulation while wan is \
             set'.format([self.forwards.filter(f, f.listen.port == {port})[0].name])"
        ),
    )
}

/// JMUX has no word for a further one.
pub(crate) fn pool_has_several() -> Rule {
    rule(
        "self.protocol != 'Jmux' || !has(self.pool)",
        "'carrier.pool is not for protocol Jmux, which has one carrier'",
    )
}

pub(crate) fn resume_is_native() -> Rule {
    rule(
        "self.protocol in ['Native', 'Auto'] || !has(self.resume)",
        "'carrier.resume is for protocols Native and Auto; streams of ' + self.protocol + ' end with their carrier'",
    )
}

/// What runs below the native protocol and JMUX, and not below HTTP.
pub(crate) fn http_is_no_web_socket() -> Rule {
    rule(
        "!(self.protocol in ['HTTP2', 'HBONE']) || !has(self.webSocket)",
        "'carrier.webSocket is for protocols Native and Jmux; ' + self.protocol + ' is HTTP itself'",
    )
}

pub(crate) fn http_speaks_no_noise() -> Rule {
    rule(
        "!(self.protocol in ['HTTP2', 'HBONE']) || !has(self.security) || !has(self.security.mode) || \
         self.security.mode != 'Noise'",
        "'carrier.security.mode Noise is for protocols Native and Jmux: nobody else speaks ' + self.protocol + ' over it'",
    )
}

/// A join bundle's certificates are asked for over the tunnel, by a word of our own.
pub(crate) fn others_do_not_join() -> Rule {
    rule(
        "!(self.protocol in ['HTTP2', 'HBONE', 'QUIC', 'HTTP3']) || !has(self.joinFrom)",
        "'carrier.joinFrom is for protocols Native and Jmux: ' + self.protocol + ' has no word for it'",
    )
}

/// The same of a matrix, where other protocols may be beside it.
pub(crate) fn native_measured(field: &str) -> Rule {
    rule(
        format!(
            "!has(self.tunnel.carrier.{field}) || self.protocols.exists(p, p in ['Native', 'Auto'])"
        ),
        format!("'tunnel.carrier.{field} is for protocol Native, which protocols does not have'"),
    )
}

/// QUIC, HTTP/3 and Auto have rules of their own.
pub(crate) fn kcp_is_native() -> Rule {
    rule(
        "!has(self.transport) || self.transport != 'KCP' || self.protocol in ['Native', 'QUIC', 'HTTP3', 'Auto']",
        "'carrier.transport KCP is for protocol Native; ' + self.protocol + ' is spoken over TCP'",
    )
}

pub(crate) fn kcp_is_no_tcp() -> Rule {
    let other = "(has(self.webSocket) || has(self.rendezvous) || (has(self.congestionControl) && \
                 self.congestionControl != 'Auto'))";
    rule(
        format!("!has(self.transport) || self.transport != 'KCP' || !{other}"),
        "'carrier.transport KCP has no TCP connections: leave ' + (has(self.webSocket) ? 'carrier.webSocket' : \
         has(self.rendezvous) ? 'carrier.rendezvous' : 'carrier.congestionControl') + ' out'",
    )
}

pub(crate) fn auto_chooses() -> Rule {
    rule(
        "self.protocol != 'Auto' || !(has(self.transport) || has(self.rendezvous))",
        "'carrier.protocol Auto chooses what carriers run on, and needs an exit that can be dialled: leave carrier.' + \
         (has(self.transport) ? 'transport' : 'rendezvous') + ' out'",
    )
}

/// They name their clients at the beginning of a TCP connection.
pub(crate) fn kcp_has_no_trusted_proxies() -> Rule {
    rule(
        "!has(self.exit) || !has(self.exit.trustedProxies) || !has(self.carrier) || (self.carrier.protocol != 'Auto' && \
         (!has(self.carrier.transport) || self.carrier.transport != 'KCP'))",
        "'exit.trustedProxies name their clients at the beginning of a TCP connection, and ' + \
         (self.carrier.protocol == 'Auto' ? 'carrier.protocol Auto has other carriers, too' : \
         'carrier.transport KCP has none')",
    )
}

pub(crate) fn pool_needs_resume() -> Rule {
    rule(
        "!has(self.resume) || self.resume || !has(self.pool) || self.pool.min == 1 && \
         (!has(self.pool.max) || self.pool.max == 1)",
        "'carrier.pool: without carrier.resume a session has one carrier, not %d'.format([has(\
         self.pool.max) ? self.pool.max : self.pool.min])",
    )
}

pub(crate) fn pool_in_order() -> Rule {
    rule(
        "!has(self.max) || self.min <= self.max",
        "'carrier.pool: min %d is more than max %d'.format([self.min, self.max])",
    )
}

pub(crate) fn policy_is_of_an_exit() -> Rule {
    rule(
        "self.side != 'Entry' || !has(self.policy)",
        "'policy is what exit gateways go by, and side Entry has none: write it where the exit is'",
    )
}

pub(crate) fn replicas_or_autoscaling() -> Rule {
    rule(
        "!has(self.replicas) || !has(self.autoscaling)",
        "'replicas %d and autoscaling do not go together: leave replicas out, and set autoscaling.minReplicas and \
         maxReplicas'.format([self.replicas])",
    )
}

pub(crate) fn autoscaling_in_order() -> Rule {
    rule(
        "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
        "'autoscaling: minReplicas %d is more than maxReplicas %d'.format([self.minReplicas, self.maxReplicas])",
    )
}

/// The default request is so small that any traffic would be a multiple of it.
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
        "'autoscaling up to maxReplicas %d counts CPU time in parts of what is requested: set \
         template.resources.requests.cpu'.format([self.autoscaling.maxReplicas])",
    )
}

/// Gateways count whole seconds, and a part of one would be none.
pub(crate) fn timeout_bounded(field: &str) -> Rule {
    rule(
        "duration(self) == duration('0s') || (duration(self) >= duration('1s') && \
         duration(self) <= duration('720h'))",
        format!("'{field} ' + self + ' is neither 0s (never) nor from 1s to 720h'"),
    )
}

pub(crate) fn delay_bounded(field: &str) -> Rule {
    rule(
        "duration(self) <= duration('10s')",
        format!("'{field} ' + self + ' is more than 10s'"),
    )
}

pub(crate) fn jitter_within_delay() -> Rule {
    rule(
        "!has(self.jitter) || duration(self.jitter) <= duration(self.delay)",
        "'wan.jitter ' + self.jitter + ' is more than wan.delay ' + self.delay",
    )
}

pub(crate) fn delays_bounded() -> Rule {
    rule(
        "self.all(d, duration(d) <= duration('10s'))",
        "'delay %s is more than 10s'.format([self.filter(d, duration(d) > duration('10s'))[0]])",
    )
}

pub(crate) fn measurement_bounded() -> Rule {
    rule(
        "duration(self) >= duration('1s') && duration(self) <= duration('1h')",
        "'duration ' + self + ' is not from 1s to 1h'",
    )
}

pub(crate) fn warm_up_shorter() -> Rule {
    rule(
        "duration(self.warmUp) < duration(self.duration)",
        "'warmUp ' + self.warmUp + ' must be shorter than duration ' + self.duration + ', of which \
         it is left out'",
    )
}

pub(crate) fn spec_immutable() -> Rule {
    Rule::new("self.spec == oldSelf.spec")
        .message("spec cannot be changed: create another MuxBenchmark")
}

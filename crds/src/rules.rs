//! The CEL rules of the schemas: what the API server refuses, and the sentence it refuses it with.
//!
//! Each function is one rule. The sentence names the offending value, so rules carry a
//! `messageExpression`. Every rule has an object in `tests/bad_objects` that breaks it; that table runs
//! here against kube's local CEL and in `e2e` against an API server, which do not always agree.

use kube::core::{Message, Rule};

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

/// Ports that no forward may listen on: carriers, admin endpoint.
const RESERVED: &str = "[64000, 64001]";

/// Sysctls that exist once a node: they cannot be set for a pod. Source: net/core/sysctl_net_core.c
/// and net/ipv4/sysctl_net_ipv4.c, tables that are registered for the initial namespace alone.
const NOT_NAMESPACED: &str = "['net.core.rmem_max', 'net.core.wmem_max', 'net.core.rmem_default', \
     'net.core.wmem_default', 'net.core.netdev_max_backlog', 'net.core.netdev_budget', \
     'net.core.netdev_budget_usecs', 'net.core.dev_weight', 'net.core.default_qdisc', \
     'net.core.busy_poll', 'net.core.busy_read', 'net.ipv4.tcp_mem', 'net.ipv4.udp_mem', \
     'net.ipv4.tcp_available_congestion_control', 'net.ipv4.tcp_allowed_congestion_control']";

/// Kubernetes' safe set as of 1.32. Source: kubernetes.io, "Using sysctls in a Kubernetes Cluster".
const SAFE: [&str; 11] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Whether Pod Security levels below `privileged` refuse a pod for this sysctl of the spec.
#[must_use]
pub fn is_unsafe_sysctl(name: &str) -> bool {
    !SAFE.contains(&name)
}

/// Set for every gateway, so that a CR cannot undo it.
const OF_THE_OPERATOR: &str = "net.ipv4.ip_unprivileged_port_start";

/// The sysctls that take three values.
const THREE_VALUES: &str = "['net.ipv4.tcp_rmem', 'net.ipv4.tcp_wmem']";

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

/// Only the native protocol can ask the other side to listen.
pub(crate) fn reverse_is_native() -> Rule {
    rule(
        format!(
            "!has(self.carrier) || self.carrier.protocol == 'Native' || self.forwards.all(f, {})",
            listens("entry")
        ),
        format!(
            "'forward %s: direction ExitToEntry is for carrier.protocol Native'.format([self.forwards.filter(f, \
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
    rule(
        "!has(self.wan) || self.forwards.all(f, f.listen.port != 64003)",
        "'forward %s: listen.port 64003 is reserved for the probes of WAN emulation while wan is \
         set'.format([self.forwards.filter(f, f.listen.port == 64003)[0].name])",
    )
}

pub(crate) fn native_alone(field: &str) -> Rule {
    rule(
        format!("self.protocol == 'Native' || !has(self.{field})"),
        format!(
            "'carrier.{field} is for protocol Native; ' + self.protocol + ' has one carrier, which \
             its streams do not outlive'"
        ),
    )
}

/// The same of a matrix, where other protocols may be beside it.
pub(crate) fn native_measured(field: &str) -> Rule {
    rule(
        format!("!has(self.tunnel.carrier.{field}) || self.protocols.exists(p, p == 'Native')"),
        format!(
            "'tunnel.carrier.{field} is for protocol Native, which protocols does not have; %s has one \
             carrier, which its streams do not outlive'.format([self.protocols[0]])"
        ),
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

pub(crate) fn listen_ports_unique() -> Rule {
    rule(
        "self.all(f, self.exists_one(g, g.listen.port == f.listen.port))",
        "'listen.port %d is used by more than one forward'.format([self.filter(f, !self.exists_one(g, \
         g.listen.port == f.listen.port))[0].listen.port])",
    )
}

pub(crate) fn listen_ports_reserved() -> Rule {
    rule(
        format!("self.all(f, !(f.listen.port in {RESERVED}))"),
        format!(
            "'listen.port %d is reserved: gateways use 64000 for carriers and 64001 for their admin \
             endpoint'.format([self.filter(f, f.listen.port in {RESERVED})[0].listen.port])"
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
            "self.side == 'Rendezvous' || self.forwards.size() > 0 || (self.side == 'Exit' && {ALLOWS})"
        ),
        "'side ' + self.side + ' needs at least one of forwards' + (self.side == 'Exit' ? ', or \
         policy.allow' : '')",
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

pub(crate) fn policy_is_of_an_exit() -> Rule {
    rule(
        "self.side != 'Entry' || !has(self.policy)",
        "'policy is what exit gateways go by, and side Entry has none: write it where the exit is'",
    )
}

pub(crate) fn keys_for_nothing(end: &str) -> Rule {
    rule(
        format!("self.mode != 'None' || !has(self.{end})"),
        format!(
            "'security.{end} names keys, but mode None uses none: is MutualTls or Noise meant?'"
        ),
    )
}

pub(crate) fn psk_is_of_noise() -> Rule {
    rule(
        "self.mode == 'Noise' || !has(self.preSharedKey) || !self.preSharedKey",
        "'security.preSharedKey is for mode Noise, not ' + self.mode",
    )
}

pub(crate) fn issuer_is_of_tls() -> Rule {
    rule(
        "self.mode == 'MutualTls' || !has(self.issuerRef)",
        "'security.issuerRef ' + self.issuerRef.name + ' is for mode MutualTls, not ' + self.mode",
    )
}

pub(crate) fn keys_are_somewhere(end: &str) -> Rule {
    rule(
        format!("!has(self.{end}) || has(self.{end}.secretName) != has(self.issuerRef)"),
        format!(
            "has(self.issuerRef) ? 'security.{end}.secretName: with issuerRef cert-manager writes to a Secret of \
             its own: leave it out' : 'security.{end} needs secretName, the Secret with its keys'"
        ),
    )
}

/// Who is at the other end is said by the operator alone where it issues for both; else by the keys of each end.
pub(crate) fn keys_of_each_end() -> Rule {
    let asked = "self.carrier.security";
    let both = format!("(has({asked}.entry) && has({asked}.exit))");
    let managed = format!(
        "({asked}.mode == 'MutualTls' && !has({asked}.issuerRef) && !has({asked}.entry) && !has({asked}.exit))"
    );
    rule(
        format!(
            "!has(self.carrier) || has(self.carrier.joinFrom) || (!has({asked}) ? self.side != 'Entry' : \
             {asked}.mode == 'None' || self.side == 'Rendezvous' || (self.side == 'Entry' ? has({asked}.entry) : \
             self.side == 'Exit' ? ({managed} || has({asked}.exit)) : ({managed} || {both} || \
             (has({asked}.issuerRef) && !has({asked}.entry) && !has({asked}.exit)))))"
        ),
        format!(
            "!has({asked}) ? 'side Entry needs carrier.joinFrom, the bundle of the exit, or carrier.security: \
             nothing else says who the exit is' : 'carrier.security: mode ' + {asked}.mode + ' with side ' + \
             self.side + ' needs ' + (self.side == 'Both' ? 'entry and exit' : self.side == 'Entry' ? 'entry' : \
             'exit') + ', the keys of its gateways'"
        ),
    )
}

pub(crate) fn keys_of_both_ends() -> Rule {
    rule(
        "!has(self.security) || self.security.mode == 'None' || (has(self.security.entry) == \
         has(self.security.exit) && (self.security.mode == 'MutualTls' || has(self.security.entry)))",
        "'security: mode ' + self.security.mode + ' needs entry and exit, the keys of the gateways'",
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

/// CEL: sysctl `s` belongs to a pod's own namespaces. Source: the kubelet's table of namespaced
/// prefixes (pkg/kubelet/sysctl), less what it takes for namespaced by its prefix alone.
fn namespaced() -> String {
    format!(
        "(!(s.name in {NOT_NAMESPACED}) && (s.name.startsWith('net.') || \
         s.name.startsWith('kernel.shm') || s.name.startsWith('kernel.msg') || \
         s.name == 'kernel.sem' || s.name.startsWith('fs.mqueue.')))"
    )
}

pub(crate) fn sysctls_namespaced() -> Rule {
    let namespaced = namespaced();
    rule(
        format!("!has(self.sysctls) || self.sysctls.all(s, {namespaced})"),
        format!(
            "'sysctl %s is not namespaced: it holds for a whole node and cannot be set for a \
             pod'.format([self.sysctls.filter(s, !{namespaced})[0].name])"
        ),
    )
}

pub(crate) fn sysctls_of_the_operator() -> Rule {
    rule(
        format!("!has(self.sysctls) || self.sysctls.all(s, s.name != '{OF_THE_OPERATOR}')"),
        format!(
            "'sysctl {OF_THE_OPERATOR} is set by the operator, so that gateways listen on any port \
             without privileges'"
        ),
    )
}

/// What the two rules above refuse is left to them: it cannot be allowed.
pub(crate) fn sysctls_unsafe() -> Rule {
    let safe = format!(
        "(s.name in ['{}'] || s.name == '{OF_THE_OPERATOR}' || !{})",
        SAFE.join("', '"),
        namespaced()
    );
    rule(
        format!(
            "!has(self.sysctls) || (has(self.allowUnsafe) && self.allowUnsafe) || \
             self.sysctls.all(s, {safe})"
        ),
        format!(
            "'sysctl %s is not in Kubernetes\\' safe set: set allowUnsafe, and allow it on the nodes \
             with --allowed-unsafe-sysctls'.format([self.sysctls.filter(s, !{safe})[0].name])"
        ),
    )
}

/// A malformed value makes the pod's sandbox fail for ever.
pub(crate) fn sysctl_values() -> Rule {
    let fits = format!(
        "(s.name in {THREE_VALUES} ? s.value.matches('^[0-9]{{1,9}} [0-9]{{1,9}} [0-9]{{1,9}}$') : \
         s.name == 'net.ipv4.ip_local_port_range' ? \
         s.value.matches('^[0-9]{{1,5}} [0-9]{{1,5}}$') : true)"
    );
    rule(
        format!("!has(self.sysctls) || self.sysctls.all(s, {fits})"),
        format!(
            "'sysctl %s: the value %s is not what the kernel takes: three numbers of bytes (least, \
             default, most) for tcp_rmem and tcp_wmem, two ports for \
             ip_local_port_range'.format([self.sysctls.filter(s, !{fits})[0].name, \
             self.sysctls.filter(s, !{fits})[0].value])"
        ),
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

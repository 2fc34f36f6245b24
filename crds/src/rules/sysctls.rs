//! The rules of sysctls.

use kube::core::Rule;

use super::rule;

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
const OF_THE_OPERATOR: &str = muxtunnel_contract::sysctls::UNPRIVILEGED_PORT_START.0;

/// The sysctls that take three values.
const THREE_VALUES: &str = "['net.ipv4.tcp_rmem', 'net.ipv4.tcp_wmem']";

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

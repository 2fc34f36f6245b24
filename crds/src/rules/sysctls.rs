//! The rules of sysctls.

use kube::core::Rule;

use super::no_item;

/// Sysctls that exist once per node. A pod cannot set them. Source: net/core/sysctl_net_core.c and
/// net/ipv4/sysctl_net_ipv4.c, tables that are registered only for the initial namespace.
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

/// Whether Pod Security levels other than `privileged` refuse a pod with this sysctl.
#[must_use]
pub fn is_unsafe_sysctl(name: &str) -> bool {
    !SAFE.contains(&name)
}

/// The operator sets this sysctl for every gateway, so an object must not change it.
const OF_THE_OPERATOR: &str = muxtunnel_contract::sysctls::UNPRIVILEGED_PORT_START.0;

/// Sysctls with three values.
const THREE_VALUES: &str = "['net.ipv4.tcp_rmem', 'net.ipv4.tcp_wmem']";

/// CEL: sysctl `f` belongs to a pod's own namespaces. Source: the kubelet's table of namespaced
/// prefixes (pkg/kubelet/sysctl), without sysctls that are not namespaced although their prefix is
/// in that table.
fn namespaced() -> String {
    format!(
        "(!(f.name in {NOT_NAMESPACED}) && (f.name.startsWith('net.') || \
         f.name.startsWith('kernel.shm') || f.name.startsWith('kernel.msg') || \
         f.name == 'kernel.sem' || f.name.startsWith('fs.mqueue.')))"
    )
}

pub(crate) fn sysctls_namespaced() -> Rule {
    no_item(
        "",
        "self.sysctls",
        &format!("!{}", namespaced()),
        "sysctl %s is not namespaced: it applies to a whole node, so a pod cannot have its own value: remove the sysctl",
        &[".name"],
    )
}

pub(crate) fn sysctls_of_the_operator() -> Rule {
    no_item(
        "",
        "self.sysctls",
        &format!("f.name == '{OF_THE_OPERATOR}'"),
        "sysctl %s is set by the operator, so that gateways listen on any port without privileges: remove the sysctl",
        &[".name"],
    )
}

/// This rule accepts the sysctls that the two rules above refuse, because its message recommends
/// `allowUnsafe`, which cannot permit them.
pub(crate) fn sysctls_unsafe() -> Rule {
    let fault = format!(
        "!(f.name in ['{}'] || f.name == '{OF_THE_OPERATOR}' || !{})",
        SAFE.join("', '"),
        namespaced()
    );
    no_item(
        "(has(self.allowUnsafe) && self.allowUnsafe)",
        "self.sysctls",
        &fault,
        "sysctl %s is not in Kubernetes\\' safe set: set allowUnsafe, and permit the sysctl on the nodes with the kubelet \
         flag --allowed-unsafe-sysctls",
        &[".name"],
    )
}

/// With a malformed value, the pod's sandbox never starts.
pub(crate) fn sysctl_values() -> Rule {
    let fault = format!(
        "!(f.name in {THREE_VALUES} ? f.value.matches('^[0-9]{{1,9}} [0-9]{{1,9}} [0-9]{{1,9}}$') : \
         f.name == 'net.ipv4.ip_local_port_range' ? \
         f.value.matches('^[0-9]{{1,5}} [0-9]{{1,5}}$') : true)"
    );
    no_item(
        "",
        "self.sysctls",
        &fault,
        "sysctl %s: the kernel does not accept the value %s: use three numbers of bytes (minimum, default, maximum) for \
         tcp_rmem and tcp_wmem, and two ports for ip_local_port_range",
        &[".name", ".value"],
    )
}

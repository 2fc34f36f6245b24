//! The kernel settings of this network namespace that affect a path's rate.

use std::collections::BTreeMap;

use muxtunnel_contract::sysctls::{RMEM_MAX, WMEM_MAX};

use crate::base::socket_buffers::{self, Buffers};

/// Names of the settings to read, without `net.ipv4.`.
const NAMES: [&str; 14] = [
    "ip_local_port_range",
    "ip_unprivileged_port_start",
    "tcp_congestion_control",
    "tcp_fin_timeout",
    "tcp_keepalive_intvl",
    "tcp_keepalive_probes",
    "tcp_keepalive_time",
    "tcp_mtu_probing",
    "tcp_notsent_lowat",
    "tcp_rmem",
    "tcp_slow_start_after_idle",
    "tcp_syncookies",
    "tcp_window_scaling",
    "tcp_wmem",
];

/// Returns the effective values by dotted name. White space in a value is folded. The result also
/// contains the bounds of the buffers of UDP sockets. Settings that cannot be read are missing.
pub(crate) fn effective() -> BTreeMap<String, String> {
    let read = |name: &&str| {
        let value = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        let folded = value.split_whitespace().collect::<Vec<_>>().join(" ");
        Some((format!("net.ipv4.{name}"), folded))
    };
    let mut values: BTreeMap<_, _> = NAMES.iter().filter_map(read).collect();
    if let Ok(Buffers { receive, send }) = socket_buffers::max() {
        values.insert(RMEM_MAX.to_owned(), receive.to_string());
        values.insert(WMEM_MAX.to_owned(), send.to_string());
    }
    values
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_bounds_of_buffers_are_numbers() {
        let mut values = super::effective();
        for name in ["net.core.rmem_max", "net.core.wmem_max"] {
            let bytes: u64 = values.remove(name).unwrap().parse().unwrap();
            assert!(bytes > 0, "{name}");
        }
    }

    #[test]
    fn buffer_limits_are_three_numbers() {
        let value = super::effective().remove("net.ipv4.tcp_rmem").unwrap();
        assert_eq!(
            value
                .split(' ')
                .filter(|n| n.parse::<u64>().is_ok())
                .count(),
            3
        );
    }
}

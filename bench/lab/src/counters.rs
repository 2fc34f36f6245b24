//! The kernel's counters of a network namespace: `/proc/net/snmp` and `/proc/net/netstat`.

use std::fs;

use anyhow::{Context, Result};
use muxtunnel_testkit::namespace::Namespace;

/// All counters of a namespace at one time.
#[derive(Debug)]
pub(crate) struct Counters(String);

impl Counters {
    /// Reads the counters of a namespace.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub(crate) fn of(namespace: &Namespace) -> Result<Self> {
        let read = ["snmp", "netstat"].map(|table| {
            let path = format!("/proc/thread-self/net/{table}");
            move || fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
        });
        let [snmp, netstat] = namespace.enter(|| read.map(|read| read()))?;
        Ok(Self(snmp? + &netstat?))
    }

    /// The counter `name` of `group`, such as `TCPOFOQueue` of `TcpExt`.
    ///
    /// # Errors
    /// If the kernel does not have the counter.
    pub(crate) fn get(&self, group: &str, name: &str) -> Result<u64> {
        let counter = self.find(group, name);
        counter.with_context(|| format!("the kernel has no counter {name} in the group {group}"))
    }

    /// Each group has two lines: names, and values in the same order.
    fn find(&self, group: &str, name: &str) -> Option<u64> {
        let mut lines = self.0.lines().filter_map(|line| {
            let (own, words) = line.split_once(':')?;
            (own == group).then(|| words.split_whitespace())
        });
        let (mut names, mut values) = (lines.next()?, lines.next()?);
        values.nth(names.position(|own| own == name)?)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_group_and_name() {
        let text = "Tcp: InSegs MaxConn\nTcp: 7 -1\nUdp: InDatagrams RcvbufErrors\nUdp: 12 3\n";
        let counters = Counters(text.to_owned());
        assert_eq!(counters.get("Udp", "RcvbufErrors").unwrap(), 3);
        assert_eq!(counters.get("Tcp", "InSegs").unwrap(), 7);
        assert!(counters.get("Tcp", "MaxConn").is_err());
        assert!(counters.get("Tcp", "RcvbufErrors").is_err());
        assert!(counters.get("Ip", "InDatagrams").is_err());
    }

    #[test]
    fn the_counters_that_the_scenarios_need_are_there() {
        let counters = Counters::of(&Namespace::here().unwrap()).unwrap();
        for (group, name) in [
            ("TcpExt", "TCPOFOQueue"),
            ("Udp", "OutDatagrams"),
            ("Udp", "InDatagrams"),
            ("Udp", "NoPorts"),
            ("Udp", "RcvbufErrors"),
        ] {
            counters.get(group, name).unwrap();
        }
    }
}

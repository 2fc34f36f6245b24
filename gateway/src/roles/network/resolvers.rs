//! The resolvers that an exit assigns to its entries: the configured resolvers, or the resolvers of
//! its own resolv.conf(5).

use std::net::IpAddr;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{NETWORK_DNS_DOMAINS_MAX, NETWORK_DNS_SERVERS_MAX, NetworkDns};
use muxtunnel_proto::{DNS_DOMAINS_MAX, DNS_SERVERS_MAX, is_dns_domain};

// The configuration crate does not depend on the protocol crate, so the bounds are defined twice
// and must be equal.
const _: () = assert!(NETWORK_DNS_SERVERS_MAX == DNS_SERVERS_MAX);
const _: () = assert!(NETWORK_DNS_DOMAINS_MAX == DNS_DOMAINS_MAX);

/// The configuration of the C library's resolver.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Resolvers, and the domains in which names are looked up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Resolvers {
    pub(super) servers: Vec<IpAddr>,
    pub(super) domains: Vec<String>,
}

impl Resolvers {
    /// Works as [`Self::of`] with the `/etc/resolv.conf` of this host.
    pub(super) fn of_host(configured: &NetworkDns, is_reached: impl Fn(IpAddr) -> bool) -> Self {
        let own = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
        let resolvers = Self::of(configured, &own, is_reached);
        if resolvers.servers.is_empty() {
            tracing::warn!(
                code = %Code::NoPackets,
                "No DNS server of {RESOLV_CONF} is within exitCIDRs, so entries get none: set network.dns.servers, or add the server to exitCIDRs"
            );
        }
        resolvers
    }

    /// Returns the configured resolvers. If no servers are configured, returns the servers in
    /// `resolv_conf` that entries can reach.
    fn of(configured: &NetworkDns, resolv_conf: &str, is_reached: impl Fn(IpAddr) -> bool) -> Self {
        if !configured.servers.is_empty() {
            return Self {
                servers: configured.servers.clone(),
                domains: configured.domains.clone(),
            };
        }
        let mut own = Self::read(resolv_conf);
        own.servers.retain(|server| is_reached(*server));
        if !configured.domains.is_empty() {
            own.domains.clone_from(&configured.domains);
        }
        if own.servers.is_empty() {
            own.domains.clear();
        }
        own
    }

    /// Parses resolv.conf(5). If several lines have domains, the last line applies.
    fn read(text: &str) -> Self {
        let mut read = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => read
                    .servers
                    .extend(words.next().and_then(|word| word.parse::<IpAddr>().ok())),
                Some("search" | "domain") => {
                    let names = words.map(|word| word.trim_end_matches('.'));
                    let domains = names.filter(|name| is_dns_domain(name));
                    read.domains = domains.take(DNS_DOMAINS_MAX).map(str::to_owned).collect();
                }
                _ => {}
            }
        }
        read.servers.truncate(DNS_SERVERS_MAX);
        read
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::check_network_dns;
    use muxtunnel_proto::DNS_DOMAIN_BYTES_MAX;

    use super::*;

    const OWN: &str = "# made by somebody\nsearch svc.cluster.local cluster.local. . a\u{e4}\n\
         nameserver 127.0.0.53\nnameserver 10.96.0.10\nnameserver fe80::1%eth0\noptions ndots:5\n";

    fn of(configured: NetworkDns) -> (String, String) {
        let reached = |address: IpAddr| !address.is_loopback();
        let resolvers = Resolvers::of(&configured, OWN, reached);
        (
            format!("{:?}", resolvers.servers),
            resolvers.domains.join(" "),
        )
    }

    #[test]
    fn without_a_configured_resolver_entries_are_told_those_of_the_exit_that_they_reach() {
        let own = (
            "[10.96.0.10]".to_owned(),
            "svc.cluster.local cluster.local".to_owned(),
        );
        assert_eq!(of(NetworkDns::default()), own);
        let domains = vec!["example.com".to_owned()];
        let configured = NetworkDns {
            servers: Vec::new(),
            domains: domains.clone(),
        };
        assert_eq!(of(configured), (own.0, "example.com".to_owned()));
        let configured = NetworkDns {
            servers: vec!["10.0.0.53".parse().unwrap()],
            domains,
        };
        assert_eq!(of(configured).0, "[10.0.0.53]");
        let none = Resolvers::of(&NetworkDns::default(), OWN, |_| false);
        assert_eq!(none, Resolvers::default());
    }

    #[test]
    fn the_configuration_accepts_the_domains_that_the_protocol_carries() {
        let long = "a".repeat(DNS_DOMAIN_BYTES_MAX);
        let longer = format!("{long}a");
        for domain in [
            "a", "A-1_b.c", "", "-a", ".a", "a b", "ä", "a\n", &long, &longer,
        ] {
            let configured = NetworkDns {
                servers: Vec::new(),
                domains: vec![domain.to_owned()],
            };
            let is_accepted = check_network_dns(&configured, &[]).is_ok();
            assert_eq!(is_accepted, is_dns_domain(domain), "{domain:?}");
        }
    }

    #[test]
    fn the_last_line_of_domains_counts_and_what_is_beyond_the_bounds_is_left_out() {
        let text = format!(
            "domain a\nsearch {}\n{}",
            "b ".repeat(9),
            "nameserver 192.0.2.1\n".repeat(9)
        );
        let read = Resolvers::read(&text);
        assert_eq!(read.domains, vec!["b"; DNS_DOMAINS_MAX]);
        assert_eq!(read.servers.len(), DNS_SERVERS_MAX);
        assert_eq!(
            Resolvers::read("nameserver\nsearch\n"),
            Resolvers::default()
        );
    }
}

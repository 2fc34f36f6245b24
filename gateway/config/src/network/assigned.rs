//! Fields for the addresses and DNS servers that an exit assigns to its entries.

use std::net::IpAddr;

use super::{
    NETWORK_CIDRS_MAX, NETWORK_DNS_DOMAINS_MAX, NETWORK_DNS_SERVERS_MAX, Network, NetworkDns,
    check_within, is_plain, is_routed,
};
use crate::{Cidr, Config, ConfigError, Role};

/// Maximum length of a domain in bytes, without the root (RFC 1035, section 2.3.4).
const DNS_DOMAIN_BYTES_MAX: usize = 253;

/// Checks the assigned values, and that they are compatible with the other fields.
pub(super) fn check(config: &Config, network: &Network) -> Result<(), ConfigError> {
    let is_exit = config.role == Role::Exit;
    let of_one_queue = [
        ("pool", is_exit && !network.pool.is_empty()),
        ("setAddresses", network.set_addresses),
        ("dnsFile", network.dns_file.is_some()),
    ];
    let mut fields = of_one_queue.into_iter();
    if let Some((field, _)) = fields.find(|(_, is_there)| *is_there && network.queues > 1) {
        let problem =
            "needs network.queues 1, because a single worker must manage the assigned addresses";
        return Err(ConfigError::field(format!("network.{field}"), problem));
    }
    match is_exit {
        true => check_pool(&network.pool, &network.entry_cidrs)?,
        false => check_accepted(network)?,
    }
    let dns = network.dns.as_ref();
    dns.map_or(Ok(()), |dns| check_network_dns(dns, &network.exit_cidrs))
}

/// Checks the networks from which an entry accepts addresses.
fn check_accepted(network: &Network) -> Result<(), ConfigError> {
    let pools = &network.pool;
    ConfigError::unless_at_most("network.pool", pools.len(), NETWORK_CIDRS_MAX)?;
    ConfigError::each("network.pool", pools, |pool| {
        check_within(*pool, &network.entry_cidrs)
    })?;
    if network.set_addresses && pools.is_empty() {
        let problem =
            "needs network.pool: name the networks from which the exit may assign addresses";
        return Err(ConfigError::field("network.setAddresses", problem));
    }
    Ok(())
}

/// Checks that each network of an exit's [`Network::pool`] is within `entry_cidrs` and has an address for an
/// entry. Also checks that there is at most one network of each IP version.
fn check_pool(pools: &[Cidr], entry_cidrs: &[Cidr]) -> Result<(), ConfigError> {
    for (index, pool) in pools.iter().enumerate() {
        let wrong = |problem: String| {
            let field = format!("network.pool[{index}]");
            Err(ConfigError::field(field, problem))
        };
        let Some(prefix) = pool.network() else {
            return wrong(format!("{pool} is not a network"));
        };
        let is_same = |other: &Cidr| {
            let other = other.network();
            other.is_some_and(|other| other.max_prefix_len() == prefix.max_prefix_len())
        };
        if pools[..index].iter().any(is_same) {
            return wrong("is a second pool of the same IP version: list at most one IPv4 network and one IPv6 \
                 network".to_owned());
        }
        let most = prefix.max_prefix_len() - 2;
        if prefix.prefix_len() > most {
            return wrong(format!(
                "{pool} has no address for an entry: expected a prefix length of at most {most}"
            ));
        }
        check_within(*pool, entry_cidrs).or_else(wrong)?;
    }
    Ok(())
}

/// Checks that the servers of [`Network::dns`] are within `exit_cidrs`, so that entries reach them,
/// and that the domains are valid.
///
/// # Errors
/// The first field that is wrong, and why.
pub fn check_network_dns(dns: &NetworkDns, exit_cidrs: &[Cidr]) -> Result<(), ConfigError> {
    let (servers, domains) = (dns.servers.len(), dns.domains.len());
    ConfigError::unless_at_most("network.dns.servers", servers, NETWORK_DNS_SERVERS_MAX)?;
    ConfigError::unless_at_most("network.dns.domains", domains, NETWORK_DNS_DOMAINS_MAX)?;
    let is_there =
        |server: IpAddr| is_routed(server) && exit_cidrs.iter().any(|all| all.contains(server));
    ConfigError::each(
        "network.dns.servers",
        &dns.servers,
        |server| match is_there(*server) {
            true => Ok(()),
            false => Err(format!(
                "{server} is not within exitCIDRs, or is a loopback, link-local or multicast address, so entries cannot reach it"
            )),
        },
    )?;
    ConfigError::each(
        "network.dns.domains",
        &dns.domains,
        |domain| match is_plain(domain, DNS_DOMAIN_BYTES_MAX) {
            true => Ok(()),
            false => Err(format!("{domain:?} is not a domain")),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(role: &str, rest: &str) -> String {
        let side = match role {
            "Exit" => "listen: 0.0.0.0:64000",
            _ => "connect: [{name: far, address: 'exit.example.com:64000'}]",
        };
        let text = format!(
            "role: {role}\n{side}\nsecurity: {{mode: None}}\n\
             network: {{entryCIDRs: [10.72.0.0/24, 'fd72::/64'], exitCIDRs: [10.0.0.0/8], {rest}}}\n"
        );
        match Config::from_yaml(&text) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn each_entry_has_an_address_of_a_pool_within_the_entries_networks() {
        for rest in [
            "pool: [10.72.0.0/24]",
            "pool: [10.72.0.128/25, 'fd72::/64']",
            "pool: ['fd72::/126'], dns: {}",
        ] {
            assert_eq!(problem("Exit", rest), "", "{rest}");
        }
        for (rest, field) in [
            (
                "pool: [10.72.0.0/23]",
                "network.pool[0]: 10.72.0.0/23 is not",
            ),
            (
                "pool: [10.72.0.0/31]",
                "network.pool[0]: 10.72.0.0/31 has no",
            ),
            ("pool: ['fd72::/127']", "network.pool[0]: fd72::/127 has no"),
            (
                "pool: [10.72.0.0/25, 10.72.0.128/25]",
                "network.pool[1]: is a second pool",
            ),
        ] {
            let problem = problem("Exit", rest);
            assert!(problem.contains(field), "{rest}: {problem}");
        }
    }

    #[test]
    fn entries_reach_the_resolvers_that_they_are_told() {
        let good = "dns: {servers: [10.96.0.10], domains: [svc.cluster.local, corp_1]}";
        assert_eq!(problem("Exit", good), "");
        for (rest, field) in [
            ("servers: [192.0.2.1]", "network.dns.servers[0]: 192.0.2.1"),
            ("servers: [10.0.0.1, 127.0.0.53]", "network.dns.servers[1]"),
            (
                "servers: [10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4]",
                "network.dns.servers: has 4 entries, at most 3",
            ),
            ("domains: ['a b']", "network.dns.domains[0]: \"a b\""),
            ("domains: ['']", "network.dns.domains[0]"),
            (
                "domains: [a, b, c, d, e, f, g]",
                "network.dns.domains: has 7 entries, at most 6",
            ),
        ] {
            let problem = problem("Exit", &format!("dns: {{{rest}}}"));
            assert!(problem.contains(field), "{rest}: {problem}");
        }
    }

    #[test]
    fn an_exit_assigns_and_an_entry_is_assigned() {
        for rest in [
            "setAddresses: true, pool: [10.72.0.7]",
            "dnsFile: /run/resolv.conf",
            "pool: [10.72.0.0/25, 10.72.0.128/25, 'fd72::/64']",
        ] {
            assert_eq!(problem("Entry", rest), "", "{rest}");
        }
        for (rest, field) in [
            (
                "setAddresses: true",
                "network.setAddresses: needs network.pool",
            ),
            (
                "pool: [10.73.0.0/24]",
                "network.pool[0]: 10.73.0.0/24 is not within entryCIDRs",
            ),
        ] {
            let problem = problem("Entry", rest);
            assert!(problem.contains(field), "{rest}: {problem}");
        }
        for rest in ["setAddresses: true", "dnsFile: /run/resolv.conf"] {
            let refused = problem("Exit", rest);
            assert!(
                refused.contains(
                    "only an entry receives assigned addresses and DNS servers: remove the field"
                ),
                "{refused}"
            );
        }
        let refused = problem("Entry", "dns: {}");
        assert!(
            refused.contains("only an exit assigns DNS servers: remove the field"),
            "{refused}"
        );
    }

    #[test]
    fn one_worker_knows_who_has_which_address() {
        for (role, field, rest) in [
            ("Exit", "pool", "pool: [10.72.0.0/24]"),
            (
                "Entry",
                "setAddresses",
                "setAddresses: true, pool: [10.72.0.0/24]",
            ),
            ("Entry", "dnsFile", "dnsFile: /run/resolv.conf"),
        ] {
            assert_eq!(problem(role, &format!("{rest}, queues: 1")), "", "{rest}");
            let refused = problem(role, &format!("{rest}, queues: 2"));
            assert!(
                refused.contains(&format!("network.{field}: needs network.queues 1")),
                "{refused}"
            );
        }
        assert_eq!(problem("Exit", "dns: {}, queues: 2"), "");
    }
}

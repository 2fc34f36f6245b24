//! IP packets between the networks of both sides.

use std::net::IpAddr;

use muxtunnel_gateway_config::NetworkDns;

use super::build::{config, pod};
use super::*;

const NETWORK: &str = "network: {entry: {cidrs: [10.72.0.1/32], addresses: [10.72.0.1]}, \
    exit: {cidrs: [10.72.0.2/32, 'fd00:72::/64'], addresses: [10.72.0.2]}, deny: [{cidr: 10.72.0.2/32, port: 25}]}\n";

#[test]
fn both_gateways_have_the_networks_and_one_worker_and_the_exit_alone_has_rules() {
    let tunnel = built(NETWORK);
    for (name, rules) in [("office-entry", 0), ("office-tunnel-exit", 1)] {
        let config = config(&tunnel, name);
        let network = config.network.unwrap();
        assert_eq!((config.workers, network.mtu), (Some(1), 1500), "{name}");
        assert_eq!(network.node, "/run/muxtunnel/tun");
        assert_eq!(
            (network.entry_cidrs.len(), network.exit_cidrs.len()),
            (1, 2)
        );
        assert_eq!(network.deny.len(), rules, "{name}");
    }
}

#[test]
fn gateways_have_a_worker_for_each_queue_of_an_interface_that_was_made_for_several() {
    let tunnel = built(&NETWORK.replace("deny:", "queues: 2, deny:"));
    for name in ["office-entry", "office-tunnel-exit"] {
        let config = config(&tunnel, name);
        let queues = config.network.unwrap().queues;
        assert_eq!((config.workers, queues), (Some(2), 2), "{name}");
        let args = pod(&tunnel, name)["spec"]["initContainers"][0]["args"].clone();
        let args = args.as_array().unwrap();
        assert!(
            args.windows(2).any(|pair| pair == ["--queues", "2"]),
            "{name}: {args:?}"
        );
    }
}

#[test]
fn the_init_container_alone_has_capabilities_and_makes_the_interface_of_its_end() {
    let tunnel = built(NETWORK);
    for (name, address, routes) in [
        (
            "office-entry",
            "10.72.0.1",
            vec!["10.72.0.2", "fd00:72::/64"],
        ),
        ("office-tunnel-exit", "10.72.0.2", vec!["10.72.0.1"]),
    ] {
        let spec = &pod(&tunnel, name)["spec"];
        let init = &spec["initContainers"][0];
        let mut args = vec![
            "tun",
            "create",
            "--device",
            "mux0",
            "--device-node",
            "/run/muxtunnel/tun",
            "--owner",
            "65532",
            "--mtu",
            "1500",
            "--address",
            address,
        ];
        args.extend(routes.into_iter().flat_map(|route| ["--route", route]));
        assert_eq!(init["args"], json!(args), "{name}");
        let capabilities = json!({"drop": ["ALL"], "add": ["NET_ADMIN", "MKNOD"]});
        assert_eq!(init["securityContext"]["capabilities"], capabilities);
        let gateway = &spec["containers"][0];
        assert_eq!(
            gateway["securityContext"]["capabilities"],
            json!({"drop": ["ALL"]})
        );
        let mounts = gateway["volumeMounts"].as_array().unwrap();
        let node = json!({"name": "tun", "mountPath": "/run/muxtunnel", "readOnly": true});
        assert!(mounts.contains(&node), "{name}: {mounts:?}");
    }
}

#[test]
fn each_gateway_forwards_as_its_own_end_says() {
    let arguments = |entry: &str, exit: &str| {
        let spec = format!(
            "network: {{entry: {{cidrs: [10.72.0.1/32]{entry}}}, exit: {{cidrs: [10.96.0.0/16]{exit}}}}}\n"
        );
        let tunnel = built(&spec);
        [
            ("office-entry", "10.96.0.0/16"),
            ("office-tunnel-exit", "10.72.0.1"),
        ]
        .map(|(name, route)| {
            let args = pod(&tunnel, name)["spec"]["initContainers"][0]["args"].clone();
            let args = args.as_array().unwrap().iter();
            let args = args.map(|arg| arg.as_str().unwrap().to_owned());
            let args = args.skip_while(|arg| arg != route).skip(1);
            args.collect::<Vec<_>>().join(" ")
        })
    };
    let (route, snat) = (", forwarding: Route", ", forwarding: SNAT");
    assert_eq!(arguments("", ""), ["", ""]);
    assert_eq!(arguments(route, ""), ["--forward", ""]);
    assert_eq!(arguments("", route), ["", "--forward"]);
    assert_eq!(arguments("", snat), ["", "--forward --masquerade out"]);
    let addressed = format!("{snat}, addresses: [10.72.0.1]");
    assert_eq!(arguments(&addressed, ""), ["--forward --masquerade in", ""]);
}

#[test]
fn an_entry_knows_the_protected_addresses_of_its_side() {
    let spec = format!("nat64Prefixes: ['2001:db8:64::/96']\n{NETWORK}");
    let tunnel = built(&spec);
    for name in ["office-entry", "office-tunnel-exit"] {
        let prefixes = config(&tunnel, name).nat64_prefixes;
        assert_eq!(prefixes.len(), 1, "{name}");
    }
}

/// The spec of an exit for several entries, with more fields of its network.
fn hub(fields: &str) -> String {
    format!(
        "kind: MuxExit\nnetwork: {{peerCIDRs: [10.72.0.0/24, 'fd72::/64'], cidrs: [10.72.0.1/32, 10.96.0.0/16], \
         addresses: [10.72.0.1]{fields}}}\n"
    )
}

#[test]
fn an_exit_assigns_addresses_of_its_pool_and_names_dns_servers() {
    let exit = built(&hub(
        ", addressPools: [10.72.0.0/24, 'fd72::/64'], dns: {servers: [10.96.0.10], domains: [cluster.local]}",
    ));
    let network = config(&exit, "office-exit").network.unwrap();
    let pool: Vec<_> = network.pool.iter().map(ToString::to_string).collect();
    assert_eq!(pool, ["10.72.0.0/24", "fd72::/64"]);
    let dns = network.dns.unwrap();
    assert_eq!(dns.servers, ["10.96.0.10".parse::<IpAddr>().unwrap()]);
    assert_eq!(dns.domains, ["cluster.local"]);
    // The exit routes the whole pool to its interface.
    let args = &pod(&exit, "office-exit")["spec"]["initContainers"][0]["args"];
    let args = args.as_array().unwrap();
    for pair in [["--route", "10.72.0.0/24"], ["--route", "fd72::/64"]] {
        assert!(args.windows(2).any(|args| args == pair), "{args:?}");
    }
    let own = built(&hub(", dns: {}"));
    let own = config(&own, "office-exit").network.unwrap();
    assert_eq!((own.pool.len(), own.dns), (0, Some(NetworkDns::default())));
    let both = built(&NETWORK.replace("deny:", "dns: {servers: [10.72.0.2]}, deny:"));
    let dns = |name| config(&both, name).network.unwrap().dns.is_some();
    assert_eq!(
        (dns("office-tunnel-exit"), dns("office-entry")),
        (true, false)
    );
}

#[test]
fn an_entry_whose_exit_is_elsewhere_has_its_networks() {
    let spec = format!(
        "{ELSEWHERE}network: {{entry: {{cidrs: [10.72.0.1/32]}}, exit: {{cidrs: [10.96.0.0/16]}}}}\n"
    );
    let network = config(&built(&spec), "office-entry").network.unwrap();
    assert_eq!(
        (network.entry_cidrs.len(), network.exit_cidrs.len()),
        (1, 1)
    );
}

#[test]
fn a_pool_that_has_no_addresses_for_entries_is_refused() {
    for (fields, sentence) in [
        ("addressPools: [10.73.0.0/24]", "10.73.0.0/24 is not within"),
        (
            "addressPools: [10.72.0.0/31]",
            "10.72.0.0/31 has no address",
        ),
        (
            "addressPools: [10.72.0.0/25, 10.72.0.128/25]",
            "is a second pool",
        ),
        (
            "addressPools: [10.72.0.0/24], queues: 2",
            "needs network.queues 1",
        ),
        (
            "dns: {servers: [192.0.2.1]}",
            "network.dns.servers[0]: 192.0.2.1 is not within",
        ),
        (
            "dns: {domains: ['a b']}",
            "network.dns.domains[0]: \"a b\" is not a domain",
        ),
    ] {
        let problem = refusal(&hub(&format!(", {fields}")));
        assert!(problem.contains(sentence), "{fields}: {problem}");
    }
}

#[test]
fn what_does_not_go_together_is_refused_with_a_sentence() {
    let with = |entry: &str, exit: &str, more: &str| {
        format!(
            "network: {{entry: {{cidrs: [10.72.0.1/32]{entry}}}, exit: {{cidrs: [10.72.0.2/32]{exit}}}{more}}}\n"
        )
    };
    assert_refused([
        (
            with(", addresses: [10.72.0.9]", "", ""),
            "network.entry.addresses[0]: 10.72.0.9 is not within",
        ),
        (
            with("", "", ", deny: [{endPort: 3}]"),
            "network.deny[0]: endPort needs a port",
        ),
        (
            with(", forwarding: SNAT", "", ""),
            "network.entry.forwarding: SNAT needs network.entry.addresses",
        ),
    ]);
    let without = class_with(|spec| spec["permitted"]["features"] = json!(["WANEmulation"]));
    assert!(refusal_with(NETWORK, without).starts_with("network needs the feature Network"));
}

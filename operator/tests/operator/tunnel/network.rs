//! IP packets between the networks of both sides.

use super::build::{config, pod};
use super::*;

const NETWORK: &str = "network: {entryCIDRs: [10.72.0.1/32], exitCIDRs: [10.72.0.2/32, 'fd00:72::/64'], \
    entryAddresses: [10.72.0.1], exitAddresses: [10.72.0.2], deny: [{cidr: 10.72.0.2/32, port: 25}]}\n";

fn refusal(spec: &str, settings: &Settings) -> String {
    match validate(&tunnel(spec), &shop(), settings) {
        Err(Hindrance::Invalid(problem)) => problem,
        other => panic!("accepted: {other:?}"),
    }
}

#[test]
fn both_gateways_have_the_networks_and_one_worker_and_the_exit_alone_has_rules() {
    let tunnel = built(NETWORK);
    for (name, rules) in [("office-entry", 0), ("office-exit", 1)] {
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
    for name in ["office-entry", "office-exit"] {
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
        ("office-exit", "10.72.0.2", vec!["10.72.0.1"]),
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
fn gateways_that_translate_sources_pass_packets_on_as_well() {
    let arguments = |more: &str| {
        let spec =
            format!("network: {{entryCIDRs: [10.72.0.1/32], exitCIDRs: [10.96.0.0/16]{more}}}\n");
        let args = pod(&built(&spec), "office-exit")["spec"]["initContainers"][0]["args"].clone();
        let args = args
            .as_array()
            .unwrap()
            .iter()
            .map(|arg| arg.as_str().unwrap().to_owned());
        args.skip_while(|arg| arg != "10.72.0.1")
            .skip(1)
            .collect::<Vec<_>>()
    };
    assert_eq!(arguments(""), [""; 0]);
    assert_eq!(arguments(", forward: true"), ["--forward"]);
    assert_eq!(arguments(", snat: true"), ["--forward", "--masquerade"]);
}

#[test]
fn what_does_not_go_together_is_refused_with_a_sentence() {
    let with = |fields: &str| {
        format!("network: {{entryCIDRs: [10.72.0.1/32], exitCIDRs: [10.72.0.2/32]{fields}}}\n")
    };
    for (spec, sentence) in [
        (
            with(", entryAddresses: [10.72.0.9]"),
            "network.entryAddresses[0]: 10.72.0.9 is not within",
        ),
        (
            with(", exitAddresses: [--forward]"),
            "network.exitAddresses[0]: \"--forward\" is no address",
        ),
        (
            format!("{}entry: {{replicas: 2}}\n", with("")),
            "network: its packets go through one entry gateway",
        ),
        (
            with(", peersReachEachOther: true"),
            "network.peers and network.peersReachEachOther are for side Exit",
        ),
        (
            with(", deny: [{endPort: 3}]"),
            "network.deny[0]: endPort needs a port",
        ),
    ] {
        let problem = refusal(&spec, &settings());
        assert!(problem.starts_with(sentence), "{spec}: {problem}");
    }
    let without = Settings {
        network: false,
        ..settings()
    };
    assert!(refusal(NETWORK, &without).contains("network.enabled=true"));
}

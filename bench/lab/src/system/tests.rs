use super::*;
use crate::topology::Topology;

const LIMITS: Limits = Limits {
    streams: 1024,
    receive_bytes: 64 << 20,
    retain_bytes: 16 << 20,
};

/// The command lines of a system over veth, without the folder of its files.
fn lines(system: System) -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let lines = lines_with(system, folder.path(), None);
    (folder, lines)
}

/// The command lines of a system with its files in `folder`, or with the files of another lab.
fn lines_with(system: System, folder: &Path, files: Option<&Path>) -> Vec<String> {
    let setup = Setup {
        addresses: Topology::Veth.addresses(),
        muxgate: Muxgate {
            program: Path::new("muxgate"),
            files,
        },
        limits: LIMITS,
        folder,
    };
    system
        .launches(&setup)
        .unwrap()
        .into_iter()
        .map(|launch| {
            format!(
                "{} {}",
                launch.program.display(),
                launch.arguments.join(" ")
            )
        })
        .map(|line| line.replace(&format!("{}/", folder.display()), ""))
        .collect()
}

#[test]
fn the_gateways_of_another_tree_run_with_the_files_of_its_lab() {
    let folder = tempfile::tempdir().unwrap();
    let lines = lines_with(
        System::MuxgateKeys,
        folder.path(),
        Some(Path::new("/other")),
    );
    assert_eq!(
        lines,
        [
            "muxgate run --config /other/muxgate-exit.yaml",
            "muxgate run --config /other/muxgate-entry.yaml"
        ]
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_direct_connection_has_no_processes() {
    assert!(lines(System::Direct).1.is_empty());
    let addresses = Topology::Veth.addresses();
    let address = System::Direct.address(Service::Iperf2, &addresses);
    assert_eq!(address.to_string(), "10.70.4.2:5001");
}

#[test]
fn the_gateways_forward_all_servers_with_the_limits_of_the_scenario() {
    let (folder, lines) = lines(System::MuxgateJmux);
    assert_eq!(
        lines,
        [
            "muxgate run --config muxgate-exit.yaml",
            "muxgate run --config muxgate-entry.yaml"
        ]
    );
    let read = |name| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(folder.path().join(name)).unwrap()).unwrap()
    };
    let (exit, entry) = (read("muxgate-exit.yaml"), read("muxgate-entry.yaml"));
    assert_eq!(exit["listen"], entry["connect"][0]["address"]);
    let allowed = serde_json::json!({"cidr": "10.70.3.2/32", "port": 5002});
    assert_eq!(exit["allow"][1], allowed);
    assert_eq!(entry["forwards"][1]["listen"], "10.70.1.2:6002");
    assert_eq!(entry["memory"]["receive"], "67108864");
    assert_eq!(exit["memory"]["retain"], "16777216");
    assert_eq!(entry["limits"]["streams"], 1024);
}

#[test]
fn with_reverse_forwards_the_targets_side_dials_the_carriers() {
    let (folder, _) = lines(System::MuxgateReverse);
    let read = |name| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(folder.path().join(name)).unwrap()).unwrap()
    };
    let (exit, entry) = (read("muxgate-exit.yaml"), read("muxgate-entry.yaml"));
    assert_eq!(exit["listen"], "10.70.2.1:6100");
    assert_eq!(exit["allowListen"][1], "10.70.1.2:6002");
    assert_eq!(entry["reverseForwards"][1]["listen"], "10.70.1.2:6002");
}

#[test]
fn both_ends_over_tls_have_certificates_of_one_authority() {
    let (folder, _) = lines(System::MuxgateTls);
    for name in ["muxgate-entry.yaml", "muxgate-exit.yaml"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let config: serde_json::Value = serde_json::from_str(&text).unwrap();
        for file in ["certificate", "key", "ca"] {
            let path = config["security"][file].as_str().unwrap();
            assert!(std::fs::exists(path).unwrap(), "{path}");
        }
    }
}

#[test]
fn a_client_that_knows_no_proxy_is_given_one() {
    let client = |system, prefix: &[&str]| {
        let running = Running {
            system,
            processes: Vec::new(),
            client_prefix: prefix.iter().map(|&word| word.to_owned()).collect(),
        };
        running.client(Path::new("/iperf"), vec!["-c".to_owned()])
    };
    let (program, arguments) = client(System::MuxgateNative, &[]);
    assert_eq!(
        (program, arguments),
        ("/iperf".into(), vec!["-c".to_owned()])
    );
    let (program, arguments) = client(System::MuxgateSocks5, &["/proxychains4", "-q"]);
    assert_eq!(program, Path::new("/proxychains4"));
    assert_eq!(arguments, ["-q", "/iperf", "-c"]);
    let addresses = Topology::Veth.addresses();
    let address = System::MuxgateSocks5.address(Service::Iperf2, &addresses);
    assert_eq!(address.to_string(), "10.70.3.2:5001");
}

#[test]
fn ssh_forwards_from_the_side_of_the_targets_as_well() {
    let lines = lines(System::OpensshReverse).1;
    assert!(
        lines[1].contains(" -R 10.70.1.2:6001:10.70.3.2:5001 "),
        "{lines:?}"
    );
    assert!(lines[1].ends_with("root@10.70.2.1"), "{lines:?}");
}

#[test]
fn jetsocat_runs_with_its_users_command_line() {
    assert_eq!(
        lines(System::Jetsocat).1,
        [
            "jetsocat jmux-proxy tcp-listen://10.70.2.2:6100 --allow-all --log-term",
            "jetsocat jmux-proxy tcp://10.70.2.2:6100 tcp-listen://10.70.1.2:6001/10.70.3.2:5001 \
             tcp-listen://10.70.1.2:6002/10.70.3.2:5002 \
             tcp-listen://10.70.1.2:6201/10.70.3.2:5201 --log-term",
        ]
    );
}

#[test]
fn two_relays_in_a_row_lead_to_the_target() {
    let lines = lines(System::RelaySplice).1;
    assert!(lines[0].contains("relay --mode splice --forward 10.70.2.2:7001=10.70.3.2:5001"));
    assert!(lines[1].contains("relay --mode splice --forward 10.70.1.2:6001=10.70.2.2:7001"));
}

#[test]
fn the_servers_of_rathole_and_frp_stand_where_visitors_come() {
    for (system, file) in [
        (System::Rathole, "rathole-server.toml"),
        (System::Frp, "frps.toml"),
        (System::FrpStcp, "frps.toml"),
    ] {
        let (folder, lines) = lines(system);
        assert!(lines[0].ends_with(file), "{lines:?}");
        let text = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(text.contains("10.70.2.1"), "{text}");
    }
}

#[test]
fn gateways_that_carry_packets_have_networks_and_an_interface_instead_of_forwards() {
    for (system, offloads, queues) in [
        (System::MuxgateTun, true, 1),
        (System::MuxgateTunTls, true, 1),
        (System::MuxgateTunQuic, true, 1),
        (System::MuxgateTunNoOffload, false, 1),
        (System::MuxgateTunQueues2, true, 2),
        (System::MuxgateTunQueues4, true, 4),
    ] {
        let (folder, _) = lines(system);
        for name in ["muxgate-entry.yaml", "muxgate-exit.yaml"] {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            let config = muxtunnel_gateway_config::Config::from_yaml(&text).unwrap();
            let network = config.network.unwrap();
            assert_eq!(network.device, Interface::NAME);
            assert_eq!((network.offloads, network.queues), (offloads, queues));
            let mtu = if system == System::MuxgateTunQuic {
                1400
            } else {
                1500
            };
            assert_eq!(network.mtu, mtu);
            assert!(config.forwards.is_empty());
        }
        let addresses = Topology::Veth.addresses();
        let address = system.address(Service::Load, &addresses);
        assert_eq!(address.to_string(), "10.72.0.2:5002");
        assert_eq!(system.resumed_carriers(), None);
    }
    assert!(!System::MuxgateNative.carries_packets());
}

#[test]
fn the_files_of_gateways_are_configurations() {
    for system in [
        System::MuxgateJmux,
        System::MuxgateNative,
        System::MuxgateKcpTls,
        System::MuxgateTlsSocks5,
        System::MuxgateTlsReverse,
        System::MuxgateHttp,
        System::MuxgateReverse,
        System::MuxgateQuicBbr,
        System::MuxgateHttp3,
        System::MuxgateHttp2,
        System::MuxgateHbone,
    ] {
        let (folder, _) = lines(system);
        for name in ["muxgate-entry.yaml", "muxgate-exit.yaml"] {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            let read = muxtunnel_gateway_config::Config::from_yaml(&text);
            assert!(read.is_ok(), "{} {name}: {:?}", system.name(), read.err());
        }
    }
}

#[test]
fn both_ends_of_openvpn_have_the_same_device_and_cipher() {
    let (folder, lines) = lines(System::Openvpn);
    assert_eq!(lines[0], "openvpn --config openvpn-exit.conf");
    let read = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let (exit, entry) = (read("openvpn-exit.conf"), read("openvpn-entry.conf"));
    assert!(exit.starts_with("tls-server\n") && entry.starts_with("tls-client\n"));
    assert!(entry.contains("\nremote 10.70.2.2 6100\n"), "{entry}");
    for text in [&exit, &entry] {
        assert!(text.contains("\ndata-ciphers AES-128-GCM\n"), "{text}");
    }
}

#[test]
fn the_interface_of_a_peer_keeps_the_kernels_queue() {
    let with = |queue_packets| Interface {
        mtu: 1420,
        queue_packets,
        queues: 1,
    };
    assert_eq!(with(None).settings(), "mtu 1420");
    assert_eq!(with(Some(9)).settings(), "mtu 1420 txqueuelen 9");
}

#[test]
fn ports_of_all_services_and_carriers_are_different() {
    let mut ports: Vec<u16> = Service::ALL
        .iter()
        .flat_map(|service| {
            [
                service.port(),
                service.entry_port(),
                service.entry_port() + 1000,
            ]
        })
        .chain([CARRIER_PORT, PROXY_PORT])
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 11);
}

#[test]
fn names_are_those_of_the_published_tables() {
    for (system, name) in [
        (System::Direct, "direct"),
        (System::MuxgateNativeX4, "muxgate-native-x4"),
        (System::MuxgateNativeX16, "muxgate-native-x16"),
        (System::MuxgateKeysWorkers8, "muxgate-keys-workers-8"),
        (System::MuxgateDefault, "muxgate-default"),
        (System::MuxgateHttp2Reverse, "muxgate-http2-reverse"),
        (System::MuxgateTunQueues2, "muxgate-tun-queues-2"),
        (System::FrpStcpEncrypted, "frp-stcp-encrypted"),
    ] {
        assert_eq!(system.name(), name);
    }
}

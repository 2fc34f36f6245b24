//! Interfaces, and the gateways that may use or create them.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};

use super::*;

#[test]
fn an_interface_outlives_its_gateway_and_a_flow_goes_on_behind_the_next_one() {
    let hosts = Hosts::new();
    let exit = hosts.exit(&NETWORKS);
    let entry = hosts.entry(&NETWORKS);
    let [near, far] = [hosts.entry.udp(ENTRY), hosts.exit.udp(EXIT)];
    assert!(exchange(&near, &far, b"before"));
    drop(entry);
    until("the exit's session ends", || {
        exit.status()["packets"]["sessions"] == 0
    });
    let _entry = hosts.entry(&NETWORKS);
    // `exchange` sends each datagram once, so the first datagram and its answer must arrive.
    assert!(exchange(&near, &far, b"after"));
    drop(exit);
    let _exit = hosts.exit(&NETWORKS);
    exchange_at_last(&near, &far, b"again");
}

/// muxgate as another user without capabilities. The process is killed when this value is dropped.
struct Powerless(Child);

impl Drop for Powerless {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Powerless {
    fn start(host: &Host, node: &str, words: &[&str]) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", OWNER, "--regid", OWNER, "--clear-groups"]);
        command.args([
            "--bounding-set",
            "-all",
            "--inh-caps",
            "-all",
            "--no-new-privs",
        ]);
        command.arg(env!("CARGO_BIN_EXE_muxgate")).args(words);
        command
            .args(NETWORKS)
            .args(["--security", "none", "--device-node", node]);
        Self(host.namespace.enter(|| command.spawn()).unwrap())
    }
}

#[test]
fn a_gateway_without_rights_uses_the_interface_that_its_user_owns() {
    let hosts = Hosts::new();
    let folder = hosts.folder.path();
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    let node = folder.join("tun").display().to_string();
    // The interface is created as an init container would create it.
    hosts.exit.make_interface(&node, &[]);
    let carrier = hosts.carrier();
    let exit = Powerless::start(&hosts.exit, &node, &["exit", "--listen", &carrier]);
    until("the exit listens", || folder.join("carrier").exists());
    let _entry = Powerless::start(&hosts.entry, &node, &["entry", "--connect", &carrier]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", exit.0.id())).unwrap();
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert!(
            status.contains(&format!("{set}:\t0000000000000000")),
            "{status}"
        );
    }
    let [near, far] = [hosts.entry.udp(ENTRY), hosts.exit.udp(EXIT)];
    exchange_at_last(&near, &far, b"without rights");
    // A second run of an init container does not disturb a gateway that has the interface open.
    hosts.exit.make_interface(&node, &[]);
    assert!(exchange(&near, &far, b"still"));
}

#[test]
fn an_interface_that_cannot_be_opened_is_an_error_that_says_what_to_do() {
    let hosts = Hosts::new();
    let refused = |flags: &[&str]| {
        let args = [
            &["exit", "--security", "none", "--listen", "127.0.0.1:0"],
            &NETWORKS[..],
            flags,
        ];
        let gate = hosts
            .exit
            .namespace
            .enter(|| Gate::without_admin(&args.concat()));
        let (status, log) = gate.wait_for_log();
        assert_eq!(status.code(), Some(1), "{log}");
        log
    };
    let log = refused(&["--device-node", "/dev/net/none"]);
    assert!(
        log.contains("MT0234") && log.contains("modprobe tun"),
        "{log}"
    );
    let log = refused(&["--device", "eth0"]);
    assert!(
        log.contains("MT0234") && log.contains("muxgate tun create --device eth0"),
        "{log}"
    );
}

#[test]
fn a_carrier_that_is_routed_into_its_own_interface_is_named() {
    let hosts = Hosts::new();
    let connect = format!("{EXIT}:64000");
    let args = [
        &["entry", "--security", "none", "--connect", &connect],
        &NETWORKS[..],
    ]
    .concat();
    let entry = Gate::within(&hosts.entry.namespace, hosts.entry.admin, &args);
    entry.line(&["MT0234", "directs the carrier into the interface", &connect]);
    until("the carrier's packets are dropped", || {
        drops(&entry, "carrier_loop") > 0
    });
}

#[test]
fn a_gateway_with_the_right_makes_its_interface_and_takes_it_with_it() {
    let hosts = Hosts::new();
    let _exit = hosts.exit(&NETWORKS);
    let network = free_network();
    let admin = format!("{network}.2").leak();
    let outside = format!("{network}.1/24");
    let namespace = Namespace::new(&[&outside], &[&format!("{admin}/24")]);
    let carrier = hosts.carrier();
    let args = [
        &["entry", "--security", "none", "--connect", &carrier][..],
        &["--device", "laptop0", "--device-address", "10.72.0.1/32"],
        &NETWORKS,
    ];
    let entry = Gate::within(&namespace, admin, &args.concat()).until_ready();
    let laptop = Host {
        namespace,
        admin,
        networks: Default::default(),
    };
    ping(&laptop, EXIT);
    let has_interface = || laptop.namespace.run(&["ip", "link"]).contains("laptop0");
    assert!(has_interface());
    entry.signal("TERM");
    until("the interface is deleted", || !has_interface());
}

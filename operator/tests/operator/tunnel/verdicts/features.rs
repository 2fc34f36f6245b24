//! Tuning, the emulation of a wide-area network, and networks.

use muxtunnel_gateway_config::status::Packets;

use super::*;

#[test]
fn a_sysctl_that_the_kubelet_refuses_is_the_first_thing_said() {
    let mut case = tuned_wan();
    case.applied.deployments[0].status = None;
    let pod = case.pod(End::Exit);
    pod.answer = None;
    pod.problem = Some(Problem {
        code: Code::SysctlForbidden,
        detail: "pod office-tunnel-exit-0: forbidden sysctl".to_owned(),
    });
    case.expect("Ready", Some(false), Code::SysctlForbidden, "forbidden");
    case.expect("TuningApplied", Some(false), Code::SysctlForbidden, "");
}

#[test]
fn a_sysctl_with_another_value_is_named_with_both() {
    let mut case = tuned_wan();
    let sysctls = &mut case.status(End::Entry).sysctls;
    sysctls.insert(
        "net.ipv4.tcp_rmem".to_owned(),
        "4096\t131072\t6291456".to_owned(),
    );
    let detail = "requested 4096 131072 134217728";
    case.expect("TuningApplied", Some(false), Code::SysctlMismatch, detail);
    case.expect("Ready", Some(false), Code::SysctlMismatch, detail);
    let sysctls = &mut case.status(End::Entry).sysctls;
    sysctls.insert(
        "net.ipv4.tcp_rmem".to_owned(),
        "4096\t131072\t134217728".to_owned(),
    );
    case.expect("TuningApplied", Some(true), Code::SysctlsApplied, "");
}

#[test]
fn a_refusal_of_muxwan_is_passed_on_in_its_own_words() {
    let mut case = tuned_wan();
    case.pod(End::Exit).wan = Wan::Refused(Problem {
        code: Code::WanUnsupported,
        detail: "pod office-tunnel-exit-0: MT0404 netem: no module; nfqueue: no module".to_owned(),
    });
    case.expect(
        "WANEmulated",
        Some(false),
        Code::WanUnsupported,
        "MT0404 netem",
    );
    case.expect("Ready", Some(false), Code::WanUnsupported, "MT0404 netem");
}

#[test]
fn emulation_counts_once_the_carriers_round_trip_shows_it() {
    let mut case = tuned_wan();
    case.status(End::Entry).carriers = vec![carrier(50.2)];
    let detail = "the round trip takes 50.2 ms, requested 100 ms (2 x 50 ms)";
    case.expect("WANEmulated", Some(false), Code::WanDelayOff, detail);
    case.status(End::Entry).carriers = vec![carrier(180.0)];
    case.expect("WANEmulated", Some(true), Code::WanEmulated, "50 ms");
    case.status(End::Entry).carriers.clear();
    case.expect("WANEmulated", Some(false), Code::WanPending, "no carrier");
    case.pod(End::Entry).wan = Wan::Pending;
    case.expect("WANEmulated", Some(false), Code::WanPending, "is starting");
}

#[test]
fn a_network_counts_once_an_interface_is_there_and_a_session_carries_packets() {
    let networks = "network: {entry: {cidrs: [10.72.0.1/32]}, exit: {cidrs: [10.72.0.2/32]}}\n";
    let (mut case, mut twin) = (case(networks), case(networks));
    let sessions = |sessions| {
        Some(Packets {
            sessions,
            ..Packets::default()
        })
    };
    case.expect(
        "NetworkReady",
        Some(false),
        Code::GatewaysNotReady,
        "no exit gateway",
    );
    case.status(End::Exit).packets = sessions(0);
    case.expect(
        "NetworkReady",
        Some(false),
        Code::GatewaysNotReady,
        "no entry gateway",
    );
    case.status(End::Entry).packets = sessions(0);
    case.expect(
        "NetworkReady",
        Some(false),
        Code::NoPackets,
        "no session of the entry",
    );
    case.expect(
        "Ready",
        Some(false),
        Code::NoPackets,
        "no session of the entry",
    );
    case.status(End::Entry).packets = sessions(1);
    case.expect(
        "NetworkReady",
        Some(true),
        Code::NetworkReady,
        "IP packets: 1",
    );
    case.expect("Ready", Some(true), Code::Reconciled, "");
    // An attacker on a node can report any number for several gateways.
    case.status(End::Entry).packets = sessions(u32::MAX);
    twin.status(End::Entry).packets = sessions(u32::MAX);
    case.seen.pods.append(&mut twin.seen.pods);
    let most = format!("IP packets: {}", u32::MAX);
    case.expect("NetworkReady", Some(true), Code::NetworkReady, &most);
    assert_eq!(case.facts()["network"]["sessions"], json!(i32::MAX));
    case.pod(End::Exit).problem = Some(Problem {
        code: Code::InterfaceFailed,
        detail: "pod office-tunnel-exit-0: container network: no such device".to_owned(),
    });
    case.expect(
        "NetworkReady",
        Some(false),
        Code::InterfaceFailed,
        "no such device",
    );
    case.expect(
        "Ready",
        Some(false),
        Code::InterfaceFailed,
        "no such device",
    );
}

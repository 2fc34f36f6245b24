//! Constructed observations and the verdicts on them.

mod causes;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::{Direction, KeyOrigin, KeyStatus};
use muxtunnel_gateway_config::status::{
    Assigned, Carrier, Certificate, Credit, Forward, Limit, OpenFiles, Packets, Process, Resume,
    Splice, Status, Streams,
};
use muxtunnel_gateway_config::{Protocol, Role};
use muxtunnel_operator::apply::Settled;
use muxtunnel_operator::caches::{Cluster, Feeds};
use muxtunnel_operator::clock::{Clock, Now, date};
use muxtunnel_operator::conditions::Verdict;
use muxtunnel_operator::tunnel_controller::apply::Applied;
use muxtunnel_operator::tunnel_controller::build::Certified;
use muxtunnel_operator::tunnel_controller::build::config_map::expected_hash;
use muxtunnel_operator::tunnel_controller::end::End;
use muxtunnel_operator::tunnel_controller::keyring::OwnKey;
use muxtunnel_operator::tunnel_controller::observe::{Seen, SeenPod, Wan};
use muxtunnel_operator::tunnel_controller::problem::Problem;
use muxtunnel_operator::tunnel_controller::publish::Outcome;
use muxtunnel_operator::tunnel_controller::update_status::bottleneck::bottleneck;
use muxtunnel_operator::tunnel_controller::update_status::facts::facts;
use muxtunnel_operator::tunnel_controller::update_status::verdicts::verdicts;
use muxtunnel_operator::tunnel_controller::update_status::{StatusDebounce, update_status};
use muxtunnel_testkit::api_server::FakeApi;

use super::*;

/// A tunnel and all observations of this tunnel in a healthy state. Each test changes one
/// observation.
struct Case {
    tunnel: ValidatedTunnel,
    applied: Applied,
    seen: Seen,
    certified: Certified,
}

fn case(spec: &str) -> Case {
    let tunnel = valid(spec);
    let built = build(&tunnel, &settings()).unwrap();
    let mut deployments = built.deployments;
    for deployment in &mut deployments {
        // The API server's default.
        let replicas = &mut deployment.spec.as_mut().unwrap().replicas;
        let replicas = Some(*replicas.get_or_insert(1));
        deployment.metadata.generation = Some(3);
        deployment.status = Some(DeploymentStatus {
            observed_generation: Some(3),
            replicas,
            ready_replicas: replicas,
            updated_replicas: replicas,
            ..DeploymentStatus::default()
        });
    }
    let config = |end: End| {
        let name = end.child_name(&tunnel);
        let config_map = built
            .config_maps
            .iter()
            .find(|config_map| config_map.metadata.name.as_ref() == Some(&name));
        let key = config_map?.data.iter().flatten().next()?.0;
        Some((key.clone(), expected_hash(config_map?, key)?))
    };
    let pods = End::ALL
        .into_iter()
        .filter_map(|end| Some(pod(end, config(end)?, &tunnel)))
        .collect();
    Case {
        applied: Applied {
            config_maps: built.config_maps.clone(),
            services: built.services,
            deployments,
            refusal: None,
        },
        tunnel,
        seen: Seen { pods },
        certified: Certified {
            now: NOW,
            ..Certified::default()
        },
    }
}

/// The time of all observations, in seconds since 1970.
const NOW: i64 = 1_900_000_000;

fn pod(end: End, (key, hash): (String, String), tunnel: &ValidatedTunnel) -> SeenPod {
    SeenPod {
        end,
        name: format!("office-{}-0", end.component()),
        node: Some("node-a".to_owned()),
        config: Some(key),
        made: None,
        has_sysctls: true,
        started: true,
        ready: true,
        problem: None,
        wan: if tunnel.wan.is_some() {
            Wan::Proven
        } else {
            Wan::Absent
        },
        answer: Some(Ok(Status {
            version: "0.1.0".to_owned(),
            role: match end {
                End::Entry => Role::Entry,
                End::Exit => Role::Exit,
                End::Rendezvous => Role::Rendezvous,
            },
            protocol: Protocol::Jmux,
            config_hash: hash,
            config_error: None,
            certificate: None,
            public_keys: Vec::new(),
            peers: Vec::new(),
            files: Some(Vec::new()),
            carrier_error: None,
            ready: true,
            draining: false,
            limit: None,
            limit_advice: None,
            credit: Credit::default(),
            splice: Splice::default(),
            resume: Resume::default(),
            packets: None,
            carriers: vec![carrier(
                tunnel
                    .wan
                    .as_ref()
                    .map_or(0.2, |wan| 2.0 * wan.one_way_delay.as_millis() as f64 + 0.4),
            )],
            streams: Streams::default(),
            forwards: Vec::new(),
            rendezvous: None,
            process: Process::default(),
            sysctls: tunnel.tuning.clone(),
        })),
    }
}

fn carrier(rtt: f64) -> Carrier {
    Carrier {
        transport: Default::default(),
        peer: "192.0.2.1:64000".to_owned(),
        uptime_seconds: 1.0,
        // A queue at the bottleneck increases the smoothed round-trip time.
        rtt_milliseconds: rtt + 6.0,
        rtt_min_milliseconds: rtt,
        congestion_control: "cubic".to_owned(),
        bytes_sent: 0,
        bytes_received: 0,
        retransmits: 0,
        congestion_window: 10,
        streams: 0,
        receive_budget_used: 0,
        sent_bytes_per_second: 0,
        received_bytes_per_second: 0,
        limit: None,
        limit_advice: None,
        limited_seconds: BTreeMap::new(),
    }
}

impl Case {
    /// Another pod of the end with the same configuration.
    fn another(&mut self, end: End) -> SeenPod {
        let hash = self.status(end).config_hash.clone();
        let key = self.pod(end).config.clone().unwrap();
        pod(end, (key, hash), &self.tunnel)
    }

    fn pod(&mut self, end: End) -> &mut SeenPod {
        self.seen
            .pods
            .iter_mut()
            .find(|pod| pod.end == end)
            .unwrap()
    }

    fn status(&mut self, end: End) -> &mut Status {
        self.pod(end).answer.as_mut().unwrap().as_mut().unwrap()
    }

    fn verdict(&self, type_: &str) -> Verdict {
        verdicts(&self.tunnel, &self.applied, &self.seen, &self.certified)
            .into_iter()
            .find(|verdict| verdict.type_ == type_)
            .unwrap()
    }

    fn expect(&self, type_: &str, holds: Option<bool>, code: Code, detail: &str) {
        let verdict = self.verdict(type_);
        assert_eq!(
            (verdict.holds, verdict.code),
            (holds, code),
            "{type_}: {}",
            verdict.detail
        );
        assert!(verdict.detail.contains(detail), "{}", verdict.detail);
    }
}

fn tuned_wan() -> Case {
    case(&format!(
        "{SMALLEST}tuning: {{profile: WAN}}\nwan: {{delay: 50ms}}\n"
    ))
}

#[test]
fn all_is_well() {
    let case = tuned_wan();
    for (type_, code) in [
        ("Ready", Code::Reconciled),
        ("Available", Code::Reconciled),
        ("Connected", Code::CarrierUp),
        ("TuningApplied", Code::SysctlsApplied),
        ("WANEmulated", Code::WanEmulated),
    ] {
        case.expect(type_, Some(true), code, "");
    }
}

#[test]
fn what_is_not_asked_for_does_not_keep_it_from_being_ready() {
    let case = case(SMALLEST);
    case.expect("TuningApplied", Some(false), Code::NotRequested, "");
    case.expect("WANEmulated", Some(false), Code::NotRequested, "");
    case.expect("Ready", Some(true), Code::Reconciled, "");
}

#[test]
fn a_pod_that_does_not_start_is_asked_for_its_secrets() {
    let mut case = case(
        "
forwards: [{name: any, port: 1, protocol: Socks5, auth: {usersSecret: {name: people}}}]
allow: [{host: '*'}]
carrier:
  security: {mode: MutualTls, entry: {secretName: keys, peers: [a]}, exit: {secretName: other, peers: [a]}}
",
    );
    case.expect("Ready", Some(true), Code::Reconciled, "");
    case.pod(End::Entry).answer = None;
    let entry = |deployment: &&mut Deployment| deployment.name_any() == "office-entry";
    let deployment = case.applied.deployments.iter_mut().find(entry).unwrap();
    deployment.status.as_mut().unwrap().ready_replicas = None;
    let detail = "entry: 0 of 1 gateways ready: pod office-entry-0 has not started; check that these Secrets \
                  exist with all keys: keys, people";
    case.expect("Ready", Some(false), Code::SecretNotMounted, detail);
}

#[test]
fn the_secret_for_ssh_is_among_them_and_the_status_says_where_users_log_in() {
    let mut case = case(&format!(
        "{SMALLEST}exit: {{ssh: {{secretRef: {name: people}}}}}\n"
    ));
    let ssh_address = |case: &Case| {
        let facts = facts(&case.tunnel, &case.applied, &case.seen, &case.certified);
        assert_eq!(facts.entry.unwrap().ssh_address, None);
        facts.exit.unwrap().ssh_address
    };
    let inside = Some("office-exit-ssh.site.svc:2222".to_owned());
    assert_eq!(ssh_address(&case), inside);
    let own = |service: &&mut Service| service.name_any() == "office-exit-ssh";
    let service = case.applied.services.iter_mut().find(own).unwrap();
    service.status = serde_json::from_value(json!({
        "loadBalancer": {"ingress": [{"hostname": "ssh.example.com"}]},
    }))
    .unwrap();
    assert_eq!(ssh_address(&case).as_deref(), Some("ssh.example.com:2222"));

    case.pod(End::Exit).answer = None;
    let exit = |deployment: &&mut Deployment| deployment.name_any() == "office-tunnel-exit";
    let deployment = case.applied.deployments.iter_mut().find(exit).unwrap();
    deployment.status.as_mut().unwrap().ready_replicas = None;
    let detail = "exit: 0 of 1 gateways ready: pod office-tunnel-exit-0 has not started; check that these Secrets exist \
                  with all keys: people";
    case.expect("Ready", Some(false), Code::SecretNotMounted, detail);
}

#[test]
fn a_rendezvous_is_ready_and_has_no_carriers_of_its_own() {
    let mut case = case("side: Rendezvous\nrendezvous: {secretName: names}\n");
    case.status(End::Rendezvous).carriers.clear();
    case.expect("Connected", Some(false), Code::NotRequested, "");
    case.expect("Available", Some(true), Code::Reconciled, "");
    case.expect("Ready", Some(true), Code::Reconciled, "");
    let facts = facts(&case.tunnel, &case.applied, &case.seen, &case.certified);
    assert_eq!(
        (facts.entry, facts.exit, facts.carriers),
        (None, None, None)
    );
    let own = facts.rendezvous.unwrap();
    assert_eq!((own.replicas, own.ready_replicas), (1, 1));
    let address = "office-rendezvous.site.svc:64000";
    assert_eq!(own.address.as_deref(), Some(address));

    case.pod(End::Rendezvous).ready = false;
    let detail = "no rendezvous gateway is ready";
    case.expect("Available", Some(false), Code::GatewaysNotReady, detail);
}

#[test]
fn an_exit_that_is_met_elsewhere_is_reached_at_no_address() {
    let meeting =
        "carrier: {rendezvous: {address: 'a:1', name: b, secretName: c}}\nsecurity: {mode: None}";
    let reverse = "forwards: [{name: web, direction: ExitToEntry, port: 80, \
                   targets: [{host: web, port: 80}]}]";
    let case = case(&format!("side: Exit\n{reverse}\n{meeting}\n"));
    let exit = facts(&case.tunnel, &case.applied, &case.seen, &case.certified)
        .exit
        .unwrap();
    assert_eq!((exit.ready_replicas, exit.address), (1, None));
}

#[test]
fn a_gateway_with_an_older_configuration_is_pending_and_still_available() {
    let mut case = case(SMALLEST);
    case.status(End::Exit).config_hash = "older".to_owned();
    let detail = "office-tunnel-exit-0 runs an older configuration";
    case.expect("Ready", Some(false), Code::ConfigPending, detail);
    case.expect("Available", Some(true), Code::Reconciled, "");
    case.status(End::Exit).config_error = Some("MT0102 listen changed".to_owned());
    case.expect("Ready", Some(false), Code::ConfigPending, "MT0102 listen");
}

#[test]
fn gateways_without_open_files_for_streams_are_not_available() {
    for end in [End::Entry, End::Exit] {
        let mut case = case(SMALLEST);
        let files = |open| OpenFiles {
            open,
            limit: 1024,
            for_streams: 768,
        };
        case.status(end).process.open_files = files(767);
        case.expect("Available", Some(true), Code::Reconciled, "");
        case.status(end).process.open_files = files(768);
        let detail = "of the limit 1024 (RLIMIT_NOFILE)";
        case.expect("Available", Some(false), Code::OpenFilesExhausted, detail);
        // Another gateway of the same end still takes connections.
        let mut other = case.another(end);
        let answer = other.answer.as_mut().unwrap().as_mut().unwrap();
        answer.process.open_files = files(10);
        case.seen.pods.push(other);
        case.expect("Available", Some(true), Code::Reconciled, "");
    }
}

#[test]
fn a_roll_out_is_not_over_before_all_pods_are_new_and_ready() {
    let mut case = case(SMALLEST);
    case.applied.deployments[0].metadata.generation = Some(4);
    let detail = "exit: 1 of 1 gateways ready";
    case.expect("Ready", Some(false), Code::GatewaysNotReady, detail);
}

/// If the spec sets no number, the Deployment's number counts, which users and their autoscalers
/// set.
#[test]
fn the_number_of_a_user_is_the_wanted_one() {
    let mut case = case(SMALLEST);
    for (wanted, ready, holds, column) in [
        (3, 3, true, "3/3"),
        (3, 2, false, "2/3"),
        // A pod that is no longer wanted still ends.
        (2, 3, true, "3/2"),
        (0, 0, false, "0/0"),
    ] {
        let deployment = &mut case.applied.deployments[0];
        deployment.spec.as_mut().unwrap().replicas = Some(wanted);
        let status = deployment.status.as_mut().unwrap();
        status.replicas = Some(ready);
        status.ready_replicas = Some(ready);
        status.updated_replicas = Some(ready);
        assert_eq!(case.verdict("Ready").holds, Some(holds), "{column}");
        let facts = facts(&case.tunnel, &case.applied, &case.seen, &case.certified);
        assert_eq!(facts.exit.unwrap().ready, column);
    }
}

#[test]
fn more_gateways_that_an_autoscaler_asks_for_do_not_make_it_unready_and_too_few_do() {
    let autoscaling = "autoscaling: {minReplicas: 2, maxReplicas: 4}";
    let mut case = case(&format!("{SMALLEST}entry: {{{autoscaling}}}\n"));
    let mut scaled = |wanted, ready, updated| {
        let entry = |deployment: &&mut Deployment| deployment.name_any() == "office-entry";
        let deployment = case.applied.deployments.iter_mut().find(entry).unwrap();
        deployment.spec.as_mut().unwrap().replicas = Some(wanted);
        let status = deployment.status.as_mut().unwrap();
        status.replicas = Some(wanted);
        status.ready_replicas = Some(ready);
        status.updated_replicas = Some(updated);
        let entry = facts(&case.tunnel, &case.applied, &case.seen, &case.certified)
            .entry
            .unwrap();
        let verdict = case.verdict("Ready");
        let detail = match verdict.holds {
            Some(true) => String::new(),
            _ => verdict.detail,
        };
        (verdict.holds, detail, entry.ready)
    };
    let ready = |column: &str| (Some(true), String::new(), column.to_owned());
    assert_eq!(scaled(2, 2, 2), ready("2/2"));
    assert_eq!(scaled(4, 2, 4), ready("2/4"));
    let (holds, detail, column) = scaled(4, 1, 4);
    assert_eq!((holds, column.as_str()), (Some(false), "1/4"));
    assert_eq!(detail, "entry: 1 of 4 gateways ready");
    assert_eq!(
        scaled(3, 3, 2).0,
        Some(false),
        "one pod has an older template"
    );
}

#[test]
fn what_gateways_say_of_sysctls_is_bounded() {
    let mut case = case(SMALLEST);
    let sysctls = &mut case.status(End::Entry).sysctls;
    sysctls.insert("net.long".to_owned(), "9".repeat(10_000));
    sysctls.extend((0..100).map(|n| (format!("net.more{n}"), "1".to_owned())));
    let said = facts(&case.tunnel, &case.applied, &case.seen, &case.certified).sysctls;
    assert_eq!(said.len(), 64);
    assert_eq!(said["net.long"].len(), 256);
}

#[test]
fn the_sentence_names_what_keeps_a_pod_from_running() {
    let mut case = case(SMALLEST);
    let status = case.applied.deployments[1].status.as_mut().unwrap();
    status.ready_replicas = None;
    let pod = case.pod(End::Entry);
    pod.ready = false;
    pod.answer = None;
    pod.problem = Some(Problem {
        code: Code::GatewaysNotReady,
        detail: "pod office-entry-0: container gateway: ImagePullBackOff: no such image".to_owned(),
    });
    let detail = "entry: 0 of 1 gateways ready: pod office-entry-0: container gateway: ImagePull";
    case.expect("Ready", Some(false), Code::GatewaysNotReady, detail);
    let detail = "no entry gateway is ready";
    case.expect("Available", Some(false), Code::GatewaysNotReady, detail);
}

#[test]
fn a_ready_gateway_that_does_not_answer_is_unreachable() {
    let mut case = case(SMALLEST);
    case.pod(End::Exit).answer = Some(Err("no answer within 2 s".to_owned()));
    let detail = "pod office-tunnel-exit-0: no answer";
    case.expect("Ready", Some(false), Code::GatewayUnreachable, detail);
}

#[test]
fn a_port_that_cannot_be_listened_on_is_named() {
    let mut case = case(SMALLEST);
    case.status(End::Entry).forwards = vec![Forward {
        streams: Streams::default(),
        name: "web".to_owned(),
        listen: "0.0.0.0:8080".to_owned(),
        target: "shop.site.svc:80".to_owned(),
        dials: None,
        error: Some("MT0103 address in use".to_owned()),
    }];
    let detail = "forward web: MT0103";
    case.expect("Ready", Some(false), Code::ListenFailed, detail);
}

#[test]
fn without_a_carrier_nothing_is_available() {
    let mut case = case(SMALLEST);
    case.status(End::Entry).carriers.clear();
    let detail = "office-entry-0 has no carrier";
    case.expect("Ready", Some(false), Code::CarrierConnecting, detail);
    case.expect("Available", Some(false), Code::CarrierConnecting, "");
    case.expect(
        "Connected",
        Some(false),
        Code::CarrierConnecting,
        detail,
    );
}

#[test]
fn an_exit_alone_is_ready_before_anybody_connects() {
    let mut case = case(&format!("side: Exit\n{SMALLEST}"));
    case.status(End::Exit).carriers.clear();
    case.expect("Ready", Some(true), Code::Reconciled, "");
    case.expect("Available", Some(true), Code::Reconciled, "");
    case.expect("Connected", Some(false), Code::CarrierConnecting, "");
}

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
    let detail = "the round trip takes 50.2 ms, requested 100 ms (2 x 50ms)";
    case.expect("WANEmulated", Some(false), Code::WanDelayOff, detail);
    case.status(End::Entry).carriers = vec![carrier(180.0)];
    case.expect("WANEmulated", Some(true), Code::WanEmulated, "50ms");
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
    let facts = facts(&case.tunnel, &case.applied, &case.seen, &case.certified);
    assert_eq!(facts.packets.unwrap().sessions, i32::MAX);
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

#[test]
fn emulation_that_is_switched_off_is_said_to_be_so() {
    let mut case = case(SMALLEST);
    case.tunnel.wan_disabled = true;
    case.expect("WANEmulated", Some(false), Code::WanDisabled, "");
    case.expect("Ready", Some(false), Code::WanDisabled, "");
    case.expect("Available", Some(true), Code::Reconciled, "");
}

#[test]
fn the_status_has_the_facts() {
    let mut case = tuned_wan();
    let sysctls = &mut case.status(End::Exit).sysctls;
    sysctls.insert("net.ipv4.tcp_wmem".to_owned(), "1\t2\t3".to_owned());
    let status = facts(&case.tunnel, &case.applied, &case.seen, &case.certified);
    let entry = status.entry.unwrap();
    assert_eq!((entry.replicas, entry.ready_replicas), (1, 1));
    assert_eq!(entry.address.as_deref(), Some("office-entry.site.svc"));
    let carriers = status.carriers.unwrap();
    assert_eq!(carriers.up, 1);
    assert_eq!(carriers.rtt_milliseconds, Some(100.4));
    assert_eq!(status.sysctls["net.ipv4.tcp_rmem"], "4096 131072 134217728");
    assert_eq!(
        status.sysctls["net.ipv4.tcp_wmem"],
        "1 2 3 (exit), 4096 65536 67108864 (entry)"
    );
}

#[test]
fn the_status_has_the_assigned_addresses_and_rounded_drops_of_packets() {
    let mut case = case(
        "network: {entry: {cidrs: [10.72.0.1/32], addresses: [10.72.0.1]}, exit: {cidrs: [10.72.0.2/32], addresses: [10.72.0.2]}}\n",
    );
    let packets = |case: &Case| {
        let facts = facts(&case.tunnel, &case.applied, &case.seen, &case.certified);
        serde_json::to_value(facts.packets).unwrap()
    };
    assert_eq!(packets(&case), json!({"sessions": 0}));
    let dropped = |count: u64| [("no_route".to_owned(), count), ("policy".to_owned(), 0)].into();
    case.status(End::Entry).packets = Some(Packets {
        sessions: 1,
        drops: dropped(9_990),
        assigned: Some(Assigned {
            addresses: vec!["10.72.0.1".parse().unwrap()],
            dns_servers: vec!["10.72.0.2".parse().unwrap()],
            ..Assigned::default()
        }),
        ..Packets::default()
    });
    case.status(End::Exit).packets = Some(Packets {
        sessions: 3,
        drops: dropped(14_555),
        ..Packets::default()
    });
    assert_eq!(
        packets(&case),
        json!({"sessions": 1, "addresses": ["10.72.0.1"], "dnsServers": ["10.72.0.2"], "drops": {"no_route": 20_000}})
    );
    case.status(End::Exit).packets = Some(Packets {
        drops: dropped(u64::MAX),
        ..Packets::default()
    });
    assert_eq!(packets(&case)["drops"]["no_route"], json!(i64::MAX));
}

/// A carrier with this verdict and these bytes sent and received per second.
fn judged(limit: Limit, sent: u64, received: u64) -> Carrier {
    Carrier {
        sent_bytes_per_second: sent,
        received_bytes_per_second: received,
        limit: Some(limit),
        limit_advice: Some(format!("about {}", limit.as_str())),
        ..carrier(100.0)
    }
}

/// The bottleneck of a tunnel whose entry and exit have these carriers.
fn said(entry: &[Carrier], exit: &[Carrier]) -> Option<(Direction, String, String)> {
    let mut case = case(SMALLEST);
    case.status(End::Entry).carriers = entry.to_vec();
    case.status(End::Exit).carriers = exit.to_vec();
    let said = bottleneck(&case.seen, None)?;
    Some((said.direction, said.reason, said.message))
}

fn expect_said(
    entry: &[Carrier],
    exit: &[Carrier],
    (direction, reason, message): (Direction, Limit, &str),
) {
    let wanted = (direction, reason.as_str().to_owned(), message.to_owned());
    assert_eq!(said(entry, exit), Some(wanted));
}

#[test]
fn the_sender_of_the_direction_that_moves_more_says_what_limits_it() {
    let (little, much) = (10_000, 20_000_000);
    let exit = [judged(Limit::Application, little, much)];
    let upload = [
        judged(Limit::Application, little, 0),
        judged(Limit::SendBuffer, much, little),
    ];
    let message = "entry: about SendBuffer";
    let up = (Direction::ClientToTarget, Limit::SendBuffer, message);
    expect_said(&upload, &exit, up);
    let download = [judged(Limit::CongestionWindow, much, little)];
    let message = "exit: about CongestionWindow";
    let down = (Direction::TargetToClient, Limit::CongestionWindow, message);
    expect_said(&[judged(Limit::Application, little, much)], &download, down);
}

#[test]
fn a_receiver_without_memory_or_time_is_what_the_senders_full_window_comes_from() {
    for short in [Limit::Memory, Limit::Cpu] {
        let entry = [judged(Limit::ReceiveWindow, 1 << 20, 0)];
        let exit = [judged(short, 0, 1 << 20)];
        let message = format!("exit: about {}", short.as_str());
        expect_said(&entry, &exit, (Direction::ClientToTarget, short, &message));
    }
    let entry = [judged(Limit::Cpu, 1 << 20, 0)];
    let exit = [judged(Limit::Memory, 0, 1 << 20)];
    let cpu = (Direction::ClientToTarget, Limit::Cpu, "entry: about Cpu");
    expect_said(&entry, &exit, cpu);
}

#[test]
fn a_senders_full_memory_is_of_the_other_direction() {
    let entry = [judged(Limit::Memory, 1 << 20, 0)];
    let exit = [judged(Limit::Application, 0, 1 << 20)];
    let message = "entry: about Memory";
    expect_said(
        &entry,
        &exit,
        (Direction::TargetToClient, Limit::Memory, message),
    );
}

#[test]
fn an_idle_tunnel_has_one_direction_whatever_its_few_bytes_do() {
    for (sent, received) in [(10, 300), (300, 10)] {
        let said = said(
            &[judged(Limit::Idle, sent, received)],
            &[judged(Limit::Idle, received, sent)],
        );
        let (direction, reason, _) = said.unwrap();
        assert_eq!(
            (direction, reason.as_str()),
            (Direction::ClientToTarget, "Idle")
        );
    }
}

#[test]
fn the_direction_changes_only_where_the_other_moves_a_quarter_more() {
    let mut case = case(SMALLEST);
    let mut direction = |shown, sent, received| {
        case.status(End::Entry).carriers = vec![judged(Limit::Application, sent, received)];
        case.status(End::Exit).carriers = vec![judged(Limit::Application, received, sent)];
        bottleneck(&case.seen, Some(shown)).unwrap().direction
    };
    let (up, down) = (Direction::ClientToTarget, Direction::TargetToClient);
    assert_eq!(direction(up, 4000, 5000), up);
    assert_eq!(direction(up, 4000, 5001), down);
    assert_eq!(direction(down, 5000, 4000), down);
}

#[test]
fn an_exit_alone_says_what_it_knows() {
    let alone = |limit, sent, received| {
        let mut case = case(&format!("side: Exit\n{SMALLEST}"));
        case.status(End::Exit).carriers = vec![judged(limit, sent, received)];
        bottleneck(&case.seen, None).map(|said| (said.direction, said.reason))
    };
    let (up, down) = (Direction::ClientToTarget, Direction::TargetToClient);
    let own = Some((down, "SendBuffer".to_owned()));
    assert_eq!(alone(Limit::SendBuffer, 1 << 20, 0), own);
    let own = Some((up, "Memory".to_owned()));
    assert_eq!(alone(Limit::Memory, 0, 1 << 20), own);
    assert_eq!(alone(Limit::Application, 0, 1 << 20), None);
    assert_eq!(alone(Limit::Idle, 0, 20), Some((up, "Idle".to_owned())));
}

#[test]
fn gateways_that_do_not_know_yet_say_nothing() {
    assert_eq!(said(&[carrier(1.0)], &[carrier(1.0)]), None);
    assert_eq!(said(&[], &[]), None);
}

#[tokio::test]
async fn what_limits_it_is_written_when_it_is_seen_again() {
    let api = FakeApi::default();
    api.put("muxtunnels/office", tunnel_json(SMALLEST));
    let mut case = case(SMALLEST);
    case.status(End::Entry).carriers = vec![judged(Limit::SendBuffer, 1 << 20, 0)];
    let outcome = Outcome::Observed(
        Box::new(case.tunnel),
        case.applied,
        case.seen,
        Box::new(case.certified),
    );
    let cluster = Cluster {
        client: api.client(),
        caches: Feeds::default().caches(),
        settled: Settled::default(),
    };
    let debounce = StatusDebounce::default();
    let (mut written, begin) = (Vec::new(), Clock::system().now());
    for second in 0..3 {
        let instant = begin.instant + Duration::from_secs(second);
        let now = Now { instant, ..begin };
        let tunnel = serde_json::from_value(api.get("muxtunnels/office").unwrap()).unwrap();
        let status = update_status(&cluster, &tunnel, (&outcome, &[]), &debounce, now)
            .await
            .unwrap();
        written.push(status.bottleneck.map(|bottleneck| bottleneck.reason));
    }
    let limit = Some("SendBuffer".to_owned());
    assert_eq!(written, [None, limit.clone(), limit]);
    let patches = api.take_requests().len();
    assert_eq!(patches, 2, "the third time nothing has changed");
}

/// A gateway's certificate. It is valid from one hour before [`NOW`], for two hours and `more`
/// seconds.
fn shown(fingerprint: &str, more: i64) -> Certificate {
    Certificate {
        fingerprint: fingerprint.to_owned(),
        not_before: date(NOW - 3600),
        not_after: date(NOW + 3600 + more),
    }
}

/// A tunnel whose keys the operator created.
fn managed() -> Case {
    case(MANAGED)
}

#[test]
fn keys_of_both_ends_are_valid_and_not_in_the_status() {
    let case = managed();
    let verdict = case.verdict("CredentialsValid");
    assert_eq!(
        (verdict.holds, verdict.code),
        (Some(true), Code::KeysCreated)
    );
    assert_eq!(case.verdict("Ready").holds, Some(true));
    let facts = facts(&case.tunnel, &case.applied, &case.seen, &case.certified);
    assert!(facts.public_keys.is_empty() && facts.keys.is_empty());
}

fn own_key(public_key: Option<&str>) -> OwnKey {
    OwnKey {
        status: KeyStatus {
            secret_name: "office-exit-key-1".to_owned(),
            generation: 1,
            public_key: public_key.map(str::to_owned),
            origin: match public_key {
                Some(_) => KeyOrigin::Created,
                None => KeyOrigin::Found,
            },
        },
        is_lost: false,
    }
}

fn exit(public_key: Option<&str>, reported: &[&str]) -> Case {
    let mut case = case(&format!("side: Exit\n{MANAGED}"));
    case.certified.keys = vec![own_key(public_key)];
    case.status(End::Exit).public_keys = reported.iter().map(|&key| key.to_owned()).collect();
    case
}

#[test]
fn a_key_that_existed_before_has_the_public_key_that_the_gateways_report() {
    let facts = |case: &Case| facts(&case.tunnel, &case.applied, &case.seen, &case.certified);
    let silent = exit(None, &[]);
    let verdict = silent.verdict("CredentialsValid");
    assert_eq!((verdict.holds, verdict.code), (None, Code::KeyPending));
    assert!(facts(&silent).public_keys.is_empty());
    let reported = exit(None, &[EXIT_KEY]);
    assert_eq!(facts(&reported).public_keys, [EXIT_KEY]);
    assert_eq!(reported.verdict("CredentialsValid").holds, Some(true));
    // Anybody in the cluster can answer in place of a gateway that is gone.
    for wrong in ["a word", ENTRY_KEY] {
        assert!(
            facts(&exit(None, &[wrong])).public_keys.is_empty(),
            "{wrong}"
        );
    }
}

/// The role of the key comes from the side, and not from the name of the Secret.
#[test]
fn an_entry_whose_name_is_like_the_key_of_an_exit_has_a_key_of_an_entry() {
    let mut case = case(&format!("side: Entry\n{ELSEWHERE}"));
    let mut key = own_key(None);
    key.status.secret_name = "a-exit-key-b-entry-key-1".to_owned();
    case.certified.keys = vec![key];
    case.status(End::Entry).public_keys = vec![ENTRY_KEY.to_owned()];
    let facts = facts(&case.tunnel, &case.applied, &case.seen, &case.certified);
    assert_eq!(facts.public_keys, [ENTRY_KEY]);
}

/// The admin port is not authenticated.
#[test]
fn a_report_never_replaces_a_key_that_the_operator_created() {
    let case = exit(Some("mtx1a"), &["mtx1b"]);
    let verdict = case.verdict("CredentialsValid");
    assert_eq!(
        (verdict.holds, verdict.code),
        (Some(false), Code::KeyMismatch)
    );
    assert!(verdict.detail.contains("mtx1b"), "{verdict:?}");
    let facts = facts(&case.tunnel, &case.applied, &case.seen, &case.certified);
    assert_eq!(facts.public_keys, ["mtx1a"]);
    // During a rotation, gateways have the older key, the newer key or both.
    let mut case = exit(Some("mtx1a"), &["mtx1a"]);
    let mut newer = own_key(Some("mtx1b"));
    newer.status.generation = 2;
    case.certified.keys.push(newer);
    assert_eq!(case.verdict("CredentialsValid").holds, Some(true));
    let facts = muxtunnel_operator::tunnel_controller::update_status::facts::facts(
        &case.tunnel,
        &case.applied,
        &case.seen,
        &case.certified,
    );
    assert_eq!(facts.public_keys, ["mtx1b", "mtx1a"]);
}

#[test]
fn a_lost_key_is_named_with_both_remedies() {
    let mut case = exit(Some("mtx1a"), &["mtx1a"]);
    case.certified.keys[0].is_lost = true;
    for type_ in ["CredentialsValid", "Ready"] {
        let verdict = case.verdict(type_);
        assert_eq!((verdict.holds, verdict.code), (Some(false), Code::KeyLost));
        for words in [
            "Secret office-exit-key-1",
            "Restore",
            "key.generations to [2]",
        ] {
            assert!(verdict.detail.contains(words), "{verdict:?}");
        }
    }
}

#[test]
fn where_there_are_none_nothing_is_asked_for() {
    let case = case(SMALLEST);
    assert_eq!(case.verdict("CredentialsValid").code, Code::NotRequested);
}

#[test]
fn an_expired_certificate_and_one_that_is_about_to_expire_are_named() {
    for (more, code, says) in [
        (-3600, Code::CertificateExpired, "expired at"),
        (-3000, Code::CertificateExpiring, "expires at"),
    ] {
        let mut case = managed();
        case.status(End::Entry).certificate = Some(shown("entry", more));
        let verdict = case.verdict("CredentialsValid");
        assert_eq!((verdict.holds, verdict.code), (Some(false), code));
        let words = format!(
            "pod office-entry-0: its certificate {says} {}",
            date(NOW + 3600 + more)
        );
        assert_eq!(verdict.detail, words);
    }
}

#[test]
fn certificates_of_somebody_else_are_judged_by_what_the_gateways_show() {
    let provided = "security: {mode: MutualTls, entry: {secretName: a, peers: [x]}, exit: {secretName: b, peers: [y]}}";
    let spec = MANAGED.replace("carrier: {protocol: JMUX}", provided);
    let mut silent = case(&spec);
    for end in [End::Entry, End::Exit] {
        silent.pod(end).answer = None;
    }
    assert_eq!(silent.verdict("CredentialsValid").holds, None);
    let mut case = case(&spec);
    case.status(End::Exit).certificate = Some(shown("theirs", 0));
    let verdict = case.verdict("CredentialsValid");
    assert_eq!(
        (verdict.holds, verdict.code),
        (Some(true), Code::CertificatesProvided)
    );
}

#[test]
fn what_keeps_certificates_from_being_issued_is_why_the_tunnel_is_not_ready() {
    let mut case = managed();
    case.certified.problem = Some(Problem {
        code: Code::IssuerMissing,
        detail: "cert-manager is not installed".to_owned(),
    });
    for type_ in ["CredentialsValid", "Ready"] {
        let verdict = case.verdict(type_);
        assert_eq!(
            (verdict.holds, verdict.code),
            (Some(false), Code::IssuerMissing)
        );
        assert_eq!(verdict.detail, "cert-manager is not installed");
    }
}

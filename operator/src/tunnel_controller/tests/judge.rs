//! Made-up facts and what is concluded from them.

use k8s_openapi::api::apps::v1::DeploymentStatus;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::{Carrier, Forward, Process, Status, Streams};
use muxtunnel_gateway_config::{Protocol, Role};

use super::*;
use crate::conditions::Verdict;
use crate::tunnel_controller::apply::Applied;
use crate::tunnel_controller::build::{End, config_map::expected_hash};
use crate::tunnel_controller::observe::{Problem, Seen, SeenPod, Wan};
use crate::tunnel_controller::update_status::judge::{facts, verdicts};

/// A tunnel and all facts of it when all is well; tests spoil one of them.
struct Case {
    tunnel: ValidatedTunnel,
    applied: Applied,
    seen: Seen,
}

fn case(spec: &str) -> Case {
    let tunnel = valid(spec);
    let built = build(&tunnel, &settings()).unwrap();
    let mut deployments = built.deployments;
    for deployment in &mut deployments {
        let replicas = deployment.spec.as_ref().unwrap().replicas;
        deployment.metadata.generation = Some(3);
        deployment.status = Some(DeploymentStatus {
            observed_generation: Some(3),
            replicas,
            ready_replicas: replicas,
            updated_replicas: replicas,
            ..DeploymentStatus::default()
        });
    }
    let hash = |end: End| {
        let name = end.child_name(&tunnel);
        let config_map = built
            .config_maps
            .iter()
            .find(|config_map| config_map.metadata.name.as_ref() == Some(&name));
        config_map.and_then(expected_hash)
    };
    let pods = End::ALL
        .into_iter()
        .filter_map(|end| Some(pod(end, &hash(end)?, &tunnel)))
        .collect();
    Case {
        applied: Applied {
            config_maps: built.config_maps.clone(),
            services: built.services,
            deployments,
        },
        tunnel,
        seen: Seen { pods },
    }
}

fn pod(end: End, hash: &str, tunnel: &ValidatedTunnel) -> SeenPod {
    SeenPod {
        end,
        name: format!("office-{}-0", end.component()),
        ready: true,
        problem: None,
        wan: if tunnel.wan.is_some() {
            Wan::Proven
        } else {
            Wan::Absent
        },
        answer: Some(Ok(Status {
            version: "0.1.0".to_owned(),
            role: if end == End::Entry {
                Role::Entry
            } else {
                Role::Exit
            },
            protocol: Protocol::Jmux,
            config_hash: hash.to_owned(),
            config_error: None,
            ready: true,
            draining: false,
            carriers: vec![carrier(
                tunnel
                    .wan
                    .as_ref()
                    .map_or(0.2, |wan| 2.0 * wan.one_way_delay.as_millis() as f64 + 0.4),
            )],
            streams: Streams::default(),
            forwards: Vec::new(),
            process: Process::default(),
            sysctls: tunnel.tuning.clone(),
        })),
    }
}

fn carrier(rtt: f64) -> Carrier {
    Carrier {
        peer: "192.0.2.1:64000".to_owned(),
        uptime_seconds: 1.0,
        rtt_milliseconds: rtt,
        rtt_min_milliseconds: rtt,
        congestion_control: "cubic".to_owned(),
        bytes_sent: 0,
        bytes_received: 0,
        retransmits: 0,
        congestion_window: 10,
        streams: 0,
        receive_budget_used: 0,
    }
}

impl Case {
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
        verdicts(&self.tunnel, &self.applied, &self.seen)
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
        "{SMALLEST}tuning: {{profile: Wan}}\nwan: {{delay: 50ms}}\n"
    ))
}

#[test]
fn all_is_well() {
    let case = tuned_wan();
    for (type_, code) in [
        ("Ready", Code::Reconciled),
        ("Available", Code::Reconciled),
        ("CarrierConnected", Code::CarrierUp),
        ("TuningApplied", Code::SysctlsApplied),
        ("WanEmulated", Code::WanEmulated),
    ] {
        case.expect(type_, Some(true), code, "");
    }
}

#[test]
fn what_is_not_asked_for_does_not_keep_it_from_being_ready() {
    let case = case(SMALLEST);
    case.expect("TuningApplied", Some(false), Code::NotRequested, "");
    case.expect("WanEmulated", Some(false), Code::NotRequested, "");
    case.expect("Ready", Some(true), Code::Reconciled, "");
}

#[test]
fn a_gateway_with_an_older_configuration_is_pending_and_still_available() {
    let mut case = case(SMALLEST);
    case.status(End::Exit).config_hash = "older".to_owned();
    let detail = "office-exit-0 runs an older configuration";
    case.expect("Ready", Some(false), Code::ConfigPending, detail);
    case.expect("Available", Some(true), Code::Reconciled, "");
    case.status(End::Exit).config_error = Some("MT0102 listen changed".to_owned());
    case.expect("Ready", Some(false), Code::ConfigPending, "MT0102 listen");
}

#[test]
fn a_roll_out_is_not_over_before_all_pods_are_new_and_ready() {
    let mut case = case(SMALLEST);
    case.applied.deployments[0].metadata.generation = Some(4);
    let detail = "exit: 1 of 1 gateways ready";
    case.expect("Ready", Some(false), Code::GatewaysNotReady, detail);
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
    let detail = "pod office-exit-0: no answer";
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
        "CarrierConnected",
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
    case.expect("CarrierConnected", Some(false), Code::CarrierConnecting, "");
}

#[test]
fn a_sysctl_that_the_kubelet_refuses_is_the_first_thing_said() {
    let mut case = tuned_wan();
    case.applied.deployments[0].status = None;
    let pod = case.pod(End::Exit);
    pod.answer = None;
    pod.problem = Some(Problem {
        code: Code::SysctlForbidden,
        detail: "pod office-exit-0: forbidden sysctl".to_owned(),
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
    let detail = "asked for 4096 131072 134217728";
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
        detail: "pod office-exit-0: MT0404 netem: no module; nfqueue: no module".to_owned(),
    });
    case.expect(
        "WanEmulated",
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
    let detail = "the round trip takes 50.2 ms, asked for 100 ms (2 x 50ms)";
    case.expect("WanEmulated", Some(false), Code::WanDelayOff, detail);
    case.status(End::Entry).carriers = vec![carrier(180.0)];
    case.expect("WanEmulated", Some(true), Code::WanEmulated, "50ms");
    case.status(End::Entry).carriers.clear();
    case.expect("WanEmulated", Some(false), Code::WanPending, "no carrier");
    case.pod(End::Entry).wan = Wan::Pending;
    case.expect("WanEmulated", Some(false), Code::WanPending, "is starting");
}

#[test]
fn emulation_that_is_switched_off_is_said_to_be_so() {
    let mut case = case(SMALLEST);
    case.tunnel.wan_disabled = true;
    case.expect("WanEmulated", Some(false), Code::WanDisabled, "");
    case.expect("Ready", Some(false), Code::WanDisabled, "");
    case.expect("Available", Some(true), Code::Reconciled, "");
}

#[test]
fn the_status_has_the_facts() {
    let mut case = tuned_wan();
    let sysctls = &mut case.status(End::Exit).sysctls;
    sysctls.insert("net.ipv4.tcp_wmem".to_owned(), "1\t2\t3".to_owned());
    let status = facts(&case.tunnel, &case.applied, &case.seen);
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

//! Constructed observations and the verdicts on them.

mod bottleneck;
mod causes;
mod credentials;
mod facts;
mod features;
mod files;
mod targets;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::{
    Carrier, Credit, Forward, OpenFiles, Process, Resume, Splice, Status, Streams,
};
use muxtunnel_gateway_config::{Protocol, Role};
use muxtunnel_operator::conditions::Verdict;
use muxtunnel_operator::tunnel_controller::apply::Applied;
use muxtunnel_operator::tunnel_controller::build::Certified;
use muxtunnel_operator::tunnel_controller::build::config_map::expected_hash;
use muxtunnel_operator::tunnel_controller::end::End;
use muxtunnel_operator::tunnel_controller::keyring::OwnKey;
use muxtunnel_operator::tunnel_controller::observe::{Seen, SeenPod, Wan};
use muxtunnel_operator::tunnel_controller::problem::Problem;
use muxtunnel_operator::tunnel_controller::publish::Observation;
use muxtunnel_operator::tunnel_controller::update_status::facts::facts;
use muxtunnel_operator::tunnel_controller::update_status::verdicts::verdicts;

use super::*;

/// A tunnel and all observations of this tunnel in a healthy state. Each test changes one
/// observation.
struct Case(Observation);

impl Deref for Case {
    type Target = Observation;

    fn deref(&self) -> &Observation {
        &self.0
    }
}

impl DerefMut for Case {
    fn deref_mut(&mut self) -> &mut Observation {
        &mut self.0
    }
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
        let name = tunnel.child(end);
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
    Case(Observation {
        applied: Applied {
            config_maps: built.config_maps.clone(),
            services: built.services,
            deployments,
            refusal: None,
        },
        object: Box::new(tunnel),
        seen: Seen { pods },
        certified: Certified {
            now: NOW,
            ..Certified::default()
        },
        stale: Vec::new(),
    })
}

/// The time of all observations, in seconds since 1970.
const NOW: i64 = 1_900_000_000;

fn pod(end: End, (key, hash): (String, String), tunnel: &ValidatedObject) -> SeenPod {
    SeenPod {
        end,
        name: format!("{}-0", tunnel.child(end)),
        node: Some("node-a".to_owned()),
        config: Some(key),
        set: None,
        made: None,
        has_sysctls: true,
        started: true,
        ready: true,
        problem: None,
        wan: if tunnel.pods.wan.is_some() {
            Wan::Proven
        } else {
            Wan::Absent
        },
        answer: Some(Ok(Status {
            version: "0.1.0".to_owned(),
            connect: None,
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
            unknown_keys: None,
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
                    .pods
                    .wan
                    .as_ref()
                    .map_or(0.2, |wan| 2.0 * f64::from(wan.delay_milliseconds) + 0.4),
            )],
            streams: Streams::default(),
            forwards: Vec::new(),
            rendezvous: None,
            process: Process::default(),
            sysctls: tunnel.pods.tuning(end).cloned().unwrap_or_default(),
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
        pod(end, (key, hash), &self.object)
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

    fn find(&self, type_: &str) -> Option<Verdict> {
        let mut verdicts = verdicts(self).into_iter();
        verdicts.find(|verdict| verdict.type_ == type_)
    }

    /// The fields of the status.
    fn facts(&self) -> Value {
        serde_json::to_value(facts(self)).unwrap()
    }

    /// The ready and the wanted gateways of an end.
    fn ready(&self, end: &str) -> String {
        let end = &self.facts()[end];
        format!("{}/{}", end["readyReplicas"], end["replicas"])
    }

    fn verdict(&self, type_: &str) -> Verdict {
        let found = self.find(type_);
        found.unwrap_or_else(|| panic!("no condition {type_}"))
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
        "{SMALLEST}tuning: {{profile: WAN}}\nwanEmulation: {{delayMilliseconds: 50}}\n"
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

/// A condition that does not apply is absent.
#[test]
fn what_is_not_asked_for_has_no_condition_and_does_not_keep_it_from_being_ready() {
    let untuned = format!("{SMALLEST}tuning: {{profile: None}}\n");
    let all = [
        (
            untuned.as_str(),
            &[
                "TuningApplied",
                "WANEmulated",
                "NetworkReady",
                "CredentialsValid",
            ][..],
        ),
        (EXIT, &["Connected"]),
        (RENDEZVOUS, &["Connected", "TuningApplied"]),
    ];
    for (spec, absent) in all.into_iter() {
        let case = case(spec);
        for type_ in absent {
            assert_eq!(case.find(type_), None, "{spec}: {type_}");
        }
    }
    case(&untuned).expect("Ready", Some(true), Code::Reconciled, "");
}

#[test]
fn a_pod_that_does_not_start_is_asked_for_its_secrets() {
    let mut case = case(
        "
proxies: [{name: any, port: 1, protocol: SOCKS5, usersSecretRef: {name: people}}]
allow: [{host: '*'}]
security:
  mode: Certificates
  certificates: {entry: {secretRef: {name: keys}}, exit: {secretRef: {name: other}}, entryNames: [a], exitNames: [a]}
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
    case.expect("Connected", Some(false), Code::CarrierConnecting, detail);
}

#[test]
fn an_exit_alone_is_ready_before_anybody_connects() {
    let mut case = case(EXIT);
    case.status(End::Exit).carriers.clear();
    case.expect("Ready", Some(true), Code::Reconciled, "");
    case.expect("Available", Some(true), Code::Reconciled, "");
}

/// An exit of a higher order is in use until the first one answers again.
#[test]
fn a_tunnel_says_which_exits_it_uses() {
    let second = format!(
        "- {{name: second, order: 1, host: b.example.com, port: 443, publicKeys: [{SECOND_EXIT_KEY}]}}"
    );
    let mut case = case(&format!("{ELSEWHERE}{second}\n"));
    for (used, code) in [("far", Code::CarrierUp), ("second", Code::FailedOver)] {
        let active = json!({"active": [used]});
        case.status(End::Entry).connect = serde_json::from_value(active.clone()).unwrap();
        case.expect("Connected", Some(true), code, "");
        assert_eq!(case.facts()["connect"], active);
        assert_eq!(case.verdict("Ready").holds, Some(true), "{used}");
    }
    // The order of the spec, not that of the names or of the gateway's answer.
    let mut case = self::case(&format!("{ELSEWHERE}{second}\n").replace("second", "alpha"));
    let active = json!({"active": ["alpha", "far"]});
    case.status(End::Entry).connect = serde_json::from_value(active).unwrap();
    assert_eq!(case.facts()["connect"], json!({"active": ["far", "alpha"]}));
}

#[test]
fn a_roll_out_that_restarts_gateways_is_not_a_rejected_configuration() {
    let mut case = case(SMALLEST);
    let entry = causes::deployment(&mut case, End::Entry);
    entry.status.as_mut().unwrap().updated_replicas = Some(0);
    let status = case.status(End::Entry);
    status.config_hash = "older".to_owned();
    status.config_error = Some("MT0102: restart the gateway to change workers".to_owned());
    case.expect(
        "Ready",
        Some(false),
        Code::GatewaysNotReady,
        "entry: 1 of 1 gateways ready",
    );
}

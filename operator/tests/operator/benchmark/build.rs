//! The rendered objects of an environment, of the runner and of the results.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use muxtunnel_crds::{CongestionControl, MuxTunnel, Pool, Protocol, Transport};
use muxtunnel_operator::benchmark_controller::build::{
    EnvironmentObjects, environment, results, runner,
};
use muxtunnel_operator::benchmark_controller::validate::validate;
use muxtunnel_operator::tunnel_controller;
use muxtunnel_operator::tunnel_controller::object::Object;
use muxtunnel_testkit::openshift::restricted_v2;
use serde_json::{Value, json};

use crate::fixtures::benchmark::{benchmark, class, settings};
use crate::fixtures::tunnel::class_with;

const SPEC: &str = "
tunnel:
  security: {mode: None}
  exit: {template: {spec: {nodeSelector: {zone: far}}}}
delayMilliseconds: [50, 0]
profiles: [WAN]
ttlSecondsAfterFinished: 600
durationSeconds: 5
warmUpSeconds: 2
";

/// Environment `index` of the benchmark `spec` as JSON: tunnels, services, deployments by name.
fn built(spec: &str, index: usize) -> (EnvironmentObjects, BTreeMap<String, Value>) {
    let valid = validate(&benchmark(spec), Ok(class())).unwrap();
    let objects = environment(&settings(), &valid, &valid.environments[index]).unwrap();
    let agents = objects.agents.iter().map(|agent| {
        let pod = serde_json::to_value(&agent.spec.as_ref().unwrap().template).unwrap();
        (agent.name_any(), pod)
    });
    let agents = agents.collect();
    (objects, agents)
}

#[test]
fn the_direct_pair_has_the_sysctls_and_the_delay_of_the_gateways() {
    let (_, agents) = built(SPEC, 0);
    for name in ["probe-e1-direct-client", "probe-e1-direct-server"] {
        let spec = &agents[name]["spec"];
        let sysctls = spec["securityContext"]["sysctls"].as_array().unwrap();
        let rmem = json!({"name": "net.ipv4.tcp_rmem", "value": "4096 131072 134217728"});
        assert!(sysctls.contains(&rmem), "{sysctls:?}");
        let wan = &spec["initContainers"][0];
        assert_eq!(wan["image"], "example.com/netem:1");
        assert_eq!(
            wan["securityContext"]["capabilities"]["add"],
            json!(["NET_ADMIN"])
        );
        let args = wan["args"].as_array().unwrap();
        let args: Vec<_> = args.iter().filter_map(Value::as_str).collect();
        let args = args.join(" ");
        assert!(args.contains("--delay 50ms"), "{args}");
        assert!(args.contains("--port 5001 --port 5002"), "{args}");
        assert!(!args.contains("64000"), "{args}");
        let mounted = &wan["volumeMounts"][0]["name"];
        let volumes = spec["volumes"].as_array().unwrap();
        assert!(
            volumes.iter().any(|volume| volume["name"] == *mounted),
            "{volumes:?}"
        );
    }
}

/// The keys of a tunnel in security mode PublicKeys do not exist when its environment is built.
#[test]
fn the_environment_of_a_benchmark_with_the_default_security_has_a_pair_for_both_routes() {
    let spec = SPEC.replace("  security: {mode: None}\n", "");
    assert_ne!(spec, SPEC);
    let (objects, _) = built(&spec, 0);
    assert_eq!(objects.agents.len(), built(SPEC, 0).0.agents.len());
    let tunnel = serde_json::to_value(&objects.tunnels[0]).unwrap();
    assert_ne!(tunnel["spec"]["security"]["mode"], "None");
}

#[test]
fn the_tunnel_pair_keeps_the_kernels_defaults_and_no_privilege() {
    let (_, agents) = built(SPEC, 0);
    for name in ["probe-e1-tunnel-client", "probe-e1-tunnel-server"] {
        let spec = &agents[name]["spec"];
        assert_eq!(spec["securityContext"]["sysctls"], Value::Null);
        assert_eq!(spec["initContainers"], Value::Null);
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        let security = &spec["containers"][0]["securityContext"];
        assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
    }
}

#[test]
fn every_pod_fits_into_restricted_v2_but_for_the_emulation() {
    let valid = validate(&benchmark(SPEC), Ok(class())).unwrap();
    let runner = serde_json::to_value(runner::job(&valid)).unwrap();
    restricted_v2(&runner["spec"]["template"]["spec"]).unwrap();
    for index in [0, 1] {
        let (_, agents) = built(SPEC, index);
        for (name, pod) in agents {
            let mut found = restricted_v2(&pod["spec"]).err().unwrap_or_default();
            found.retain(|control| !control.ends_with(": wan"));
            assert!(found.is_empty(), "{name}: {found:?}");
        }
    }
}

#[test]
fn servers_stand_where_the_exit_stands() {
    let (_, agents) = built(SPEC, 0);
    let zone = |name: &str| agents[name]["spec"]["nodeSelector"]["zone"].clone();
    assert_eq!(zone("probe-e1-direct-server"), "far");
    assert_eq!(zone("probe-e1-tunnel-server"), "far");
    assert_eq!(zone("probe-e1-direct-client"), Value::Null);
}

#[test]
fn without_a_delay_nothing_is_emulated() {
    let (objects, agents) = built(SPEC, 1);
    assert_eq!(objects.tunnels[0].spec.wan_emulation, None);
    assert!(
        agents
            .values()
            .all(|pod| pod["spec"]["initContainers"].is_null())
    );
}

#[test]
fn the_tunnel_leads_iperf_and_echo_to_the_server_agent() {
    let (objects, agents) = built(SPEC, 0);
    let tunnel = serde_json::to_value(&objects.tunnels[0]).unwrap();
    assert_eq!(tunnel["metadata"]["name"], "probe-e1-native");
    assert_eq!(tunnel["metadata"]["ownerReferences"][0]["name"], "probe");
    assert_eq!(
        tunnel["spec"]["wanEmulation"],
        json!({"delayMilliseconds": 50})
    );
    assert_eq!(tunnel["spec"]["tuning"], json!({"profile": "WAN"}));
    assert_eq!(tunnel["spec"]["security"], json!({"mode": "None"}));
    let service = serde_json::to_value(&objects.services[0]).unwrap();
    for (forward, port) in [(0, 5001), (1, 5002)] {
        let forward = &tunnel["spec"]["forwards"][forward];
        assert_eq!(forward["port"], port);
        let server = json!({"name": service["metadata"]["name"]});
        assert_eq!(
            forward["targets"],
            json!([{"serviceRef": server, "port": port}])
        );
    }
    let labels = &agents["probe-e1-tunnel-server"]["metadata"]["labels"];
    let selector = service["spec"]["selector"].as_object().unwrap();
    assert_eq!(selector["muxtunnel.dev/kind"], "MuxBenchmark");
    assert!(selector.iter().all(|(key, value)| labels[key] == *value));
}

#[test]
fn each_protocol_has_a_tunnel_of_its_own_to_the_same_server() {
    let (objects, agents) = built(&format!("{SPEC}protocols: [JMUX, Native]\n"), 0);
    let names: Vec<_> = objects.tunnels.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["probe-e1-jmux", "probe-e1-native"]);
    let [jmux, native] = objects.tunnels.try_into().unwrap();
    let protocol = |tunnel: &MuxTunnel| {
        tunnel
            .spec
            .carrier
            .as_ref()
            .and_then(|c| c.connection.protocol)
    };
    assert_eq!(protocol(&jmux), Some(Protocol::Jmux));
    assert_eq!(protocol(&native), Some(Protocol::Native));
    assert_eq!(jmux.spec.forwards, native.spec.forwards);
    assert_eq!((objects.services.len(), agents.len()), (1, 4));
}

#[test]
fn tunnels_have_what_is_asked_of_carriers_as_far_as_their_protocol_has_it() {
    let carrier = "
  carrier: {congestionControl: Cubic, livenessSeconds: 30, transport: KCP, pool: {min: 2, max: 8}, resume: true}
  security:";
    let spec = SPEC.replace("\n  security:", carrier);
    let (objects, _) = built(&format!("{spec}protocols: [JMUX, Native]\n"), 0);
    let carriers = objects
        .tunnels
        .into_iter()
        .map(|tunnel| tunnel.spec.carrier.unwrap());
    let [jmux, native] = carriers.collect::<Vec<_>>().try_into().unwrap();
    let cubic = Some(CongestionControl::Cubic);
    assert_eq!(
        (jmux.connection.congestion_control, jmux.pool),
        (cubic, None)
    );
    assert_eq!((jmux.resume, jmux.connection.transport), (None, None));
    assert_eq!(
        (
            jmux.connection.liveness_seconds,
            native.connection.liveness_seconds
        ),
        (Some(30), Some(30))
    );
    assert_eq!(native.connection.transport, Some(Transport::Kcp));
    let pool = Pool {
        min: 2,
        max: Some(8),
    };
    assert_eq!(
        (native.connection.congestion_control, native.pool),
        (None, Some(pool))
    );
    assert_eq!(native.resume, Some(true));
}

#[test]
fn a_path_that_is_not_measured_has_no_objects() {
    let (objects, agents) = built(&format!("{SPEC}paths: [Direct]\n"), 0);
    assert!(objects.tunnels.is_empty() && objects.services.is_empty());
    let names: Vec<_> = agents.keys().collect();
    assert_eq!(names, ["probe-e1-direct-client", "probe-e1-direct-server"]);
}

#[test]
fn ip_packets_have_a_tunnel_without_forwards_whose_gateways_have_the_agents_beside_them() {
    let spec = format!("{SPEC}paths: [Network]\nprotocols: [JMUX, Native]\n");
    let (objects, agents) = built(&spec, 0);
    assert!(agents.is_empty() && objects.services.is_empty());
    let [tunnel] = objects.tunnels.try_into().unwrap();
    assert_eq!(tunnel.name_any(), "probe-e1-network");
    assert!(tunnel.spec.forwards.is_empty());
    let network = serde_json::to_value(&tunnel.spec.network).unwrap();
    assert_eq!(network["entry"]["addresses"], json!(["198.18.0.1"]));
    assert_eq!(network["exit"]["cidrs"], json!(["198.18.0.2/32"]));
    let carrier = tunnel.spec.carrier.as_ref().unwrap();
    assert_eq!(carrier.connection.protocol, Some(Protocol::Native));

    for pod in gateways(tunnel) {
        let [gateway, agent] = pod["containers"].as_array().unwrap().as_slice() else {
            panic!("{}", pod["containers"]);
        };
        assert_eq!(
            (&gateway["name"], &agent["name"]),
            (&json!("gateway"), &json!("agent"))
        );
        assert_eq!(
            agent["args"],
            json!(["agent", "--token-file=/etc/muxbench/token"])
        );
        let volumes = pod["volumes"].as_array().unwrap();
        let token = json!({"name": "token", "secret": {"secretName": "probe-token-uidofprobe"}});
        assert!(volumes.contains(&token), "{volumes:?}");
        let mut found = restricted_v2(&pod).unwrap_err();
        let privileged = [": wan", ": network", ": pod"];
        found.retain(|control| !privileged.iter().any(|place| control.ends_with(place)));
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn gateways_of_other_tunnels_have_no_agent_beside_them() {
    let (objects, _) = built(SPEC, 0);
    let [tunnel] = objects.tunnels.try_into().unwrap();
    let mut free = built(&format!("{SPEC}paths: [Network]\n"), 0)
        .0
        .tunnels
        .remove(0);
    free.metadata.owner_references = None;
    for tunnel in [tunnel, free] {
        for pod in gateways(tunnel) {
            assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
        }
    }
}

/// The pods that the tunnel's controller builds for an existing tunnel.
fn gateways(mut tunnel: MuxTunnel) -> Vec<Value> {
    tunnel.metadata.uid = Some("uid-of-the-tunnel".to_owned());
    let tunnel = Object::from(Arc::new(tunnel));
    let valid = tunnel_controller::validate::validate(&tunnel, &Default::default(), class());
    let resources = tunnel_controller::build::build(&valid.unwrap(), &settings()).unwrap();
    let pods = resources.deployments.into_iter();
    let pods = pods.map(|deployment| json!(deployment.spec.unwrap().template.spec));
    let pods: Vec<_> = pods.collect();
    assert_eq!(pods.len(), 2);
    pods
}

#[test]
fn protocols_that_carry_packets_are_those_of_the_gateways() {
    use muxtunnel_gateway_config::Protocol;
    let carrying = Protocol::ALL.into_iter().filter(|one| one.can().packets);
    let names: Vec<_> = carrying.map(Protocol::as_str).collect();
    assert_eq!(names, muxtunnel_bench_api::PACKET_PROTOCOLS);
}

#[test]
fn a_network_that_the_class_does_not_permit_is_refused_with_a_sentence() {
    let without = class_with(|spec| spec["permitted"]["features"] = json!(["WANEmulation"]));
    let valid = validate(
        &benchmark(&format!("{SPEC}paths: [Network]\n")),
        Ok(without),
    )
    .unwrap();
    let refusal = environment(&settings(), &valid, &valid.environments[0]).unwrap_err();
    assert!(
        refusal.to_string().contains("needs the feature Network"),
        "{refusal}"
    );
}

#[test]
fn the_runner_is_one_pod_once_and_knows_the_whole_matrix() {
    let valid = validate(&benchmark(SPEC), Ok(class())).unwrap();
    let job = serde_json::to_value(runner::job(&valid)).unwrap();
    assert_eq!(job["spec"]["backoffLimit"], 0);
    assert_eq!(job["spec"]["ttlSecondsAfterFinished"], 600);
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["restartPolicy"], "Never");
    assert_eq!(pod["automountServiceAccountToken"], false);
    let args: Vec<_> = pod["containers"][0]["args"]
        .as_array()
        .unwrap()
        .iter()
        .collect();
    for arg in [
        "run",
        "--delay-milliseconds=50,0",
        "--profiles=WAN",
        "--duration-seconds=5",
        "--warm-up-seconds=2",
    ] {
        assert!(args.contains(&&json!(arg)), "{arg} in {args:?}");
    }
}

#[test]
fn results_are_read_as_they_were_written() {
    let valid = validate(&benchmark(SPEC), Ok(class())).unwrap();
    let summary = muxtunnel_bench_api::result::Summary {
        cells: 6,
        ..Default::default()
    };
    let written = results::config_map(&valid, &[], Some(&summary));
    assert_eq!(results::read(&written), (vec![], Some(summary)));
}

/// The labels of a benchmark's tunnel are the labels of its tunnels, so the same keys are permitted.
#[test]
fn a_label_that_the_class_does_not_permit_is_refused() {
    for end in ["entry", "exit"] {
        let labelled = |key: &str| {
            let spec = format!(
                "tunnel: {{security: {{mode: None}}, {end}: {{template: {{metadata: {{labels: {{{key}: payments}}}}}}}}}}\n"
            );
            let valid = validate(&benchmark(&spec), Ok(class())).unwrap();
            environment(&settings(), &valid, &valid.environments[0])
        };
        assert!(labelled("team").is_ok());
        let Err(refused) = labelled("app") else {
            panic!("{end}: the label is taken");
        };
        let problem = "template.metadata.labels app: permitted.podMetadataKeys of MuxClass muxtunnel does not have this key";
        assert!(refused.to_string().contains(problem), "{refused}");
    }
}

#[test]
fn the_template_is_that_of_the_runner_and_of_all_agents() {
    let spec = format!(
        "{SPEC}
template:
  metadata: {{labels: {{team: net}}}}
  spec:
    nodeSelector: {{zone: lab}}
    containers:
    - {{name: agent, resources: {{requests: {{cpu: 50m}}, limits: {{cpu: 50m, memory: 64Mi}}}}}}
    - {{name: runner, resources: {{limits: {{memory: 32Mi}}}}}}
"
    );
    let own = json!({"requests": {"cpu": "50m"}, "limits": {"cpu": "50m", "memory": "64Mi"}});
    let (_, agents) = built(&spec, 0);
    assert_eq!(agents.len(), 4);
    for (name, agent) in &agents {
        assert_eq!(agent["spec"]["containers"][0]["resources"], own, "{name}");
        assert_eq!(
            agent["spec"]["nodeSelector"],
            json!({"zone": "lab"}),
            "{name}"
        );
        assert_eq!(agent["metadata"]["labels"]["team"], "net", "{name}");
    }
    let valid = validate(&benchmark(&spec), Ok(class())).unwrap();
    let job = serde_json::to_value(runner::job(&valid)).unwrap();
    let pod = &job["spec"]["template"];
    let limits = pod.pointer("/spec/containers/0/resources/limits");
    assert_eq!(limits, Some(&json!({"memory": "32Mi"})));
    assert_eq!(pod["spec"]["nodeSelector"], json!({"zone": "lab"}));
    assert_eq!(pod["metadata"]["labels"]["team"], "net");
}

#[test]
fn the_runner_has_the_pull_secrets_of_both_ends() {
    let ends = "
  entry: {template: {spec: {imagePullSecrets: [{name: near}, {name: both}]}}}
  exit: {template: {spec: {imagePullSecrets: [{name: both}, {name: far}]}}}
";
    let spec = SPEC.replace(
        "\n  exit: {template: {spec: {nodeSelector: {zone: far}}}}\n",
        ends,
    );
    let job = runner::job(&validate(&benchmark(&spec), Ok(class())).unwrap());
    let secrets = |job: k8s_openapi::api::batch::v1::Job| {
        let pod = job.spec.unwrap().template.spec.unwrap();
        serde_json::to_value(pod.image_pull_secrets).unwrap()
    };
    assert_eq!(
        secrets(job),
        json!([{"name": "near"}, {"name": "both"}, {"name": "far"}])
    );
    let job = runner::job(&validate(&benchmark(SPEC), Ok(class())).unwrap());
    assert_eq!(secrets(job), Value::Null);
    let (objects, agents) = built(&spec, 0);
    assert_eq!(
        agents["probe-e1-tunnel-server"]["spec"]["imagePullSecrets"],
        json!([{"name": "both"}, {"name": "far"}])
    );
    let mut histories = objects.agents.iter().map(|agent| {
        let spec = agent.spec.as_ref().unwrap();
        spec.revision_history_limit
    });
    assert!(histories.all(|history| history == Some(0)));
}

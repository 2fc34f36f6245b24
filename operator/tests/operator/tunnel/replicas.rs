//! The number of gateways, their placement, and the objects that depend on them.

use serde_json::json;

use super::build::{config, pod};
use super::*;

const HA: &str = "
entry:
  autoscaling: {minReplicas: 2, maxReplicas: 8, targetCPUUtilizationPercentage: 70}
  drainSeconds: 600
  template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: 500m}}}]}}
exit:
  replicas: 3
";

fn with(extra: &str) -> String {
    format!("{SMALLEST}{extra}")
}

#[test]
fn the_number_of_pods_is_left_to_the_autoscaler_where_there_is_one() {
    let resources = built(&with(HA));
    let entry = child(&resources.deployments, "office-entry");
    assert!(entry["spec"]["replicas"].is_null());
    let autoscaler = child(&resources.autoscalers, "office-entry");
    assert_eq!(
        autoscaler["spec"],
        json!({
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "office-entry"},
            "minReplicas": 2,
            "maxReplicas": 8,
            "metrics": [{
                "type": "ContainerResource",
                "containerResource": {
                    "name": "cpu",
                    "container": "gateway",
                    "target": {"type": "Utilization", "averageUtilization": 70},
                },
            }],
        })
    );
    assert_eq!(resources.autoscalers.len(), 1);
    let exit = child(&resources.deployments, "office-tunnel-exit");
    assert_eq!(exit["spec"]["replicas"], 3);
}

/// A user or a user's autoscaler may scale the Deployment.
#[test]
fn the_number_of_pods_is_left_to_the_user_where_the_spec_has_none() {
    let resources = built(SMALLEST);
    for name in ["office-entry", "office-tunnel-exit"] {
        let deployment = child(&resources.deployments, name);
        assert!(deployment["spec"]["replicas"].is_null(), "{name}");
    }
    // Exactly one gateway carries the packets of a network.
    let network = "network: {entry: {cidrs: [10.1.0.0/24]}, exit: {cidrs: [10.2.0.0/24]}}\n";
    let network = SMALLEST.replace("protocol: JMUX", "protocol: Native") + network;
    let resources = built(&network);
    assert_eq!(
        child(&resources.deployments, "office-tunnel-exit")["spec"]["replicas"],
        1
    );
}

#[test]
fn of_several_pods_one_at_a_time_may_be_evicted() {
    let resources = built(&with(HA));
    for name in ["office-entry", "office-tunnel-exit"] {
        let budget = child(&resources.pod_disruption_budgets, name);
        assert_eq!(budget["spec"]["maxUnavailable"], 1);
        assert_eq!(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
        let deployment = child(&resources.deployments, name);
        assert_eq!(budget["spec"]["selector"], deployment["spec"]["selector"]);
    }
    let one = "exit: {autoscaling: {maxReplicas: 4}, template: {spec: {containers: [{name: gateway, resources: {limits: {cpu: 1}}}]}}}";
    let one = built(&with(one));
    assert_eq!(
        child(&one.autoscalers, "office-tunnel-exit")["spec"]["minReplicas"],
        1
    );
    // The autoscaler may add pods.
    let budget = child(&one.pod_disruption_budgets, "office-tunnel-exit");
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    assert_eq!(one.pod_disruption_budgets.len(), 1);
}

#[test]
fn the_time_to_drain_reaches_the_gateway_and_the_pod_has_a_little_more() {
    let resources = built(&with(HA));
    for (name, deadline) in [("office-entry", 600), ("office-tunnel-exit", 25)] {
        let drain = config(&resources, name).drain;
        assert_eq!(
            (drain.accept_seconds, drain.deadline_seconds),
            (5, deadline)
        );
        let grace = &pod(&resources, name)["spec"]["terminationGracePeriodSeconds"];
        assert_eq!(*grace, deadline + 5);
    }
}

#[test]
fn pods_of_one_side_are_kept_apart_unless_the_template_says_its_own() {
    let resources = built(SMALLEST);
    let spec = &pod(&resources, "office-tunnel-exit")["spec"];
    let labels = child(&resources.deployments, "office-tunnel-exit")["spec"]["selector"].clone();
    let spread = &spec["topologySpreadConstraints"];
    assert_eq!(
        *spread,
        json!([{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": labels,
            "matchLabelKeys": ["pod-template-hash"],
        }])
    );
    let terms =
        &spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    let keys: Vec<_> = terms.as_array().unwrap().iter().collect();
    for (term, key) in keys
        .iter()
        .zip(["kubernetes.io/hostname", "topology.kubernetes.io/zone"])
    {
        assert_eq!(term["podAffinityTerm"]["topologyKey"], key);
        assert_eq!(term["podAffinityTerm"]["labelSelector"], labels);
    }
    assert_eq!(keys.len(), 2);

    let own = built(&with(
        "
exit:
  template:
    spec:
      topologySpreadConstraints: [{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]
      affinity: {podAntiAffinity: {}, nodeAffinity: {}}
entry:
  template:
    spec: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}}
",
    ));
    let exit = &pod(&own, "office-tunnel-exit")["spec"];
    assert_eq!(exit["topologySpreadConstraints"][0]["topologyKey"], "rack");
    assert_eq!(exit["affinity"]["podAntiAffinity"], json!({}));
    let entry = &pod(&own, "office-entry")["spec"]["affinity"];
    assert!(entry["nodeAffinity"].is_object() && entry["podAntiAffinity"].is_object());
}

#[test]
fn another_number_of_pods_is_no_roll_out() {
    let one = built(SMALLEST);
    let two = built(&with("exit: {replicas: 2}"));
    assert_eq!(
        pod(&one, "office-tunnel-exit"),
        pod(&two, "office-tunnel-exit")
    );
}

#[test]
fn an_exit_has_room_for_as_many_entries_as_there_may_be() {
    let limits = "template: {spec: {containers: [{name: gateway, resources: {limits: {cpu: 2, memory: 256Mi}}}]}}";
    let native = SMALLEST.replace("protocol: JMUX", "protocol: Native");
    let room = |entry: &str| {
        let resources = built(&format!(
            "{native}entry: {{{entry}, {limits}}}\nexit: {{{limits}}}\n"
        ));
        let exit = config(&resources, "office-tunnel-exit");
        (exit.memory.sessions, exit.limits.carriers)
    };
    let six = room("autoscaling: {maxReplicas: 6}");
    assert_eq!(six, room("replicas: 6"));
    assert_eq!(six.0, Some(13));
    assert_ne!(six, room("replicas: 1"));
}

#[test]
fn a_rendezvous_has_no_sessions_whose_memory_would_be_counted() {
    let limited = |limits: &str| {
        let template = format!(
            "{{spec: {{containers: [{{name: gateway, resources: {{limits: {limits}}}}}]}}}}"
        );
        config(
            &built(&format!("{RENDEZVOUS}template: {template}\n")),
            "office-rendezvous",
        )
    };
    let config = limited("{memory: 64Mi}");
    assert_eq!(config.workers, None);
    assert_eq!(config.memory, muxtunnel_gateway_config::Memory::default());
    assert_eq!(limited("{memory: 64Mi, cpu: 1500m}").workers, Some(2));
}

/// The number of an exit is also the field of its scale subresource.
#[test]
fn an_exit_alone_has_the_number_of_its_gateway() {
    let exit = built(&format!(
        "{EXIT}gateway: {{replicas: 3, drainSeconds: 120}}\n"
    ));
    let deployment = child(&exit.deployments, "office-exit");
    assert_eq!(deployment["spec"]["replicas"], 3);
    assert_eq!(config(&exit, "office-exit").drain.deadline_seconds, 120);
    assert_eq!(exit.pod_disruption_budgets.len(), 1);
    let scaled = "autoscaling: {minReplicas: 2, maxReplicas: 4}, \
                  template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: 1}}}]}}";
    let exit = built(&format!("{EXIT}gateway: {{{scaled}}}\n"));
    let autoscaler = child(&exit.autoscalers, "office-exit");
    assert_eq!(autoscaler["spec"]["scaleTargetRef"]["name"], "office-exit");
    // Without a request, the utilization has no meaning.
    let without = format!("{EXIT}gateway: {{autoscaling: {{maxReplicas: 4}}}}\n");
    let sentence = "autoscaling of the exit gateways measures CPU time in percent of the request";
    assert!(
        refusal(&without).starts_with(sentence),
        "{}",
        refusal(&without)
    );
}

//! The rendered objects of a spec.

use muxtunnel_gateway_config::Config;
use serde_json::{Value, json};

use super::*;

pub(super) fn config(resources: &Resources, name: &str) -> Config {
    let config_map = child(&resources.config_maps, name);
    let data = config_map["data"].as_object().unwrap().iter();
    // No gateway reads the ports that MuxPeers name.
    let mut texts = data.filter(|(key, _)| *key != "reverse-ports.yaml");
    let (_, text) = texts.next().unwrap();
    let text = text.as_str().unwrap();
    assert_eq!(texts.next(), None);
    Config::from_yaml(text).unwrap()
}

pub(super) fn pod(resources: &Resources, name: &str) -> Value {
    child(&resources.deployments, name)["spec"]["template"].clone()
}

fn with(extra: &str) -> String {
    format!("{SMALLEST}{extra}")
}

#[test]
fn every_child_is_owned_by_the_tunnel_and_does_not_hold_up_its_deletion() {
    let resources = built(SMALLEST);
    let children = [
        child(&resources.service_accounts, "office-entry"),
        child(&resources.config_maps, "office-entry"),
        child(&resources.services, "office-entry"),
        child(&resources.deployments, "office-entry"),
        child(&resources.service_accounts, "office-tunnel-exit"),
        child(&resources.config_maps, "office-tunnel-exit"),
        child(&resources.services, "office-tunnel-exit"),
        child(&resources.deployments, "office-tunnel-exit"),
    ];
    for child in children {
        assert_eq!(
            child["metadata"]["ownerReferences"],
            json!([{
                "apiVersion": "muxtunnel.dev/v1alpha1",
                "kind": "MuxTunnel",
                "name": "office",
                "uid": "uid-office",
                "controller": true,
            }])
        );
        assert_eq!(child["metadata"]["namespace"], "site");
    }
}

#[test]
fn a_gateway_has_no_privilege_and_no_token() {
    let resources = built(SMALLEST);
    let account = child(&resources.service_accounts, "office-tunnel-exit");
    assert_eq!(account["automountServiceAccountToken"], false);
    let spec = &pod(&resources, "office-tunnel-exit")["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["serviceAccountName"], "office-tunnel-exit");
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["runAsUser"], Value::Null);
    assert_eq!(
        spec["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    assert_eq!(
        spec["containers"][0]["securityContext"],
        json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        })
    );
    assert!(spec["initContainers"].is_null());
}

#[test]
fn a_change_of_forwards_changes_no_pod_template() {
    let before = built(SMALLEST);
    let after = built(&SMALLEST.replace("8080", "9090").replace("5432", "5433"));
    for name in ["office-entry", "office-tunnel-exit"] {
        assert_eq!(pod(&before, name), pod(&after, name));
        assert_ne!(
            child(&before.config_maps, name)["data"],
            child(&after.config_maps, name)["data"]
        );
    }
}

#[test]
fn a_change_that_needs_a_restart_changes_the_pod_template() {
    let before = built(ELSEWHERE);
    let after = built(&format!("{ELSEWHERE}carrier: {{resume: false}}\n"));
    assert_ne!(pod(&before, "office-entry"), pod(&after, "office-entry"));
}

#[test]
fn what_is_invalid_is_refused_with_a_sentence_here_as_well() {
    let db = |limits: &str| SMALLEST.replace("name: db", &format!("name: db\n  limits: {limits}"));
    assert_refused([
        (
            SMALLEST.replace("443", "8080"),
            "forward db: port 8080 of the entry gateways is in use: choose another port",
        ),
        (
            with("timeouts: {idleSeconds: 2592001}"),
            "cannot render the configuration of the exit: timeouts.idleSeconds: must be from 0 to 2592000",
        ),
        (
            db("{streams: 0}"),
            "cannot render the configuration of the entry: forwards[1].limits.streams: must be from 1 to 1000000",
        ),
    ]);
}

#[test]
fn the_configuration_is_mounted_as_a_folder() {
    let spec = &pod(&built(SMALLEST), "office-entry")["spec"];
    let mount = &spec["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["mountPath"], "/etc/muxgate");
    assert!(mount["subPath"].is_null());
    let items = &spec["volumes"][0]["configMap"]["items"];
    assert_eq!(items.as_array().unwrap().len(), 1);
    assert_eq!(items[0]["path"], "config.yaml");
    let config_map = child(&built(SMALLEST).config_maps, "office-entry");
    let key = items[0]["key"].as_str().unwrap();
    assert!(config_map["data"][key].is_string(), "{key}");
    assert_eq!(
        spec["containers"][0]["args"],
        json!(["run", "--config", "/etc/muxgate/config.yaml"])
    );
}

#[test]
fn ports_below_1024_need_no_privilege_and_profiles_raise_the_buffers() {
    let sysctls = |extra: &str| {
        pod(&built(&with(extra)), "office-entry")["spec"]["securityContext"]["sysctls"].clone()
    };
    let unprivileged = json!({"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"});
    assert_eq!(sysctls("tuning: {profile: None}"), json!([unprivileged]));
    for tuned in ["", "tuning: {profile: Auto}", "tuning: {profile: WAN}"] {
        assert_eq!(
            sysctls(tuned),
            json!([
                unprivileged,
                {"name": "net.ipv4.tcp_rmem", "value": "4096 131072 134217728"},
                {"name": "net.ipv4.tcp_wmem", "value": "4096 65536 67108864"},
            ])
        );
    }
    let own = "tuning: {profile: WAN, sysctls: [{name: net.ipv4.tcp_wmem, value: 1 2 3}]}";
    // Gateways get the sysctls only after a Job has tested them. The Job gets them at once.
    let probe = &built(&with(own)).probe_jobs[0];
    let probe = serde_json::to_value(probe).unwrap();
    assert_eq!(
        probe["spec"]["template"]["spec"]["securityContext"]["sysctls"][2],
        json!({"name": "net.ipv4.tcp_wmem", "value": "1 2 3"})
    );
}

#[test]
fn the_template_of_an_end_reaches_its_pods_and_own_labels_win() {
    let class = class_with(|spec| {
        spec["permitted"]["podMetadataKeys"] = json!(["team", "muxtunnel.dev/name"]);
    });
    let spec = with(
        "
entry:
  replicas: 2
  template:
    metadata: {labels: {team: edge, muxtunnel.dev/name: other}}
    spec:
      containers: [{name: gateway, resources: {limits: {memory: 512Mi}, requests: {cpu: 100m}}}]
      nodeSelector: {zone: a}
      tolerations: [{key: edge, operator: Exists}]
      priorityClassName: high
      runtimeClassName: sandbox
      schedulerName: own
      imagePullSecrets: [{name: registry}]
      dnsPolicy: None
      dnsConfig: {nameservers: [192.0.2.53]}
      hostAliases: [{ip: 192.0.2.1, hostnames: [exit.example.com]}]
",
    );
    let resources = build(&valid_with(&spec, &shop(), class), &settings()).unwrap();
    let deployment = child(&resources.deployments, "office-entry");
    assert_eq!(deployment["spec"]["replicas"], 2);
    let template = &deployment["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    assert_eq!(labels["team"], "edge");
    assert_eq!(labels["muxtunnel.dev/name"], "office");
    let spec = &template["spec"];
    assert_eq!(spec["nodeSelector"]["zone"], "a");
    assert_eq!(spec["tolerations"][0]["key"], "edge");
    assert_eq!(spec["priorityClassName"], "high");
    assert_eq!(spec["runtimeClassName"], "sandbox");
    assert_eq!(spec["schedulerName"], "own");
    assert_eq!(spec["imagePullSecrets"][0]["name"], "registry");
    assert_eq!(spec["dnsPolicy"], "None");
    assert_eq!(spec["dnsConfig"]["nameservers"][0], "192.0.2.53");
    assert_eq!(spec["hostAliases"][0]["ip"], "192.0.2.1");
    assert_eq!(
        spec["containers"][0]["resources"],
        json!({"requests": {"cpu": "100m"}, "limits": {"memory": "512Mi"}})
    );
    assert!(pod(&resources, "office-tunnel-exit")["spec"]["nodeSelector"].is_null());
    let exit = format!("{EXIT}gateway: {{template: {{spec: {{nodeSelector: {{zone: b}}}}}}}}\n");
    let pod = pod(&built(&exit), "office-exit");
    assert_eq!(pod["spec"]["nodeSelector"]["zone"], "b");
}

/// The operator's cache contains every ReplicaSet of every tunnel.
#[test]
fn few_old_replica_sets_are_kept() {
    for deployment in built(SMALLEST).deployments {
        let spec = deployment.spec.unwrap();
        assert_eq!(spec.revision_history_limit, Some(2));
    }
}

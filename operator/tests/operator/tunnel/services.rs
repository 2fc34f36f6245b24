//! The Services of gateways.

use muxtunnel_gateway_config::Config;
use serde_json::{Value, json};

use super::build::config;
use super::*;

fn native() -> String {
    SMALLEST.replace("protocol: JMUX", "protocol: Native")
}

/// A Native tunnel whose forward `web` is a reverse forward.
fn reverse() -> String {
    let both = native().replace("forwards:\n- name: web", "reverseForwards:\n- name: web");
    both.replace("- name: db", "forwards:\n- name: db")
}

#[test]
fn gateways_listen_on_all_addresses_of_both_families() {
    let resources = built(SMALLEST);
    let (entry, exit) = (
        config(&resources, "office-entry"),
        config(&resources, "office-tunnel-exit"),
    );
    assert_eq!(exit.listen.as_deref(), Some("[::]:64000"));
    let forwards = entry.forwards.iter().map(|forward| forward.listen.as_str());
    for listen in forwards
        .chain(entry.admin.as_deref())
        .chain(exit.admin.as_deref())
    {
        assert!(listen.starts_with("[::]:"), "{listen}");
    }
    for name in ["office-entry", "office-tunnel-exit"] {
        let service = child(&resources.services, name);
        assert_eq!(
            service["spec"]["ipFamilyPolicy"], "PreferDualStack",
            "{name}"
        );
    }
}

#[test]
fn services_lead_to_the_very_ports_that_are_listened_on() {
    let resources = built(SMALLEST);
    let entry = child(&resources.services, "office-entry");
    assert_eq!(entry["spec"]["type"], "ClusterIP");
    assert_eq!(
        entry["spec"]["ports"],
        json!([
            {"name": "web", "port": 8080, "targetPort": 8080, "protocol": "TCP"},
            {"name": "db", "port": 443, "targetPort": 443, "protocol": "TCP"},
        ])
    );
    let exit = child(&resources.services, "office-tunnel-exit");
    let port = &exit["spec"]["ports"][0];
    assert_eq!(
        (&port["port"], &port["targetPort"]),
        (&json!(443), &json!(64000))
    );
    assert_eq!(
        exit["spec"]["selector"],
        json!({
            "muxtunnel.dev/kind": "MuxTunnel",
            "muxtunnel.dev/name": "office",
            "app.kubernetes.io/component": "exit",
        })
    );
    let alone = child(&built(EXIT).services, "office-exit");
    let port = &alone["spec"]["ports"][0];
    assert_eq!(
        (&port["port"], &port["targetPort"]),
        (&json!(443), &json!(64000))
    );
    assert_eq!(
        alone["spec"]["selector"],
        json!({
            "muxtunnel.dev/kind": "MuxExit",
            "muxtunnel.dev/name": "office",
            "app.kubernetes.io/component": "exit",
        })
    );
}

#[test]
fn a_native_session_finds_each_exits_pod_since_its_carriers_lead_to_one() {
    let native = built(&native());
    let service = child(&native.services, "office-tunnel-exit-headless");
    assert_eq!(service["spec"]["clusterIP"], "None");
    let exit = child(&native.services, "office-tunnel-exit");
    assert_eq!(service["spec"]["selector"], exit["spec"]["selector"]);
    assert_eq!(service["spec"]["ports"][0]["port"], 64000);
    let entry = config(&native, "office-entry");
    // The Service is used while no pod answers.
    let exits: Vec<_> = entry
        .connect
        .iter()
        .filter_map(|exit| exit.address.as_deref())
        .collect();
    assert_eq!(
        exits,
        [
            "office-tunnel-exit-headless.site.svc:64000",
            "office-tunnel-exit.site.svc:443"
        ]
    );
    assert!(entry.connect[0].order < entry.connect[1].order);
    assert_eq!(built(EXIT).services.len(), 1);
    let jmux = built(SMALLEST);
    assert_eq!(jmux.services.len(), 2);
    assert_eq!(config(&jmux, "office-entry").connect.len(), 1);
}

/// Remote entries need a public Service for carriers.
#[test]
fn what_an_exit_listens_for_is_inside_the_cluster_unless_the_spec_says_otherwise() {
    let spec = |more: &str| {
        format!(
            "{EXIT}service: {{type: LoadBalancer, port: 8443, loadBalancerClass: own}}\n\
             reversePorts: [{{name: web, port: 8080, from: {{type: Any}}}}]\n{more}"
        )
    };
    let service = |spec: &str, name: &str| child(&built(spec).services, name);
    let carriers = service(&spec(""), "office-exit");
    assert_eq!(carriers["spec"]["type"], "LoadBalancer");
    assert_eq!(carriers["spec"]["ports"][0]["port"], 8443);
    assert_eq!(carriers["spec"]["loadBalancerClass"], "own");
    let reverse = service(&spec(""), "office-exit-reverse");
    assert_eq!(reverse["spec"]["type"], "ClusterIP");
    let public = "services: [{name: office-exit-reverse, type: NodePort, annotations: {example.com/pool: b}}]\n";
    let reverse = service(&spec(public), "office-exit-reverse");
    assert_eq!(reverse["spec"]["type"], "NodePort");
    assert_eq!(reverse["metadata"]["annotations"]["example.com/pool"], "b");
    let carriers = service(&spec(public), "office-exit");
    assert!(carriers["metadata"]["annotations"]["example.com/pool"].is_null());
    // The settings of one Service are not those of another one.
    let data = "reversePorts: [{name: db, port: 8081, serviceName: data, from: {type: Any}}, ";
    let two = spec("services: [{name: data, type: NodePort}]\n").replace("reversePorts: [", data);
    assert_eq!(service(&two, "data")["spec"]["type"], "NodePort");
    let reverse = service(&two, "office-exit-reverse");
    assert_eq!(reverse["spec"]["type"], "ClusterIP");
}

/// Each forward, reverse forward and proxy names its Service.
#[test]
fn a_service_has_the_ports_that_name_it() {
    let spec = reverse()
        .replace(
            "- name: web\n",
            "- name: web\n  serviceName: intranet\n  from: {type: Any}\n",
        )
        .replace(
            "- name: db\n",
            "- name: db\n  serviceName: data\n  from: {type: Any}\n  nodePort: 30443\n",
        );
    let more = "- {name: more, port: 8081, targets: [{host: a.example.com, port: 80}]}\n\
                - {name: third, serviceName: data, from: {type: Any}, port: 8082, targets: [{host: a.example.com, port: 80}]}\ncarrier:";
    let spec = spec.replace("carrier:", more);
    let resources = built(&format!(
        "{spec}services:\n- {{name: data, type: NodePort, externalTrafficPolicy: Local}}\n\
         - {{name: intranet, type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24], \
         annotations: {{example.com/pool: a}}}}\n"
    ));
    let ports = |name: &str| {
        let ports = child(&resources.services, name)["spec"]["ports"].clone();
        let ports = ports.as_array().unwrap().iter();
        ports
            .map(|port| port["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(ports("office-entry"), ["more"]);
    assert_eq!(ports("data"), ["db", "third"]);
    assert_eq!(ports("intranet"), ["web"]);
    let data = child(&resources.services, "data");
    assert_eq!(data["spec"]["type"], "NodePort");
    assert_eq!(data["spec"]["externalTrafficPolicy"], "Local");
    assert_eq!(data["spec"]["ports"][0]["nodePort"], 30443);
    let component =
        |service: &Value| service["spec"]["selector"]["app.kubernetes.io/component"].clone();
    assert_eq!(component(&data), "entry");
    let intranet = child(&resources.services, "intranet");
    assert_eq!(component(&intranet), "exit");
    assert_eq!(
        intranet["spec"]["loadBalancerSourceRanges"],
        json!(["192.0.2.0/24"])
    );
    assert_eq!(intranet["metadata"]["annotations"]["example.com/pool"], "a");
    for name in ["office-entry", "data", "intranet"] {
        let service = child(&resources.services, name);
        assert_eq!(
            service["metadata"]["labels"]["muxtunnel.dev/name"], "office",
            "{name}"
        );
    }
    // A Service selects the pods of one end.
    let both = reverse().replace("- name:", "- serviceName: data\n  name:");
    assert!(refusal(&both).contains("data"), "{}", refusal(&both));
}

#[test]
fn a_public_service_keeps_the_addresses_of_clients_only_where_the_spec_says_so() {
    let policy = |service: &str| {
        let exit = format!("{EXIT}service: {{{service}}}\n");
        let exit = child(&built(&exit).services, "office-exit");
        let spec = native().replace("port: 8080", "port: 8080\n  from: {type: Any}");
        let spec = spec.replace("port: 443", "port: 443\n  from: {type: Any}");
        let tunnel = built(&format!(
            "{spec}services: [{{name: office-entry, {service}}}]\n"
        ));
        let entry = child(&tunnel.services, "office-entry");
        let headless = child(&tunnel.services, "office-tunnel-exit-headless");
        assert!(headless["spec"]["externalTrafficPolicy"].is_null());
        [exit, entry].map(|service| service["spec"]["externalTrafficPolicy"].clone())
    };
    for type_ in ["NodePort", "LoadBalancer"] {
        let unsaid = format!("type: {type_}");
        assert_eq!(policy(&unsaid), [Value::Null, Value::Null], "{unsaid}");
        for asked in ["Cluster", "Local"] {
            let said = format!("type: {type_}, externalTrafficPolicy: {asked}");
            assert_eq!(policy(&said), [asked, asked], "{said}");
        }
    }
}

#[test]
fn a_reverse_forward_is_listened_for_by_the_exit_and_dialled_by_the_entry() {
    let tunnel = built(&reverse());
    let ports = |name: &str| {
        let service = child(&tunnel.services, name);
        let ports = service["spec"]["ports"].as_array().unwrap().clone();
        let number = |port: Value| port["port"].as_i64().unwrap();
        ports.into_iter().map(number).collect::<Vec<_>>()
    };
    assert_eq!(ports("office-tunnel-exit"), [443]);
    assert_eq!(ports("office-reverse"), [8080]);
    assert_eq!(ports("office-entry"), [443]);
    let (exit, entry) = (
        config(&tunnel, "office-tunnel-exit"),
        config(&tunnel, "office-entry"),
    );
    assert_eq!(exit.allow_listen[0].to_string(), "[::]:8080");
    // The rules permit the ports to the entry of the tunnel.
    let text = reverse().replace("{mode: None}", &certificates("'spiffe://a', 'spiffe://b'"));
    let rules = config(&built(&text), "office-tunnel-exit").allow_listen;
    let rules: Vec<_> = rules.iter().map(ToString::to_string).collect();
    assert_eq!(rules, ["[::]:8080,peer=entry"]);
    assert_eq!(allowed(&exit), ["db.example.com.:5432"]);
    assert_eq!(entry.forwards.len(), 1);
    assert_eq!(entry.reverse_forwards.len(), 1);

    let all = native().replace("forwards:", "reverseForwards:");
    let tunnel = built(&all);
    let names = tunnel.services.iter();
    let names: Vec<_> = names.map(|s| s.metadata.name.clone().unwrap()).collect();
    assert_eq!(
        names,
        [
            "office-reverse",
            "office-tunnel-exit",
            "office-tunnel-exit-headless"
        ]
    );
}

/// Mode Certificates, with the names of the entry.
fn certificates(names: &str) -> String {
    format!(
        "{{mode: Certificates, certificates: {{entry: {{secretRef: {{name: near}}}}, \
         exit: {{secretRef: {{name: far}}}}, entryNames: [{names}], exitNames: [exit.example.com]}}}}"
    )
}

/// The targets that an exit may dial.
fn allowed(config: &Config) -> Vec<String> {
    let allow = config.allow.iter();
    allow.map(ToString::to_string).collect()
}

#[test]
fn the_entrys_service_keeps_its_ports_while_a_target_is_missing() {
    let tunnel = valid_with(SMALLEST, &Dereferenced::default(), class());
    let resources = build(&tunnel, &settings()).unwrap();
    let service = child(&resources.services, "office-entry");
    assert_eq!(service["spec"]["ports"].as_array().unwrap().len(), 2);
}

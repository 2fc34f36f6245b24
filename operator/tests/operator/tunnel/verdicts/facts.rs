//! The facts in the status.

use muxtunnel_gateway_config::status::{Assigned, Packets};

use super::*;

#[test]
fn the_status_says_where_users_log_in_and_the_secret_for_ssh_is_among_the_secrets() {
    let mut case = case(&format!(
        "{EXIT}ssh: {{secretRef: {{name: people}}, from: {{type: Any}}, service: {{type: LoadBalancer}}}}\n"
    ));
    assert!(case.facts()["sshEndpoint"].is_null(), "no address yet");
    let own = |service: &&mut Service| service.name_any() == "office-exit-ssh";
    let service = case.applied.services.iter_mut().find(own).unwrap();
    service.status = serde_json::from_value(json!({
        "loadBalancer": {"ingress": [{"hostname": "ssh.example.com"}]},
    }))
    .unwrap();
    let outside = json!({"host": "ssh.example.com", "port": 2222});
    assert_eq!(case.facts()["sshEndpoint"], outside);

    case.pod(End::Exit).answer = None;
    let exit = |deployment: &&mut Deployment| deployment.name_any() == "office-exit";
    let deployment = case.applied.deployments.iter_mut().find(exit).unwrap();
    deployment.status.as_mut().unwrap().ready_replicas = None;
    let detail = "exit: 0 of 1 gateways ready: pod office-exit-0 has not started; check that these Secrets exist \
                  with all keys: office-key-1, people";
    case.expect("Ready", Some(false), Code::SecretNotMounted, detail);
}

#[test]
fn a_rendezvous_is_ready_and_has_no_carriers_of_its_own() {
    let mut case = case(RENDEZVOUS);
    case.status(End::Rendezvous).carriers.clear();
    case.expect("Available", Some(true), Code::Reconciled, "");
    case.expect("Ready", Some(true), Code::Reconciled, "");
    let endpoint = json!([{"host": "office-rendezvous.site.svc", "port": 443, "protocol": "TCP"}]);
    assert_eq!(case.facts()["endpoints"], endpoint);

    case.pod(End::Rendezvous).ready = false;
    let detail = "no rendezvous gateway is ready";
    case.expect("Available", Some(false), Code::GatewaysNotReady, detail);
}

/// Entries dial the rendezvous.
#[test]
fn an_exit_at_a_rendezvous_has_no_endpoint() {
    let met = format!(
        "{EXIT}rendezvous: [{{name: a, host: meet.example.com, port: 443, publicKeys: [{RENDEZVOUS_KEY}]}}]\n"
    );
    assert!(case(&met).facts()["endpoints"].is_null());
}

/// The address of the Service, or another one in front of it.
#[test]
fn an_exit_says_where_entries_reach_it() {
    let at = |more: &str| case(&format!("{EXIT}{more}")).facts()["endpoints"].clone();
    let own = json!([{"host": "office-exit.site.svc", "port": 443, "protocol": "TCP"}]);
    assert_eq!(at(""), own);
    let udp = json!([{"host": "office-exit.site.svc", "port": 443, "protocol": "UDP"}]);
    assert_eq!(at("carrier: {protocol: QUIC}\n"), udp);
    let other = json!([{"host": "exit.example.com", "port": 8443, "protocol": "TCP"}]);
    let advertised = "advertisedEndpoint: {host: exit.example.com, port: 8443}\n";
    assert_eq!(at(advertised), other);
    // The load balancer has no address yet.
    assert!(at("service: {type: LoadBalancer}\n").is_null());
    let case = case(EXIT);
    assert_eq!(case.facts()["replicas"], 1);
    assert_eq!(case.facts()["readyReplicas"], 1);
    // The scale subresource has the pods' selector.
    let selector = case.facts()["selector"].as_str().unwrap().to_owned();
    let labels: std::collections::BTreeSet<_> = selector.split(',').collect();
    let expected = [
        "app.kubernetes.io/component=exit",
        "muxtunnel.dev/kind=MuxExit",
        "muxtunnel.dev/name=office",
    ];
    assert_eq!(labels, expected.into());
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
        assert_eq!(case.ready("exit"), column);
    }
}

#[test]
fn more_gateways_that_an_autoscaler_asks_for_do_not_make_it_unready_and_too_few_do() {
    let autoscaling = "autoscaling: {minReplicas: 2, maxReplicas: 4}, \
                       template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: 1}}}]}}";
    let mut case = case(&format!("{SMALLEST}entry: {{{autoscaling}}}\n"));
    let mut scaled = |wanted, ready, updated| {
        let entry = |deployment: &&mut Deployment| deployment.name_any() == "office-entry";
        let deployment = case.applied.deployments.iter_mut().find(entry).unwrap();
        deployment.spec.as_mut().unwrap().replicas = Some(wanted);
        let status = deployment.status.as_mut().unwrap();
        status.replicas = Some(wanted);
        status.ready_replicas = Some(ready);
        status.updated_replicas = Some(updated);
        let entry = case.ready("entry");
        let verdict = case.verdict("Ready");
        let detail = match verdict.holds {
            Some(true) => String::new(),
            _ => verdict.detail,
        };
        (verdict.holds, detail, entry)
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
    let said = case.facts()["sysctls"].clone();
    assert_eq!(said.as_array().unwrap().len(), 64);
    assert_eq!(value(&said, "net.long").len(), 256);
}

/// The value of a sysctl in the status.
fn value(sysctls: &Value, name: &str) -> String {
    let mut sysctls = sysctls.as_array().unwrap().iter();
    let found = sysctls.find(|sysctl| sysctl["name"] == name).unwrap();
    found["value"].as_str().unwrap().to_owned()
}

#[test]
fn the_status_has_the_facts() {
    let mut case = tuned_wan();
    let sysctls = &mut case.status(End::Exit).sysctls;
    sysctls.insert("net.ipv4.tcp_wmem".to_owned(), "1\t2\t3".to_owned());
    let status = case.facts();
    assert_eq!(status["entry"], json!({"replicas": 1, "readyReplicas": 1}));
    assert_eq!(status["exit"], json!({"replicas": 1, "readyReplicas": 1}));
    let services = json!([{"name": "office-entry", "host": "office-entry.site.svc", "ports": [{"name": "web", "port": 8080}, {"name": "db", "port": 443}]}]);
    assert_eq!(status["services"], services);
    assert_eq!(status["carriers"]["connected"], 1);
    let sysctls = &status["sysctls"];
    assert_eq!(value(sysctls, "net.ipv4.tcp_rmem"), "4096 131072 134217728");
    assert_eq!(
        value(sysctls, "net.ipv4.tcp_wmem"),
        "1 2 3 (exit), 4096 65536 67108864 (entry)"
    );
}

/// Counters are metrics, because a status with them would be written again and again.
#[test]
fn the_status_has_the_assigned_addresses_and_no_counters() {
    let mut case = case(
        "network: {entry: {cidrs: [10.72.0.1/32], addresses: [10.72.0.1]}, \
         exit: {cidrs: [10.72.0.2/32], addresses: [10.72.0.2]}}\n",
    );
    assert_eq!(case.facts()["network"], json!({"sessions": 0}));
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
    let expected = json!({"sessions": 1, "addresses": ["10.72.0.1"], "dnsServers": ["10.72.0.2"]});
    assert_eq!(case.facts()["network"], expected);
}

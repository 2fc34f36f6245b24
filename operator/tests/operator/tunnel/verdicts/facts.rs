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

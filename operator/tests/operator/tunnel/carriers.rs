//! The transports of carriers, and rendezvous for entries and exits that cannot dial each other.

use muxtunnel_gateway_config::{
    CongestionControl, Pool, Protocol, Role, Security, Transport, WebSocket,
};
use serde_json::{Value, json};

use super::build::{config, pod};
use super::*;

const FORWARDS: &str = "
forwards:
- name: db
  port: 5432
  targets: [{host: db.internal, port: 5432}]
";
const LEAF: &str = "
carrier:
  rendezvous: {address: 'meet.example.com:64000', name: db, secretName: db-secret}
  security: {mode: None}
";
const RENDEZVOUS: &str = "
side: Rendezvous
rendezvous:
  secretName: names
  service: {type: LoadBalancer}
";

fn web_socket(more: &str, security: &str) -> Resources {
    built(&format!(
        "{FORWARDS}carrier: {{webSocket: {{path: /carrier{more}}}}}\nsecurity: {security}"
    ))
}

#[test]
fn both_ends_have_carriers_as_web_socket_connections_and_the_entry_says_the_host() {
    let tunnel = web_socket(", host: tunnel.example.com", "{mode: None}");
    let expected = |host: Option<&str>| {
        Some(WebSocket {
            path: "/carrier".to_owned(),
            host: host.map(str::to_owned),
            origins: Vec::new(),
        })
    };
    let of = |name| config(&tunnel, name).web_socket;
    assert_eq!(of("office-entry"), expected(Some("tunnel.example.com")));
    assert_eq!(of("office-tunnel-exit"), expected(None));
    assert_ne!(
        pod(&tunnel, "office-tunnel-exit"),
        pod(
            &built(&format!("{FORWARDS}security: {{mode: None}}")),
            "office-tunnel-exit"
        ),
        "it needs new pods"
    );
}

#[test]
fn services_say_that_their_carriers_are_web_socket_connections() {
    let protocol = |tunnel: &Resources, name| {
        let service = child(&tunnel.services, name);
        service["spec"]["ports"][0]["appProtocol"].clone()
    };
    let plain = web_socket("", "{mode: None}");
    let tls = web_socket(
        "",
        "{mode: MutualTls, entry: {secretName: a, peers: [b]}, exit: {secretName: b, peers: [a]}}",
    );
    for name in ["office-tunnel-exit", "office-tunnel-exit-headless"] {
        assert_eq!(protocol(&plain, name), "kubernetes.io/ws");
        assert_eq!(protocol(&tls, name), "kubernetes.io/wss");
    }
    assert_eq!(protocol(&built(SMALLEST), "office-tunnel-exit"), Value::Null);
}

#[test]
fn carriers_over_udp_have_a_port_of_udp_wherever_one_is_named() {
    let tunnel = built(&format!(
        "{FORWARDS}carrier: {{transport: KCP}}\nsecurity: {{mode: None}}"
    ));
    for name in ["office-entry", "office-tunnel-exit"] {
        assert_eq!(config(&tunnel, name).transport, Transport::Kcp, "{name}");
    }
    assert_eq!(config(&tunnel, "office-entry").pool, Some(Pool::ONE));
    for name in ["office-tunnel-exit", "office-tunnel-exit-headless"] {
        let service = child(&tunnel.services, name);
        assert_eq!(service["spec"]["ports"][0]["protocol"], "UDP", "{name}");
    }
    let ports = pod(&tunnel, "office-tunnel-exit")["spec"]["containers"][0]["ports"].clone();
    assert_eq!(ports[0]["protocol"], "TCP", "of the admin endpoint");
    assert_eq!(ports[1]["protocol"], "UDP");
    let policy = child(&tunnel.network_policies, "office-tunnel-exit");
    let ingress = &policy["spec"]["ingress"];
    assert_eq!(
        ingress[0]["ports"][0],
        json!({"port": 64000, "protocol": "UDP"})
    );
    assert_eq!(
        ingress[1]["ports"][0],
        json!({"port": 64001, "protocol": "TCP"})
    );
    let over_tcp = built(&format!("{FORWARDS}security: {{mode: None}}"));
    assert_eq!(config(&over_tcp, "office-tunnel-exit").transport, Transport::Tcp);
    let service = child(&over_tcp.services, "office-tunnel-exit");
    assert_eq!(service["spec"]["ports"][0]["protocol"], "TCP");
}

#[test]
fn what_entries_choose_has_a_port_of_tcp_and_one_of_udp_wherever_they_are_named() {
    let tunnel = built(&format!(
        "{FORWARDS}carrier: {{protocol: Auto, webSocket: {{path: /carrier}}}}\nsecurity: {{mode: None}}"
    ));
    for name in ["office-entry", "office-tunnel-exit"] {
        let config = config(&tunnel, name);
        assert_eq!(config.transport, Transport::Auto, "{name}");
        assert_eq!(config.protocol, Protocol::Native, "{name}");
        assert!(config.web_socket.is_some(), "{name}");
    }
    assert_eq!(config(&tunnel, "office-entry").pool, Some(Pool::GROWING));
    for name in ["office-tunnel-exit", "office-tunnel-exit-headless"] {
        let service = child(&tunnel.services, name);
        let [tcp, udp] = [0, 1].map(|index| service["spec"]["ports"][index].clone());
        assert_eq!((&tcp["port"], &udp["port"]), (&json!(64000), &json!(64000)));
        assert_eq!(
            (&tcp["protocol"], &udp["protocol"]),
            (&json!("TCP"), &json!("UDP"))
        );
        assert_eq!(tcp["appProtocol"], "kubernetes.io/ws");
        assert_eq!(udp["appProtocol"], Value::Null);
    }
    let ports = pod(&tunnel, "office-tunnel-exit")["spec"]["containers"][0]["ports"].clone();
    assert_eq!(
        (&ports[1]["protocol"], &ports[2]["protocol"]),
        (&json!("TCP"), &json!("UDP"))
    );
    let policy = child(&tunnel.network_policies, "office-tunnel-exit");
    for (index, protocol) in ["TCP", "UDP"].into_iter().enumerate() {
        assert_eq!(
            policy["spec"]["ingress"][index]["ports"][0],
            json!({"port": 64000, "protocol": protocol})
        );
    }
}

#[test]
fn clients_of_several_exits_keep_theirs_where_entries_choose_the_transport() {
    let affinity = |protocol: &str, exit: &str| {
        let carrier = format!("carrier: {{protocol: {protocol}}}\nsecurity: {{mode: None}}");
        let tunnel = built(&format!("{FORWARDS}{carrier}\nexit: {{{exit}}}"));
        let headless = child(&tunnel.services, "office-tunnel-exit-headless");
        assert!(headless["spec"]["sessionAffinity"].is_null());
        let entry = child(&tunnel.services, "office-entry");
        assert!(entry["spec"]["sessionAffinity"].is_null());
        child(&tunnel.services, "office-tunnel-exit")["spec"]["sessionAffinity"].clone()
    };
    let scaled = "autoscaling: {minReplicas: 1, maxReplicas: 3}, \
                  template: {spec: {containers: [{name: gateway, resources: {requests: {cpu: 1}}}]}}";
    for exit in ["replicas: 2", scaled] {
        assert_eq!(affinity("Auto", exit), "ClientIP", "{exit}");
        assert!(affinity("Native", exit).is_null(), "{exit}");
    }
    // An affinity that was set before is removed.
    assert_eq!(affinity("Auto", "replicas: 1"), "None");
    // A load balancer gets no affinity, because some clouds refuse it.
    let balanced = "replicas: 2, service: {type: LoadBalancer}";
    assert_eq!(affinity("Auto", balanced), "None");
}

#[test]
fn quic_and_http3_have_a_port_of_udp_and_each_entry_finds_the_pods_of_its_exit() {
    has_a_port_of_udp("QUIC", Protocol::Quic);
    has_a_port_of_udp("HTTP3", Protocol::Http3);
}

fn has_a_port_of_udp(asked: &str, protocol: Protocol) {
    let tunnel = built(&format!(
        "{FORWARDS}carrier: {{protocol: {asked}, congestionControl: BBR}}\nsecurity: {{mode: MutualTls, \
         entry: {{secretName: a, peers: [b]}}, exit: {{secretName: b, peers: [a]}}}}"
    ));
    for name in ["office-entry", "office-tunnel-exit"] {
        let config = config(&tunnel, name);
        assert_eq!(config.protocol, protocol, "{name}");
        assert_eq!(config.congestion_control, CongestionControl::Bbr, "{name}");
    }
    let entry = config(&tunnel, "office-entry");
    assert_eq!(entry.pool, Some(Pool::GROWING));
    assert!(entry.connect.unwrap().starts_with("office-tunnel-exit-headless."));
    for name in ["office-tunnel-exit", "office-tunnel-exit-headless"] {
        let service = child(&tunnel.services, name);
        assert_eq!(service["spec"]["ports"][0]["protocol"], "UDP", "{name}");
    }
    let ports = pod(&tunnel, "office-tunnel-exit")["spec"]["containers"][0]["ports"].clone();
    assert_eq!(ports[0]["protocol"], "TCP", "of the admin endpoint");
    assert_eq!(ports[1]["protocol"], "UDP");
    let policy = child(&tunnel.network_policies, "office-tunnel-exit");
    assert_eq!(
        policy["spec"]["ingress"][0]["ports"][0],
        json!({"port": 64000, "protocol": "UDP"})
    );
}

#[test]
fn an_exit_may_listen_for_its_entries_over_quic() {
    let reverse = FORWARDS.replace("listen:", "direction: ExitToEntry\n  listen:");
    let tunnel = built(&format!("{reverse}carrier: {{protocol: QUIC}}"));
    let exit = config(&tunnel, "office-tunnel-exit");
    assert_eq!(exit.allow_listen.len(), 1);
    let reverse = child(&tunnel.services, "office-reverse");
    assert_eq!(reverse["spec"]["ports"][0]["protocol"], "TCP");
}

fn assert_mounts_what_is_shown_there(tunnel: &Resources, name: &str, secret: &str) {
    let spec = &pod(tunnel, name)["spec"];
    let volume =
        json!({"name": "rendezvous", "secret": {"secretName": secret, "defaultMode": 0o440}});
    assert_eq!(spec["volumes"][1], volume);
    let mount =
        json!({"name": "rendezvous", "mountPath": "/etc/muxgate-rendezvous", "readOnly": true});
    assert_eq!(spec["containers"][0]["volumeMounts"][1], mount);
    assert_eq!(spec["securityContext"]["fsGroup"], 65532);
}

#[test]
fn an_entry_and_an_exit_that_meet_both_dial_the_rendezvous() {
    for (side, name) in [("Entry", "office-entry"), ("Exit", "office-tunnel-exit")] {
        let tunnel = built(&format!("side: {side}\n{FORWARDS}{LEAF}"));
        let config = config(&tunnel, name);
        assert_eq!(config.connect.as_deref(), Some("meet.example.com:64000"));
        assert_eq!((config.connect_fallback, config.listen), (None, None));
        let leaf = config.rendezvous.unwrap();
        assert_eq!(
            (leaf.name.as_str(), leaf.secret_file.as_str()),
            ("db", "/etc/muxgate-rendezvous/secret")
        );
        assert_mounts_what_is_shown_there(&tunnel, name, "db-secret");
        let ports = pod(&tunnel, name)["spec"]["containers"][0]["ports"].clone();
        assert_eq!(ports.as_array().map(Vec::len), Some(1), "{ports}");
        let services = usize::from(side == "Entry");
        assert_eq!(tunnel.services.len(), services, "nobody dials an exit");
    }
}

#[test]
fn an_exit_that_is_met_has_a_service_of_what_it_listens_for_alone() {
    let reverse = FORWARDS.replace("listen:", "direction: ExitToEntry\n  listen:");
    let tunnel = built(&format!("side: Exit\n{reverse}{LEAF}"));
    let ports = child(&tunnel.services, "office-reverse")["spec"]["ports"].clone();
    assert_eq!(ports.as_array().map(Vec::len), Some(1));
    assert_eq!(ports[0]["name"], "db");
    assert_eq!(tunnel.services.len(), 1);
}

#[test]
fn a_rendezvous_is_one_gateway_that_knows_names() {
    let tunnel = built(RENDEZVOUS);
    let config = config(&tunnel, "office-rendezvous");
    assert_eq!(config.role, Role::Rendezvous);
    assert_eq!(config.listen.as_deref(), Some("[::]:64000"));
    let names = "/etc/muxgate-rendezvous/names";
    assert_eq!(config.secrets_file.as_deref(), Some(names));
    assert_eq!((config.connect, config.rendezvous), (None, None));
    assert_eq!(config.security, Security::None {});
    assert_eq!(config.limits.carriers, 256);
    assert_mounts_what_is_shown_there(&tunnel, "office-rendezvous", "names");
    let deployment = child(&tunnel.deployments, "office-rendezvous");
    assert_eq!(deployment["spec"]["replicas"], 1);
    let service = child(&tunnel.services, "office-rendezvous");
    assert_eq!(service["spec"]["type"], "LoadBalancer");
    assert_eq!(service["spec"]["ports"][0]["port"], 64000);
    assert_eq!(tunnel.deployments.len() + tunnel.services.len(), 2);

    let more = built(&format!("{RENDEZVOUS}  visits: 3\n"));
    let config = super::build::config(&more, "office-rendezvous");
    assert_eq!(config.limits.carriers, 3);
}

#[test]
fn what_says_two_things_of_where_carriers_lead_is_refused() {
    let leaf = format!("{FORWARDS}{LEAF}");
    let address = leaf.replace("carrier:", "carrier:\n  address: 'exit:64000'");
    for (spec, sentence) in [
        (
            format!("side: Entry\n{FORWARDS}security: {{mode: None}}"),
            "side Entry needs carrier.address or carrier.rendezvous",
        ),
        (
            format!("side: Entry\n{address}"),
            "carrier.address and carrier.rendezvous exclude each other: remove one of them",
        ),
        (
            format!("side: Exit\n{address}"),
            "carrier.address and carrier.rendezvous exclude each other: remove one of them",
        ),
        (
            address.clone(),
            "carrier.address is only for sides Entry and Exit, and side Both has its own exit: remove carrier.address",
        ),
        (
            leaf,
            "carrier.rendezvous is only for sides Entry and Exit, and the entry of side Both dials its exit: remove carrier.rendezvous",
        ),
        (
            format!("side: Entry\n{FORWARDS}"),
            "side Entry needs carrier, with address or rendezvous",
        ),
        (
            "side: Rendezvous".to_owned(),
            "side Rendezvous needs rendezvous.secretName; with other sides, remove rendezvous",
        ),
        (
            format!("{RENDEZVOUS}{LEAF}"),
            "side Rendezvous has no carrier: set carrier in the MuxTunnels of the entry and the exit",
        ),
    ] {
        assert_is_refused(&spec, sentence);
    }
}

fn assert_is_refused(spec: &str, sentence: &str) {
    let judged = validate(&tunnel(spec), &shop(), &settings());
    let Err(Hindrance::Invalid(problem)) = judged else {
        panic!("accepted: {sentence}");
    };
    assert_eq!(problem, sentence);
}

#[test]
fn load_balancers_in_front_of_carriers_reach_running_gateways() {
    let networks = "trustedProxies: [192.0.2.0/24, '2001:db8::1/128']";
    let trusted = |tunnel: &Resources, name| {
        let networks = config(tunnel, name).trusted_proxies;
        networks.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let expected = ["192.0.2.0/24", "2001:db8::1"];
    let asked = built(&format!("{SMALLEST}exit: {{{networks}}}\n"));
    assert_eq!(trusted(&asked, "office-tunnel-exit"), expected);
    assert!(trusted(&asked, "office-entry").is_empty());
    let unsaid = built(SMALLEST);
    assert!(trusted(&unsaid, "office-tunnel-exit").is_empty());
    assert_eq!(pod(&asked, "office-tunnel-exit"), pod(&unsaid, "office-tunnel-exit"));
    let asked = built(&format!("{RENDEZVOUS}  {networks}\n"));
    assert_eq!(trusted(&asked, "office-rendezvous"), expected);
}

#[test]
fn load_balancers_that_no_gateway_would_take_are_refused_by_their_path() {
    let exit = |networks: &str| format!("{SMALLEST}exit: {{trustedProxies: [{networks}]}}\n");
    let many = "192.0.2.1/32, ".repeat(65);
    for (spec, sentence) in [
        (
            format!("{SMALLEST}entry: {{trustedProxies: [192.0.2.1/32]}}\n"),
            "entry.trustedProxies: only exits have a carrier port: use exit.trustedProxies",
        ),
        (
            format!("side: Exit\n{FORWARDS}{LEAF}exit: {{trustedProxies: [192.0.2.1/32]}}\n"),
            "exit.trustedProxies: with carrier.rendezvous the exit has no carrier port: set \
             rendezvous.trustedProxies in the MuxTunnel of the rendezvous",
        ),
        (
            exit("192.0.2.1/32, lb.example.com"),
            "exit.trustedProxies[1]: \"lb.example.com\" is not a network, such as 10.96.0.0/16, 192.0.2.7 or \
             2001:db8::/32: the address cannot be read",
        ),
        (
            exit("'::ffff:0:0/96'"),
            "exit.trustedProxies[0]: ::ffff:0.0.0.0/96 contains every address: list only the networks of the load balancers",
        ),
        (
            exit(&many),
            "exit.trustedProxies: has 65 entries, at most 64 are allowed",
        ),
        (
            format!("{RENDEZVOUS}  trustedProxies: [0.0.0.0/0]\n"),
            "rendezvous.trustedProxies[0]: 0.0.0.0/0 contains every address: list only the networks of the load balancers",
        ),
        (
            RENDEZVOUS.replace("{type: LoadBalancer}", "{externalTrafficPolicy: Local}"),
            "rendezvous.service.externalTrafficPolicy Local is for type NodePort or LoadBalancer: remove it, or set \
             rendezvous.service.type",
        ),
    ] {
        assert_is_refused(&spec, sentence);
    }
}

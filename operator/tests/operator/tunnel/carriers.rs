//! The transports of carriers.

use muxtunnel_gateway_config::{CongestionControl, Pool, Protocol, Transport};
use serde_json::{Value, json};

use super::build::{config, pod};
use super::*;

const FORWARDS: &str = "
forwards:
- name: db
  port: 5432
  targets: [{host: db.internal, port: 5432}]
";
/// Mode Certificates, with Secrets of the namespace.
const CERTIFICATES: &str = "{mode: Certificates, certificates: {entry: {secretRef: {name: a}}, exit: {secretRef: {name: b}}, \
                            entryNames: [a], exitNames: [b]}}";

fn web_socket(security: &str) -> Resources {
    built(&format!(
        "{FORWARDS}carrier: {{transport: WebSocket, webSocket: {{path: /carrier}}}}\nsecurity: {security}"
    ))
}

#[test]
fn both_ends_have_carriers_as_web_socket_connections_and_the_entry_says_the_host() {
    let tunnel = web_socket("{mode: None}");
    for name in ["office-entry", "office-tunnel-exit"] {
        let web_socket = config(&tunnel, name).web_socket.unwrap();
        assert_eq!(web_socket.path, "/carrier", "{name}");
    }
    assert_ne!(
        pod(&tunnel, "office-tunnel-exit"),
        pod(
            &built(&format!("{FORWARDS}security: {{mode: None}}")),
            "office-tunnel-exit"
        ),
        "it needs new pods"
    );
    let far = ELSEWHERE.replace(
        "port: 443",
        "port: 443\n  webSocket: {host: tunnel.example.com}",
    );
    let far = built(&format!(
        "{far}carrier: {{transport: WebSocket, webSocket: {{path: /carrier}}}}\n"
    ));
    let connect = config(&far, "office-entry").connect[0].clone();
    let host = connect.web_socket.unwrap().host;
    assert_eq!(host.as_deref(), Some("tunnel.example.com"));
}

#[test]
fn services_say_that_their_carriers_are_web_socket_connections() {
    let protocol = |tunnel: &Resources, name| {
        let service = child(&tunnel.services, name);
        service["spec"]["ports"][0]["appProtocol"].clone()
    };
    let plain = web_socket("{mode: None}");
    let tls = web_socket(CERTIFICATES);
    for name in ["office-tunnel-exit", "office-tunnel-exit-headless"] {
        assert_eq!(protocol(&plain, name), "kubernetes.io/ws");
        assert_eq!(protocol(&tls, name), "kubernetes.io/wss");
    }
    assert_eq!(
        protocol(&built(SMALLEST), "office-tunnel-exit"),
        Value::Null
    );
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
    assert_eq!(
        config(&over_tcp, "office-tunnel-exit").transport,
        Transport::Tcp
    );
    let service = child(&over_tcp.services, "office-tunnel-exit");
    assert_eq!(service["spec"]["ports"][0]["protocol"], "TCP");
}

#[test]
fn what_entries_choose_has_a_port_of_tcp_and_one_of_udp_wherever_they_are_named() {
    let tunnel = built(&format!(
        "{FORWARDS}carrier: {{transport: Auto, webSocket: {{path: /carrier}}}}\nsecurity: {{mode: None}}"
    ));
    for name in ["office-entry", "office-tunnel-exit"] {
        let config = config(&tunnel, name);
        assert_eq!(config.transport, Transport::Auto, "{name}");
        assert_eq!(config.protocol, Protocol::Native, "{name}");
        assert!(config.web_socket.is_some(), "{name}");
    }
    // A carrier over UDP fills the path alone.
    assert_eq!(config(&tunnel, "office-entry").pool, Some(Pool::ONE));
    for (name, port) in [
        ("office-tunnel-exit", 443),
        ("office-tunnel-exit-headless", 64000),
    ] {
        let service = child(&tunnel.services, name);
        let [tcp, udp] = [0, 1].map(|index| service["spec"]["ports"][index].clone());
        assert_eq!((&tcp["port"], &udp["port"]), (&json!(port), &json!(port)));
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
    let affinity = |transport: &str, exit: &str| {
        let carrier = format!("carrier: {{transport: {transport}}}\nsecurity: {{mode: None}}");
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
        assert!(affinity("TCP", exit).is_null(), "{exit}");
    }
    // An affinity that was set before is removed.
    assert_eq!(affinity("Auto", "replicas: 1"), "None");
    // A load balancer gets no affinity, because some clouds refuse it.
    for (type_, expected) in [("ClusterIP", "ClientIP"), ("LoadBalancer", "None")] {
        let exit = built(&format!(
            "{EXIT}carrier: {{transport: Auto}}\ngateway: {{replicas: 2}}\nservice: {{type: {type_}}}\n"
        ));
        let service = child(&exit.services, "office-exit");
        assert_eq!(service["spec"]["sessionAffinity"], expected, "{type_}");
    }
    // Entries of a MuxExit find no pods, so further carriers of a session need the affinity.
    for (carrier, replicas, expected) in [
        ("{transport: TCP}", 2, json!("ClientIP")),
        ("{transport: KCP}", 2, json!("ClientIP")),
        ("{transport: TCP}", 1, json!("None")),
        ("{protocol: HTTP2}", 2, Value::Null),
    ] {
        let exit = built(&format!(
            "{EXIT}carrier: {carrier}\ngateway: {{replicas: {replicas}}}\n"
        ));
        let spec = child(&exit.services, "office-exit")["spec"].clone();
        assert_eq!(spec["sessionAffinity"], expected, "{carrier} {replicas}");
        let seconds = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
        let is_sticky = expected == "ClientIP";
        assert_eq!(*seconds == json!(86_400), is_sticky, "{carrier} {replicas}");
    }
}

#[test]
fn quic_and_http3_have_a_port_of_udp_and_each_entry_finds_the_pods_of_its_exit() {
    has_a_port_of_udp("QUIC", Protocol::Quic);
    has_a_port_of_udp("HTTP3", Protocol::Http3);
}

fn has_a_port_of_udp(asked: &str, protocol: Protocol) {
    let tunnel = built(&format!(
        "{FORWARDS}carrier: {{protocol: {asked}, congestionControl: BBR}}
security: {CERTIFICATES}"
    ));
    for name in ["office-entry", "office-tunnel-exit"] {
        let config = config(&tunnel, name);
        assert_eq!(config.protocol, protocol, "{name}");
        assert_eq!(config.congestion_control, CongestionControl::Bbr, "{name}");
    }
    let entry = config(&tunnel, "office-entry");
    assert_eq!(entry.pool, Some(Pool::CONNECTIONS));
    assert!(
        entry.connect[0]
            .address
            .as_ref()
            .unwrap()
            .starts_with("office-tunnel-exit-headless.")
    );
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
    let reverse = FORWARDS.replace("forwards:", "reverseForwards:");
    let tunnel = built(&format!("{reverse}carrier: {{protocol: QUIC}}"));
    let exit = config(&tunnel, "office-tunnel-exit");
    assert_eq!(exit.allow_listen.len(), 1);
    let reverse = child(&tunnel.services, "office-reverse");
    assert_eq!(reverse["spec"]["ports"][0]["protocol"], "TCP");
}

#[test]
fn load_balancers_in_front_of_carriers_reach_running_gateways() {
    let networks = "trustedProxies: [192.0.2.0/24, '2001:db8::1/128']\n";
    let trusted = |tunnel: &Resources, name| {
        let networks = config(tunnel, name).trusted_proxies;
        networks.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let all = [(EXIT, "office-exit"), (RENDEZVOUS, "office-rendezvous")];
    for (spec, name) in all.into_iter() {
        let (asked, unsaid) = (built(&format!("{spec}{networks}")), built(spec));
        assert_eq!(trusted(&asked, name), ["192.0.2.0/24", "2001:db8::1"]);
        assert!(trusted(&unsaid, name).is_empty());
        assert_eq!(pod(&asked, name), pod(&unsaid, name));
    }
}

#[test]
fn load_balancers_that_no_gateway_would_take_are_refused_by_their_path() {
    let exit = |networks: &str| format!("{EXIT}trustedProxies: [{networks}]\n");
    let many = "192.0.2.1/32, ".repeat(65);
    for (spec, sentence) in [
        (
            exit("'::ffff:0:0/96'"),
            "trustedProxies[0]: ::ffff:0.0.0.0/96 contains every address: list only the networks of the load balancers",
        ),
        (
            exit(&many),
            "trustedProxies: has 65 entries, at most 64 are allowed",
        ),
        (
            format!("{RENDEZVOUS}trustedProxies: [0.0.0.0/0]\n"),
            "trustedProxies[0]: 0.0.0.0/0 contains every address: list only the networks of the load balancers",
        ),
    ] {
        assert!(refusal(&spec).contains(sentence), "{}", refusal(&spec));
    }
    let wrong = try_decoded(object_json(&exit("192.0.2.1/32, lb.example.com")));
    let error = wrong.unwrap_err().to_string();
    assert!(
        error.starts_with("\"lb.example.com\" is not a network"),
        "{error}"
    );
}

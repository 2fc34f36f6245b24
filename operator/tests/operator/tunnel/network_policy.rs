//! Evaluates the rendered policies like a cluster that enforces policies, and compares the peers
//! that reach each port of the gateways with the intended matrix. Connections from a pod's own
//! node, such as the kubelet's probes, always pass.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use muxtunnel_operator::labels;

use super::*;

type Labels = BTreeMap<String, String>;

/// A pod: the namespace with its labels, and the pod's labels. `None`: a client outside of the
/// cluster.
type Peer = Option<(&'static str, Labels, Labels)>;

fn labelled(pairs: &[(&str, &str)]) -> Labels {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

fn pod_of(namespace: &'static str, labels: Labels) -> Peer {
    let mut of = labelled(&[("kubernetes.io/metadata.name", namespace)]);
    if namespace == "monitoring" {
        of.extend(labelled(&[("metrics", "yes")]));
    }
    Some((namespace, of, labels))
}

/// The labels of the pods of a tunnel.
fn gateway(name: &str, component: &str) -> Labels {
    labels::child("MuxTunnel", name, component)
}

/// All peers that may try to connect.
fn peers() -> Vec<(&'static str, Peer)> {
    let operator = labelled(&[("app", "operator")]);
    vec![
        ("client", pod_of("site", labelled(&[("app", "client")]))),
        ("own-entry", pod_of("site", gateway("office", "entry"))),
        ("own-exit", pod_of("site", gateway("office", "exit"))),
        ("other-tunnel", pod_of("site", gateway("home", "entry"))),
        ("namesake", pod_of("elsewhere", gateway("office", "entry"))),
        ("operator", pod_of("mux", operator.clone())),
        ("impostor", pod_of("site", operator)),
        ("neighbour", pod_of("mux", labelled(&[("app", "other")]))),
        (
            "prometheus",
            pod_of("monitoring", labelled(&[("app", "p")])),
        ),
        (
            "runner",
            pod_of("site", labels::child("MuxBenchmark", "probe", "runner")),
        ),
        ("outside", None),
    ]
}

fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let expressions = selector.match_expressions.iter().flatten();
    let wanted = selector.match_labels.iter().flatten();
    wanted
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && expressions.into_iter().all(|expression| {
            assert_eq!(expression.operator, "In", "the oracle knows no other");
            let values = expression.values.iter().flatten();
            values
                .into_iter()
                .any(|value| labels.get(&expression.key) == Some(value))
        })
}

/// Whether a connection from `from` to `port` of the pod with `labels` in `namespace` passes.
fn passes(
    policies: &[NetworkPolicy],
    (namespace, labels): (&str, &Labels),
    from: &Peer,
    port: u16,
) -> bool {
    let mut specs = policies
        .iter()
        .filter_map(|policy| {
            let own = policy.metadata.namespace.as_deref() == Some(namespace);
            let spec = policy.spec.as_ref().filter(|_| own)?;
            assert_eq!(
                spec.policy_types.as_deref(),
                Some(&["Ingress".to_owned()][..])
            );
            assert!(spec.egress.is_none());
            let selector = spec.pod_selector.clone().unwrap_or_default();
            selects(&selector, labels).then_some(spec)
        })
        .peekable();
    if specs.peek().is_none() {
        return true;
    }
    let comes_from = |peer: &k8s_openapi::api::networking::v1::NetworkPolicyPeer| {
        if let Some(block) = &peer.ip_block {
            assert!(peer.namespace_selector.is_none() && peer.pod_selector.is_none());
            // Pods have addresses in 10.0.0.0/8. The client outside of the cluster has an address
            // in 192.0.2.0/24.
            let network = if from.is_some() { "10." } else { "192.0.2." };
            return block.cidr.starts_with(network);
        }
        let Some((of, of_labels, pod)) = from else {
            return false;
        };
        let in_namespace = peer.namespace_selector.as_ref();
        in_namespace.map_or(*of == namespace, |selector| selects(selector, of_labels))
            && peer
                .pod_selector
                .as_ref()
                .is_none_or(|selector| selects(selector, pod))
    };
    specs
        .flat_map(|spec| spec.ingress.iter().flatten())
        .any(|rule| {
            let ports = rule.ports.as_ref().expect("no rule is for all ports");
            let leads_there = ports.iter().any(|to| {
                assert_eq!(to.protocol.as_deref(), Some("TCP"));
                to.port == Some(IntOrString::Int(i32::from(port)))
            });
            let from = rule.from.as_ref().filter(|from| !from.is_empty());
            leads_there && from.is_none_or(|from| from.iter().any(comes_from))
        })
}

/// The rendered matrix: a line for each peer that reaches a port other than listening ports, with
/// the `END:PORT` that it reaches.
fn matrix(spec: &str, ends: &[(&str, &[u16])]) -> Vec<String> {
    matrix_of(&object_json(spec), &valid(spec), ends)
}

fn matrix_of(object: &Value, valid: &ValidatedObject, ends: &[(&str, &[u16])]) -> Vec<String> {
    let resources = build(valid, &settings()).unwrap();
    let kind = object["kind"].as_str().unwrap();
    let policies = &resources.network_policies;
    let reached = |peer: &Peer| {
        let mut reached = Vec::new();
        for (end, ports) in ends {
            for port in *ports {
                let to = ("site", &labels::child(kind, "office", end));
                if passes(policies, to, peer, *port) {
                    reached.push(format!("{end}:{port}"));
                }
            }
        }
        reached.join(" ")
    };
    let line = |(name, peer): (&str, Peer)| format!("{name}: {}", reached(&peer));
    peers().into_iter().map(line).collect()
}

#[test]
fn with_both_sides_carriers_come_from_the_own_entry_alone() {
    let ends: &[(&str, &[u16])] = &[
        ("entry", &[8080, 443, 22, 64000, 64001]),
        ("exit", &[8080, 443, 22, 64000, 64001]),
    ];
    let inside = "entry:8080 entry:443";
    assert_eq!(
        matrix(SMALLEST, ends),
        [
            format!("client: {inside}"),
            format!("own-entry: {inside} exit:64000"),
            format!("own-exit: {inside}"),
            format!("other-tunnel: {inside}"),
            "namesake: ".to_owned(),
            "operator: entry:64001 exit:64001".to_owned(),
            format!("impostor: {inside}"),
            "neighbour: ".to_owned(),
            "prometheus: entry:64001 exit:64001".to_owned(),
            format!("runner: {inside}"),
            "outside: ".to_owned(),
        ]
    );
}

/// The peers that reach port 8080 of `end`.
fn reaching(spec: &str, end: &str) -> Vec<&'static str> {
    let lines = matrix(spec, &[(end, &[8080])]);
    let reaches = peers().into_iter().zip(lines);
    reaches
        .filter(|(_, line)| line.ends_with(":8080"))
        .map(|((name, _), _)| name)
        .collect()
}

/// Fields `from`, and the peers that they admit to a port. Without a field, the peers of the
/// namespace are admitted.
fn clients() -> Vec<(String, Vec<&'static str>)> {
    let site = vec![
        "client",
        "own-entry",
        "own-exit",
        "other-tunnel",
        "impostor",
        "runner",
    ];
    let everybody: Vec<_> = peers().into_iter().map(|(name, _)| name).collect();
    let mut but_outside = everybody.clone();
    but_outside.pop();
    let namespace = |name: &str| {
        format!("namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}")
    };
    let peers = |peers: &[String]| {
        let peers: Vec<_> = peers.iter().map(|peer| format!("{{{peer}}}")).collect();
        format!(", from: {{type: Peers, peers: [{}]}}", peers.join(", "))
    };
    let pods = |app: &str| format!("podSelector: {{matchLabels: {{app: {app}}}}}");
    let operator = |name: &str| format!("{}, {}", namespace(name), pods("operator"));
    let block = |cidr: &str| format!("ipBlock: {{cidr: {cidr}}}");
    vec![
        (String::new(), site.clone()),
        (", from: {type: Namespace}".to_owned(), site),
        (", from: {type: Any}".to_owned(), everybody),
        (
            peers(&[namespace("mux"), namespace("elsewhere")]),
            vec!["namesake", "operator", "neighbour"],
        ),
        (peers(&[pods("client")]), vec!["client"]),
        (
            peers(&[operator("mux"), operator("site")]),
            vec!["operator", "impostor"],
        ),
        (peers(&[block("192.0.2.0/24")]), vec!["outside"]),
        (peers(&[block("10.0.0.0/8")]), but_outside),
        (
            peers(&[namespace("monitoring"), block("192.0.2.0/24")]),
            vec!["prometheus", "outside"],
        ),
    ]
}

#[test]
fn listening_ports_are_for_those_that_from_names() {
    let open = "security: {mode: None}\n";
    let target = "targets: [{host: db, port: 5432}]";
    for (from, wanted) in clients() {
        for (end, spec) in [
            (
                "entry",
                format!("forwards: [{{name: web, port: 8080, {target}{from}}}]\n{open}"),
            ),
            (
                "exit",
                format!("reverseForwards: [{{name: web, port: 8080, {target}{from}}}]\n{open}"),
            ),
            (
                "entry",
                format!(
                    "proxies: [{{name: web, protocol: Auto, port: 8080{from}}}]\nallow: [{{host: db}}]\n{open}"
                ),
            ),
            (
                "exit",
                format!("kind: MuxExit\nreversePorts: [{{name: web, port: 8080{from}}}]\n"),
            ),
        ] {
            assert_eq!(reaching(&spec, end), wanted, "{spec}");
        }
    }
}

#[test]
fn the_port_for_ssh_is_for_those_that_its_from_names_and_not_for_all_that_open_carriers() {
    for (from, wanted) in clients() {
        let ssh = format!("{EXIT}ssh: {{secretRef: {{name: people}}, port: 8080{from}}}\n");
        assert_eq!(reaching(&ssh, "exit"), wanted, "{from}");
        let carriers = matrix(&ssh, &[("exit", &[64000])]);
        assert!(carriers.iter().all(|line| line.ends_with("exit:64000")));
    }
}

/// The port of carriers is for every client, unless `from` names others.
#[test]
fn an_exit_and_a_rendezvous_take_carriers_from_those_that_from_names() {
    let all = [(EXIT, "exit"), (RENDEZVOUS, "rendezvous")];
    for (spec, end) in all.into_iter() {
        for line in matrix(spec, &[(end, &[22, 8080, 64000, 64001])]) {
            let (name, reached) = line.split_once(": ").unwrap();
            let wanted = match name {
                "operator" | "prometheus" => format!("{end}:64000 {end}:64001"),
                _ => format!("{end}:64000"),
            };
            assert_eq!(reached, wanted, "{name}");
        }
        for (from, wanted) in clients().into_iter().skip(1) {
            let from = from.trim_start_matches(", ");
            let lines = matrix(&format!("{spec}{from}\n"), &[(end, &[64000])]);
            let lines = lines.iter().filter(|line| line.ends_with(":64000"));
            let names: Vec<_> = lines.map(|line| line.split(':').next().unwrap()).collect();
            assert_eq!(names, wanted, "{end} {from}");
        }
    }
}

#[test]
fn an_exit_at_a_rendezvous_takes_no_carriers() {
    let met = format!(
        "{EXIT}rendezvous: [{{name: meet, host: meet.example.com, port: 443, publicKeys: [{RENDEZVOUS_KEY}]}}]\n"
    );
    for line in matrix(&met, &[("exit", &[22, 8080, 64000, 64001])]) {
        let (name, reached) = line.split_once(": ").unwrap();
        let wanted = match name {
            "operator" | "prometheus" => "exit:64001",
            _ => "",
        };
        assert_eq!(reached, wanted, "{name}");
    }
}

#[test]
fn where_the_exit_listens_its_ports_are_for_clients_and_the_entrys_are_not() {
    let lines = matrix(
        "
reverseForwards:
- name: back
  port: 8080
  targets: [{host: db, port: 5432}]
security: {mode: None}
",
        &[("entry", &[8080, 64000]), ("exit", &[8080, 64000])],
    );
    assert!(lines.contains(&"client: exit:8080".to_owned()), "{lines:?}");
    assert!(lines.contains(&"outside: ".to_owned()), "{lines:?}");
    assert!(
        lines.contains(&"own-entry: exit:8080 exit:64000".to_owned()),
        "{lines:?}"
    );
}

/// The matrix of a tunnel of the benchmark `probe`.
fn matrix_of_benchmark(spec: &str, ends: &[(&str, &[u16])]) -> Vec<String> {
    let mut object = object_json(spec);
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxBenchmark",
        "name": "probe", "uid": "u", "controller": true,
    }]);
    let decoded = try_decoded(object.clone()).unwrap();
    let Ok(valid) = validate(&decoded, &shop(), class()) else {
        panic!("not valid");
    };
    matrix_of(&object, &valid, ends)
}

#[test]
fn the_runner_of_a_benchmark_asks_its_own_tunnels_how_they_are() {
    let ends: &[(&str, &[u16])] = &[("entry", &[64001]), ("exit", &[64000, 64001])];
    let lines = matrix_of_benchmark(SMALLEST, ends);
    assert!(
        lines.contains(&"runner: entry:64001 exit:64001".to_owned()),
        "{lines:?}"
    );
    assert!(lines.contains(&"client: ".to_owned()), "{lines:?}");
}

#[test]
fn the_runner_alone_reaches_the_agents_beside_the_gateways_of_a_network() {
    let network = "network: {entry: {cidrs: [10.72.0.1/32]}, exit: {cidrs: [10.72.0.2/32]}}\n";
    for line in matrix_of_benchmark(network, &[("entry", &[64002]), ("exit", &[64002])]) {
        let runner = "runner: entry:64002 exit:64002";
        assert!(line == runner || line.ends_with(": "), "{line}");
        assert!(line == runner || !line.starts_with("runner"), "{line}");
    }
}

#[test]
fn there_are_none_where_the_installation_has_none() {
    let settings = Settings {
        network_policy: None,
        ..settings()
    };
    let resources = build(&valid(SMALLEST), &settings).unwrap();
    assert!(resources.network_policies.is_empty());
}

#[test]
fn without_labels_of_namespaces_nobody_reads_metrics() {
    let mut settings = settings();
    let peers = settings.network_policy.as_mut().unwrap();
    peers.metrics_namespace_labels.clear();
    let resources = build(&valid(SMALLEST), &settings).unwrap();
    let exit = ("site", &gateway("office", "exit"));
    for (name, peer) in self::peers() {
        let reaches = passes(&resources.network_policies, exit, &peer, 64001);
        assert_eq!(reaches, name == "operator", "{name}");
    }
}

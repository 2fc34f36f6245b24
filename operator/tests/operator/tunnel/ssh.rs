//! The ssh server of an exit.

use std::path::{Path, PathBuf};

use muxtunnel_gateway_config::Config;

use super::build::{config, pod};
use super::*;

/// An exit with an ssh server and without an entry. `more`: further fields of `exit.ssh`.
fn alone(more: &str) -> String {
    format!("side: Exit\n{DIRECT}exit: {{ssh: {{secretRef: {name: people}{more}}}}}\n")
}

fn refusal(spec: &str) -> String {
    match validate(&tunnel(spec), &shop(), &settings()) {
        Err(Hindrance::Invalid(problem)) => problem,
        other => panic!("accepted: {other:?}"),
    }
}

#[test]
fn the_exit_has_a_listener_for_it_and_mounts_the_secret_for_its_group_alone() {
    let tunnel = built(&format!(
        "{SMALLEST}exit: {{ssh: {{secretRef: {name: people}}}}}\n"
    ));
    let listener = config(&tunnel, "office-tunnel-exit").ssh.unwrap();
    assert_eq!(listener.listen, "[::]:2222");
    let file = |name: &str| Path::new("/etc/muxgate-ssh").join(name);
    assert_eq!(listener.host_keys, [file("ssh_host_ed25519_key")]);
    assert_eq!(listener.authorized_keys, Some(file("authorized_keys")));
    assert_eq!(listener.trusted_user_ca_keys, None);

    let spec = &pod(&tunnel, "office-tunnel-exit")["spec"];
    // The whole Secret is mounted as a folder, so that changed keys reach running gateways.
    let volume = json!({"name": "ssh", "secret": {"secretName": "people", "defaultMode": 0o440}});
    assert_eq!(spec["volumes"][1], volume);
    let mount = json!({"name": "ssh", "mountPath": "/etc/muxgate-ssh", "readOnly": true});
    assert_eq!(spec["containers"][0]["volumeMounts"][1], mount);
    assert_eq!(spec["securityContext"]["fsGroup"], 65532);
    let port = json!({"name": "ssh", "containerPort": 2222, "protocol": "TCP"});
    assert_eq!(spec["containers"][0]["ports"][2], port);

    assert_eq!(config(&tunnel, "office-entry").ssh, None);
    let entry = &pod(&tunnel, "office-entry")["spec"];
    assert_eq!(entry["volumes"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        entry["containers"][0]["ports"].as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn the_spec_says_which_keys_of_the_secret_count() {
    let files = |more: &str| {
        let tunnel = built(&alone(more));
        let listener = config(&tunnel, "office-tunnel-exit").ssh.unwrap();
        let logins = [listener.authorized_keys, listener.trusted_user_ca_keys];
        let files = listener
            .host_keys
            .into_iter()
            .chain(logins.into_iter().flatten());
        let name = |file: PathBuf| file.file_name().unwrap().to_string_lossy().into_owned();
        files.map(name).collect::<Vec<_>>()
    };
    let default = files("");
    assert_eq!(default, ["ssh_host_ed25519_key", "authorized_keys"]);
    let said = files(", hostKeys: [Ed25519], logins: [AuthorizedKeys]");
    assert_eq!(said, default);
    assert_eq!(
        files(", hostKeys: [ECDSA], logins: [TrustedUserCAKeys]"),
        ["ssh_host_ecdsa_key", "trusted_user_ca_keys"]
    );
    assert_eq!(
        files(", hostKeys: [ECDSA, Ed25519], logins: [TrustedUserCAKeys, AuthorizedKeys]"),
        [
            "ssh_host_ecdsa_key",
            "ssh_host_ed25519_key",
            "authorized_keys",
            "trusted_user_ca_keys",
        ]
    );
}

#[test]
fn the_port_has_a_service_of_its_own_which_goes_with_it() {
    let services = |spec: &str| {
        let services = built(spec).services;
        let name = |service: &Service| service.metadata.name.clone().unwrap();
        (services.iter().map(name).collect::<Vec<_>>(), services)
    };
    let public = "service: {type: LoadBalancer}, ssh: {secretRef: {name: people}, port: 22}";
    let both = format!("{DIRECT}exit: {{{public}}}\n");
    let (_, own) = services(&both);
    let ssh = child(&own, "office-exit-ssh");
    // A public Service for carriers does not make the ssh Service public.
    assert_eq!(ssh["spec"]["type"], "ClusterIP");
    let port = json!([{"name": "ssh", "port": 22, "targetPort": 22, "protocol": "TCP"}]);
    assert_eq!(ssh["spec"]["ports"], port);
    let carriers = child(&own, "office-tunnel-exit");
    assert_eq!(carriers["spec"]["type"], "LoadBalancer");
    assert_eq!(carriers["spec"]["ports"].as_array().map(Vec::len), Some(1));
    assert_eq!(ssh["spec"]["selector"], carriers["spec"]["selector"]);

    let asked = alone(
        ", from: {all: true}, service: {type: NodePort, externalTrafficPolicy: Local, \
         annotations: {example.com/pool: a}}",
    );
    let ssh = child(&services(&asked).1, "office-exit-ssh");
    assert_eq!(ssh["spec"]["type"], "NodePort");
    assert_eq!(ssh["spec"]["externalTrafficPolicy"], "Local");
    assert_eq!(ssh["metadata"]["annotations"]["example.com/pool"], "a");

    let (names, _) = services(&format!("side: Exit\n{DIRECT}"));
    assert!(!names.contains(&"office-exit-ssh".to_owned()), "{names:?}");
}

#[test]
fn an_exit_that_is_met_at_a_rendezvous_has_the_port_and_no_other() {
    let meeting =
        "carrier: {rendezvous: {address: 'a:1', name: b, secretName: c}}\nsecurity: {mode: None}\n";
    let tunnel = built(&format!("{}{meeting}", alone("")));
    let config = config(&tunnel, "office-tunnel-exit");
    assert_eq!(
        (config.listen, config.ssh.map(|ssh| ssh.listen)),
        (None, Some("[::]:2222".to_owned()))
    );
    let ports = pod(&tunnel, "office-tunnel-exit")["spec"]["containers"][0]["ports"].clone();
    let names: Vec<_> = ports.as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(names[1]["name"], "ssh");
}

#[test]
fn its_users_may_dial_what_an_entry_may_and_a_rule_for_one_of_them_counts() {
    let key = "ssh:SHA256:oDbc3TWlUHUXA5WqaFhjARWdAfL8hA+25lyW5dIYTR0";
    let rule =
        format!("allow: [{{host: db.example.com, port: 5432, peer: '{key}'}}]\n");
    let policy = |spec: &str| -> Vec<String> {
        let policy = config(&built(spec), "office-tunnel-exit").policy;
        policy.allow.iter().map(ToString::to_string).collect()
    };
    let with = policy(&format!("{}{rule}", alone("")));
    assert_eq!(
        with,
        [
            format!("db.example.com.:5432,peer={key}"),
            "web.example.com.:80".to_owned()
        ]
    );
    let without = policy(&format!("side: Exit\n{DIRECT}{rule}"));
    assert_eq!(with, without);
}

/// With keys of the operator, the exit has one peer. No user of ssh can have the name of this peer.
#[test]
fn a_user_listens_on_no_port_of_a_forward_that_is_the_entrys_alone() {
    let back = DIRECT.replace("listen:", "direction: ExitToEntry\n  listen:");
    let tunnel = built(&format!("{back}exit: {{ssh: {{secretRef: {name: people}}}}}\n"));
    let rules = config(&tunnel, "office-tunnel-exit").allow_listen;
    let peers: Vec<_> = rules.iter().map(|rule| rule.peer.as_deref()).collect();
    assert_eq!(peers, [Some("entry")]);
}

#[test]
fn a_port_of_a_forward_is_for_the_peers_of_an_exit_that_names_them_and_not_for_users() {
    let rules = |ports: u16, peers: u16| {
        let forward = |number| {
            let port = 8000 + number;
            format!(
                "- {{name: f{number}, direction: ExitToEntry, port: {port}, \
                 targets: [{{host: web.example.com, port: 80}}]}}\n"
            )
        };
        let forwards: String = (0..ports).map(forward).collect();
        let peers: Vec<_> = (0..peers)
            .map(|number| format!("'spiffe://{number}'"))
            .collect();
        let tunnel = built(&format!(
            "forwards:\n{forwards}exit: {{ssh: {{secretRef: {name: people}}}}}\ncarrier: {{security: {{mode: MutualTls, \
             entry: {{secretName: near, peers: [exit.example.com]}}, exit: {{secretName: far, peers: [{}]}}}}}}\n",
            peers.join(", ")
        ));
        let rules = config(&tunnel, "office-tunnel-exit").allow_listen;
        let named = rules.iter().filter(|rule| rule.peer.is_some()).count();
        (rules.len(), named)
    };
    assert_eq!(rules(1, 2), (2, 2));
    assert_eq!(rules(2, 32), (64, 64));
    // With a rule per peer and port, there would be more rules than a gateway accepts.
    assert_eq!(rules(3, 32), (3, 0));
}

#[test]
fn a_changed_port_or_file_is_for_new_pods_and_the_secrets_content_is_not() {
    let hash = |spec: &str| {
        let pod = pod(&built(spec), "office-tunnel-exit");
        pod["spec"]["volumes"][0]["configMap"]["items"][0]["key"].clone()
    };
    let static_part = |spec: &str| -> Config { config(&built(spec), "office-tunnel-exit").static_part() };
    for other in [
        ", port: 22",
        ", logins: [TrustedUserCAKeys]",
        ", hostKeys: [ECDSA]",
    ] {
        assert_ne!(
            static_part(&alone(other)),
            static_part(&alone("")),
            "{other}"
        );
        assert_ne!(hash(&alone(other)), hash(&alone("")), "{other}");
    }
    let reached = ", from: {all: true}, service: {type: NodePort}";
    assert_eq!(hash(&alone(reached)), hash(&alone("")));
}

#[test]
fn its_users_have_a_share_of_a_limited_memory() {
    let sessions = |ssh: &str| {
        let tunnel = built(&format!(
            "side: Exit\n{DIRECT}exit: {{drainSeconds: 30{ssh}}}\n"
        ));
        config(&tunnel, "office-tunnel-exit").memory.sessions
    };
    // The operator does not know the entries.
    assert_eq!(sessions(""), Some(4));
    assert_eq!(sessions(", ssh: {secretRef: {name: people}}"), Some(8));
}

#[test]
fn what_the_schema_refuses_is_refused_with_a_sentence_here_as_well() {
    let back = DIRECT.replace("listen:", "direction: ExitToEntry\n  listen:");
    let ssh = |more: &str| format!("exit: {{ssh: {{secretRef: {name: people}{more}}}}}\n");
    let elsewhere = "side: Entry\ncarrier: {address: 'a:1', security: {mode: None}}\n";
    for (spec, sentence) in [
        (
            format!("{DIRECT}entry: {{ssh: {{secretRef: {name: people}}}}}\n"),
            "entry.ssh: only exits have an ssh server: use exit.ssh",
        ),
        (
            format!("{elsewhere}{DIRECT}{}", ssh("")),
            "exit.ssh: side Entry has no exit: set exit.ssh in the MuxTunnel of the exit",
        ),
        (
            format!("{DIRECT}{}", ssh(", port: 64000")),
            "exit.ssh.port 64000 is reserved for gateways: choose another port",
        ),
        (
            format!("{DIRECT}{}", ssh(", port: 64001")),
            "exit.ssh.port 64001 is reserved for gateways: choose another port",
        ),
        (
            format!("{DIRECT}wanEmulation: {{delayMilliseconds: 1}}\n{}", ssh(", port: 64003")),
            "exit.ssh.port 64003 is reserved for gateways: choose another port",
        ),
        (
            format!("{back}{}", ssh(", port: 8080")),
            "forward web: listen.port 8080 is also exit.ssh.port: choose another port",
        ),
        (
            format!("{DIRECT}{}", ssh(", service: {type: LoadBalancer}")),
            "exit.ssh.service of a type other than ClusterIP needs exit.ssh.from, the clients that may reach the port: \
             namespaces, podLabels, ipBlocks, or all: true",
        ),
        (
            format!(
                "{DIRECT}{}",
                ssh(", service: {externalTrafficPolicy: Local}")
            ),
            "exit.ssh.service.externalTrafficPolicy Local is for type NodePort or LoadBalancer: remove it, or set \
             exit.ssh.service.type",
        ),
    ] {
        assert_eq!(refusal(&spec), sentence);
    }
    for good in [
        format!("{DIRECT}{}", ssh(", port: 64003")),
        format!("{DIRECT}{}", ssh(", port: 8080")),
    ] {
        valid(&good);
    }
}

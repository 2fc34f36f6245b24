//! The ssh server of an exit.

use std::path::{Path, PathBuf};

use muxtunnel_gateway_config::Config;

use super::build::{config, pod};
use super::*;

/// An exit with an ssh server. `more`: further fields of `ssh`.
fn with_ssh(more: &str) -> String {
    format!("{EXIT}ssh: {{secretRef: {{name: people}}{more}}}\n")
}

#[test]
fn the_exit_has_a_listener_for_it_and_mounts_the_secret() {
    let tunnel = built(&format!("{}{OPEN}", with_ssh("")));
    let listener = config(&tunnel, "office-exit").ssh.unwrap();
    assert_eq!(listener.listen, "[::]:2222");
    let file = |name: &str| Path::new("/etc/muxgate-ssh").join(name);
    assert_eq!(listener.host_keys, [file("ssh_host_ed25519_key")]);
    assert_eq!(listener.authorized_keys, Some(file("authorized_keys")));
    assert_eq!(listener.trusted_user_ca_keys, None);

    let spec = &pod(&tunnel, "office-exit")["spec"];
    // The whole Secret is mounted as a folder, so that changed keys reach running gateways.
    let volume = json!({"name": "ssh", "secret": {"secretName": "people"}});
    assert_eq!(spec["volumes"][1], volume);
    let mount = json!({"name": "ssh", "mountPath": "/etc/muxgate-ssh", "readOnly": true});
    assert_eq!(spec["containers"][0]["volumeMounts"][1], mount);
    let port = json!({"name": "ssh", "containerPort": 2222, "protocol": "TCP"});
    assert_eq!(spec["containers"][0]["ports"][2], port);
}

#[test]
fn the_spec_says_which_keys_of_the_secret_count() {
    let files = |more: &str| {
        let tunnel = built(&with_ssh(more));
        let listener = config(&tunnel, "office-exit").ssh.unwrap();
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
    let public = format!(
        "{}service: {{type: LoadBalancer}}\n",
        with_ssh(", port: 22")
    );
    let (_, own) = services(&public);
    let ssh = child(&own, "office-exit-ssh");
    // A public Service for carriers does not make the ssh Service public.
    assert_eq!(ssh["spec"]["type"], "ClusterIP");
    let port = json!([{"name": "ssh", "port": 22, "targetPort": 22, "protocol": "TCP"}]);
    assert_eq!(ssh["spec"]["ports"], port);
    let carriers = child(&own, "office-exit");
    assert_eq!(carriers["spec"]["type"], "LoadBalancer");
    assert_eq!(carriers["spec"]["ports"].as_array().map(Vec::len), Some(1));
    assert_eq!(ssh["spec"]["selector"], carriers["spec"]["selector"]);

    let asked = with_ssh(
        ", from: {type: Any}, service: {type: NodePort, nodePort: 30022, externalTrafficPolicy: Local, \
         annotations: {example.com/pool: a}}",
    );
    let ssh = child(&services(&asked).1, "office-exit-ssh");
    assert_eq!(ssh["spec"]["type"], "NodePort");
    assert_eq!(ssh["spec"]["ports"][0]["nodePort"], 30022);
    assert_eq!(ssh["spec"]["externalTrafficPolicy"], "Local");
    assert_eq!(ssh["metadata"]["annotations"]["example.com/pool"], "a");

    let (names, _) = services(EXIT);
    assert!(!names.contains(&"office-exit-ssh".to_owned()), "{names:?}");
}

#[test]
fn an_exit_that_is_met_at_a_rendezvous_has_the_port_and_no_other() {
    let at = format!(
        "rendezvous: [{{name: meet, host: meet.example.com, port: 443, publicKeys: [{RENDEZVOUS_KEY}]}}]\n"
    );
    let exit = built(&format!("{}{at}", with_ssh("")));
    let config = config(&exit, "office-exit");
    assert_eq!(
        (config.listen, config.ssh.map(|ssh| ssh.listen)),
        (None, Some("[::]:2222".to_owned()))
    );
    let ports = pod(&exit, "office-exit")["spec"]["containers"][0]["ports"].clone();
    let names: Vec<_> = ports.as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(names[1]["name"], "ssh");
}

#[test]
fn its_users_may_dial_what_an_entry_may() {
    let policy = |spec: &str| -> Vec<String> {
        let exit = config(&built(spec), "office-exit");
        exit.allow.iter().map(ToString::to_string).collect()
    };
    let with = policy(&with_ssh(""));
    assert_eq!(with.len(), 2, "{with:?}");
    assert_eq!(with, policy(EXIT));
}

/// Reverse ports are for the peers that name them.
#[test]
fn a_user_listens_on_no_reverse_port() {
    let exit = built(&format!(
        "{}reversePorts: [{{name: back, port: 8080}}]\n",
        with_ssh("")
    ));
    assert!(config(&exit, "office-exit").allow_listen.is_empty());
}

#[test]
fn a_changed_port_or_file_is_for_new_pods_and_the_secrets_content_is_not() {
    let hash = |spec: &str| {
        let pod = pod(&built(spec), "office-exit");
        pod["spec"]["volumes"][0]["configMap"]["items"][0]["key"].clone()
    };
    let static_part = |spec: &str| -> Config { config(&built(spec), "office-exit").static_part() };
    for other in [
        ", port: 22",
        ", logins: [TrustedUserCAKeys]",
        ", hostKeys: [ECDSA]",
    ] {
        assert_ne!(
            static_part(&with_ssh(other)),
            static_part(&with_ssh("")),
            "{other}"
        );
        assert_ne!(hash(&with_ssh(other)), hash(&with_ssh("")), "{other}");
    }
    let reached = ", from: {type: Any}, service: {type: NodePort}";
    assert_eq!(hash(&with_ssh(reached)), hash(&with_ssh("")));
}

#[test]
fn its_users_have_a_share_of_a_limited_memory() {
    let sessions = |spec: &str| config(&built(spec), "office-exit").memory.sessions;
    // The operator does not know the entries.
    assert_eq!(sessions(EXIT), Some(4));
    assert_eq!(sessions(&with_ssh("")), Some(8));
}

#[test]
fn what_the_schema_refuses_is_refused_with_a_sentence_here_as_well() {
    let reverse = format!(
        "{}reversePorts: [{{name: back, port: 8080}}]\n",
        with_ssh(", port: 8080")
    );
    assert_refused([(
        reverse,
        "reverse port back: port 8080 of the exit gateways is in use: choose another port",
    )]);
    for good in [", port: 64003", ", port: 8080"] {
        valid(&with_ssh(good));
    }
}

//! Runs the program like users and scripts do, with an API server of the test: its output and exit
//! statuses.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod cluster;
mod connect;
mod link;
mod output;
mod peer;

use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use cluster::{Cluster, Ran};
use muxtunnel_testkit::wait::until;
use serde_json::{Value, json};

#[test]
fn status_shows_a_tunnel_on_standard_output_alone() {
    let cluster = Cluster::start();
    cluster.object("both.yaml", |_| {});
    let ran = cluster.run("status web");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    assert!(ran.out.starts_with("Name:        web\n"), "{ran:?}");
    assert!(!ran.out.contains('\x1b'), "{ran:?}");
    let json = cluster.run("status web -o json").json();
    assert_eq!(json["apiVersion"], "cli.muxtunnel.dev/v1alpha1");
    assert_eq!(json["kind"], "Status");
    assert_eq!(json["object"]["carriers"]["connected"], 8);
    let yaml: Value = serde_yaml::from_str(&cluster.run("status web -o yaml").out).unwrap();
    assert_eq!(yaml, json);
}

#[test]
fn status_has_the_events_of_the_tunnel_and_no_others() {
    let cluster = Cluster::start();
    cluster.object("both.yaml", |_| {});
    for (name, uid) in [("one", "uid-web"), ("two", "uid-other")] {
        let event = json!({
            "metadata": {"name": name, "namespace": "shop"}, "involvedObject": {"uid": uid},
            "reason": name, "type": "Normal", "message": "m", "eventTime": "2030-01-01T00:00:00.000000Z",
        });
        cluster.put(&format!("events/{name}@shop"), event);
    }
    let json = cluster.run("status web -o json").json();
    let reasons: Vec<_> = json["object"]["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["reason"])
        .collect();
    assert_eq!(reasons, ["one"]);
    // Without the right to read Events, `status` still shows all other parts.
    cluster.deny("/api/v1/namespaces/shop/events", 403);
    let ran = cluster.run("status web -o json");
    assert_eq!(
        (ran.status, ran.json()["object"]["name"].as_str()),
        (0, Some("web"))
    );
    assert_eq!(ran.err, "Events are not shown: told to refuse (403)\n");
}

#[test]
fn status_lists_a_namespace_or_all() {
    let cluster = Cluster::start();
    for file in ["both.yaml", "exit.yaml", "fresh.yaml"] {
        cluster.object(file, |_| {});
    }
    let names = |line: &str| -> Vec<String> {
        let ran = cluster.run(line);
        assert_eq!(ran.status, 0, "{ran:?}");
        let items = ran.json()["items"].clone();
        items
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("status -o json"), ["web", "fresh"]);
    assert_eq!(names("status -n backend -o json"), ["web"]);
    assert_eq!(names("status --context far -o json"), ["web"]);
    assert_eq!(names("status -A -o json").len(), 3);
    let none = cluster.run("status -n empty");
    assert_eq!(
        (none.status, none.err.as_str()),
        (
            0,
            "there are no tunnels, exits and rendezvous in namespace empty\n"
        )
    );
}

#[test]
fn status_has_a_tunnel_and_its_exit_in_one_view() {
    let cluster = Cluster::start();
    cluster.object("entry.yaml", |_| {});
    cluster.object("exit.yaml", |_| {});
    let ran = cluster.run("status near --exit-context far --exit backend/web -o json");
    let json = ran.json();
    let (tunnel, exit) = (&json["object"], &json["exit"]);
    assert_eq!(
        (&tunnel["kind"], &exit["kind"]),
        (&json!("MuxTunnel"), &json!("MuxExit"))
    );
    assert_eq!(exit["context"], "far");
    assert_eq!(exit["keys"][0]["secretName"], "web-exit-key-1");
    assert_eq!(tunnel["publicKeys"].as_array().unwrap().len(), 2);
    for line in ["near --exit backend/", "exit/web -n backend --exit web"] {
        let ran = cluster.run(&format!("status {line}"));
        assert_eq!(ran.status, 2, "{ran:?}");
    }
}

#[test]
fn who_may_not_read_a_kind_sees_the_others() {
    let cluster = Cluster::start();
    cluster.object("both.yaml", |_| {});
    cluster.deny("/apis/muxtunnel.dev/v1alpha1/namespaces/shop/muxexits", 403);
    let ran = cluster.run("status -o name");
    assert_eq!(
        (ran.status, ran.out.as_str()),
        (0, "muxtunnel.muxtunnel.dev/web\n")
    );
    let wanted = "objects of the kind MuxExit are not shown: told to refuse (403)\n";
    assert_eq!(ran.err, wanted);
}

#[test]
fn what_is_not_there_or_refused_is_a_failure() {
    let cluster = Cluster::start();
    for (line, said) in [
        (
            "status nothing",
            "cannot read the MuxTunnel nothing in namespace shop: not found (404)",
        ),
        (
            "status exit/nothing",
            "cannot read the MuxExit nothing in namespace shop: not found (404)",
        ),
        ("status --context elsewhere", "elsewhere"),
        (
            "status --kubeconfig missing",
            "cannot use the kubeconfig missing",
        ),
        ("status --context nowhere", "cannot list muxtunnels"),
        (
            "peer remove nobody",
            "there is no MuxPeer nobody in namespace shop",
        ),
    ] {
        let ran = cluster.run(line);
        assert_eq!((ran.status, ran.out.as_str()), (1, ""), "{line}: {ran:?}");
        assert!(
            ran.err.starts_with("muxtunnel: ") && ran.err.contains(said),
            "{line}: {ran:?}"
        );
    }
}

#[test]
fn waiting_ends_when_the_condition_holds() {
    let cluster = Cluster::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listening(&cluster, "127.0.0.1", listener.local_addr().unwrap().port());
    let ran = cluster.run("status web --wait --timeout 20s -o json");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    assert_eq!(ran.json()["object"]["current"], true);
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_ok(), "the program has connected");
}

/// A tunnel whose conditions are true, and whose entry has this address and port.
fn listening(cluster: &Cluster, host: &str, port: u16) {
    cluster.object("both.yaml", |object| {
        let service = &mut object["status"]["services"][0];
        service["host"] = json!(host);
        service["ports"][0]["port"] = json!(port);
    });
}

#[test]
fn waiting_does_not_end_before_a_connection_is_established() {
    let cluster = Cluster::start();
    // The port refuses connections until the test listens again.
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let port = address.port();
    listening(&cluster, "127.0.0.1", port);
    let ran = cluster.run("status web --wait --timeout 2s");
    assert_eq!((ran.status, ran.out.as_str()), (4, ""), "{ran:?}");
    let wanted =
        format!("the condition is true, but this host cannot connect to 127.0.0.1 port {port}: ");
    assert!(ran.err.contains(&wanted), "{ran:?}");
    let mut command = cluster.command("status web --wait --timeout 60s");
    let program = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _listener = TcpListener::bind(address).unwrap();
    let ran = Ran::from(program.wait_with_output().unwrap());
    assert_eq!(ran.status, 0, "{ran:?}");
    // The name of a Service has no meaning outside of its cluster.
    listening(&cluster, "web-entry.shop.svc.invalid", 80);
    let ran = cluster.run("status web --wait --timeout 60s");
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(
        ran.err
            .contains("not connected: this host cannot resolve web-entry.shop.svc.invalid"),
        "{ran:?}"
    );
}

#[test]
fn waiting_in_vain_says_what_was_missing() {
    let cluster = Cluster::start();
    cluster.object("faulty.yaml", |object| {
        object["metadata"]["namespace"] = json!("shop");
    });
    let event = json!({
        "metadata": {"name": "e", "namespace": "shop"}, "involvedObject": {"uid": "uid-web"},
        "reason": "GatewaysNotReady", "type": "Warning", "message": "the last word",
        "eventTime": "2030-01-01T00:00:00.000000Z",
    });
    cluster.put("events/e@shop", event);
    let name = "a-tunnel-with-a-name-of-forty-characters";
    let ran = cluster.run(&format!("status {name} --wait=available --timeout 5s"));
    assert_eq!((ran.status, ran.out.as_str()), (4, ""), "{ran:?}");
    let wanted = "shop/a-tunnel-with-a-name-of-forty-characters is not Available after 5s: \
                  Available=False: MT0201 CarrierConnecting: no ready gateway has a carrier\n\
                  last Event: Warning GatewaysNotReady: the last word";
    assert!(ran.err.contains(wanted), "{ran:?}");

    // A condition that describes an older spec does not end the wait.
    cluster.object("both.yaml", |object| {
        object["metadata"]["generation"] = json!(4);
    });
    let ran = cluster.run("status web --wait --timeout 5s");
    assert_eq!(ran.status, 4, "{ran:?}");
    assert!(
        ran.err
            .contains("its last condition Ready describes an older spec"),
        "{ran:?}"
    );
    assert_eq!(cluster.run("status --wait").status, 2);
    assert_eq!(cluster.run("status nothing --wait").status, 1);
}

/// The objects of an installation.
fn installed() -> Cluster {
    let cluster = Cluster::start();
    for (_, definition) in muxtunnel_crds::schema::definitions().unwrap() {
        let mut object = serde_json::to_value(&definition).unwrap();
        object["status"] = json!({
            "acceptedNames": {"kind": "", "plural": ""}, "storedVersions": [],
            "conditions": [{"type": "Established", "status": "True"}],
        });
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        cluster.put(&format!("customresourcedefinitions/{name}"), object);
    }
    cluster.put("deployments/muxtunnel@mux", json!({
        "metadata": {
            "name": "muxtunnel", "namespace": "mux",
            "labels": {
                "app.kubernetes.io/component": "operator",
                "app.kubernetes.io/version": env!("CARGO_PKG_VERSION"),
            },
        },
        "spec": {"replicas": 1, "selector": {}, "template": {"spec": {
            "serviceAccountName": "operator",
            "containers": [{"name": "operator", "args": ["--gateway-image=g:1", "--wan-image=n:1"]}],
        }}},
        "status": {"readyReplicas": 1},
    }));
    cluster.put(
        "leases/muxtunnel-operator@mux",
        json!({
            "metadata": {"name": "muxtunnel-operator", "namespace": "mux"},
            // The Lease lasts long enough for a slow machine.
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 60, "renewTime": now()},
        }),
    );
    cluster.put("nodes/n1", node("n1", "v1.33.1"));
    cluster.put("namespaces/shop", json!({"metadata": {"name": "shop"}}));
    cluster.object("both.yaml", |_| {});
    cluster
}

fn now() -> String {
    let now = k8s_openapi::jiff::Timestamp::now();
    format!("{now:.6}")
}

fn node(name: &str, kubelet: &str) -> Value {
    let names = [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    let mut info: Value = names
        .iter()
        .map(|name| ((*name).to_owned(), json!("")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    info["kubeletVersion"] = json!(kubelet);
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
        "status": {"nodeInfo": info, "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// The codes of findings (`finding`) or warnings.
fn codes(ran: &Ran, result: &str) -> Vec<String> {
    let report = ran.json();
    let checks = report["categories"].as_array().unwrap().iter();
    checks
        .flat_map(|category| category["checks"].as_array().unwrap())
        .filter(|check| check["result"] == result)
        .map(|check| check["code"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn check_of_a_good_installation_is_good() {
    let cluster = installed();
    let ran = cluster.run("check -o json");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    assert_eq!(ran.json()["success"], true);
    assert!(
        codes(&ran, "finding").is_empty() && codes(&ran, "warning").is_empty(),
        "{ran:?}"
    );
    let names: Vec<_> = ran.json()["categories"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].clone())
        .collect();
    assert_eq!(
        names,
        ["cluster", "installation", "node", "namespace", "tunnels"]
    );
    assert!(cluster.written().is_empty(), "{:?}", cluster.written());
}

#[test]
fn check_ends_with_3_and_a_code_for_each_thing_amiss() {
    let cluster = installed();
    cluster.take_right("list muxtunnels");
    cluster.put("nodes/n2", node("n2", "v1.31.0"));
    cluster.put("namespaces/shop", json!({
        "metadata": {"name": "shop", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }));
    cluster.object("faulty.yaml", |object| {
        object["metadata"]["namespace"] = json!("shop");
        object["metadata"]["name"] = json!("slow");
    });
    cluster.put(
        "deployments/muxtunnel@mux",
        json!({"metadata": {"name": "other"}, "spec": {
            "selector": {}, "template": {},
        }}),
    );
    let ran = cluster.run("check -o json");
    assert_eq!(ran.status, 3, "{ran:?}");
    assert_eq!(
        codes(&ran, "finding"),
        [
            "MT0382", "MT0385", "MT0387", "MT0388", "MT0302", "MT0201", "MT0201", "MT0404"
        ]
    );
    let fixes = ran.json();
    let checks = fixes["categories"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|one| one["checks"].as_array().unwrap());
    for check in checks.filter(|check| check["result"] == "finding") {
        let fix = check["fix"].as_str().unwrap();
        assert!(
            fix.starts_with("kubectl ") || fix.starts_with("helm "),
            "{check}"
        );
    }
    let text = cluster.run("check --only tunnels");
    assert_eq!(text.status, 3);
    assert!(
        text.out
            .ends_with("\n1 good, 0 skipped, 0 warnings, 4 findings\n"),
        "{text:?}"
    );
    assert!(
        text.out.lines().all(|line| line.chars().count() <= 100),
        "{text:?}"
    );
}

#[test]
fn check_before_an_installation_asks_for_what_it_takes() {
    let cluster = Cluster::start();
    cluster.put("nodes/n1", node("n1", "v1.33.1"));
    cluster.put("namespaces/shop", json!({"metadata": {"name": "shop"}}));
    cluster.deny("/apis/muxtunnel.dev", 404);
    let ran = cluster.run("check --pre");
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(
        ran.out
            .contains("you may create clusterroles.rbac.authorization.k8s.io"),
        "{ran:?}"
    );
    cluster.take_right("create clusterroles");
    assert_eq!(
        codes(&cluster.run("check --pre -o json"), "finding"),
        ["MT0382"]
    );
    // A check without --pre reports the missing installation as a finding.
    let ran = cluster.run("check --only installation -o json");
    assert_eq!(ran.status, 3, "{ran:?}");
    assert_eq!(
        codes(&ran, "finding"),
        [
            "MT0383", "MT0383", "MT0383", "MT0383", "MT0383", "MT0383", "MT0383", "MT0385"
        ]
    );
}

#[test]
fn check_of_a_cluster_that_does_not_answer_is_a_failure_that_is_told() {
    let cluster = Cluster::start();
    let ran = cluster.run("check --context nowhere -o json");
    assert_eq!(ran.status, 1, "{ran:?}");
    assert_eq!(codes(&ran, "finding"), ["MT0380"]);
    assert_eq!(
        ran.json()["categories"][0]["checks"][0]["fix"],
        "kubectl version --context nowhere"
    );
}

#[test]
fn what_only_administrators_may_look_at_is_skipped_for_others() {
    let cluster = installed();
    for (path, right) in [
        ("/api/v1/nodes", "list nodes"),
        ("/api/v1/namespaces/shop", "get namespaces"),
        (
            "/apis/apiextensions.k8s.io",
            "get customresourcedefinitions",
        ),
        ("/apis/apps/v1/deployments", "list deployments"),
    ] {
        cluster.deny(path, 403);
        cluster.take_right(right);
    }
    let ran = cluster.run("check -o json");
    assert_eq!(ran.status, 0, "{ran:?}");
    assert_eq!(codes(&ran, "warning"), ["MT0382"; 3]);
    let report = ran.json();
    let checks = report["categories"].as_array().unwrap().iter();
    let skipped: Vec<_> = checks
        .flat_map(|category| category["checks"].as_array().unwrap())
        .filter_map(|check| check["skipped"].as_str())
        .collect();
    for right in [
        "you may not list nodes",
        "you may not get namespaces",
        "you may not list deployments.apps",
    ] {
        assert!(skipped.contains(&right), "{skipped:?}");
    }
    // A check that a flag requests is never skipped: its failure is a finding.
    for (line, findings) in [
        ("check --only node --probe", 1),
        ("check --only tunnels", 4),
    ] {
        cluster.deny("/apis/muxtunnel.dev", 403);
        let ran = cluster.run(&format!("{line} -o json"));
        assert_eq!(
            (ran.status, codes(&ran, "finding")),
            (3, vec!["MT0382".to_owned(); findings]),
            "{line}"
        );
    }
}

#[test]
fn small_buffers_of_a_tunnel_over_udp_are_a_warning_with_its_nodes() {
    let cluster = installed();
    cluster.object("both.yaml", |tunnel| {
        tunnel["spec"]["carrier"] = json!({"protocol": "QUIC"});
        tunnel["status"]["sysctls"] = json!([
            {"name": "net.core.rmem_max", "value": "212992 (exit), 8388608 (entry)"},
            {"name": "net.core.wmem_max", "value": "8388608"},
        ]);
    });
    for (end, node) in [("entry", "n1"), ("exit", "n2")] {
        let labels = json!({
            "muxtunnel.dev/kind": "MuxTunnel", "muxtunnel.dev/name": "web",
            "app.kubernetes.io/component": end,
        });
        let pod = json!({
            "metadata": {"name": end, "namespace": "shop", "labels": labels},
            "spec": {"containers": [], "nodeName": node}, "status": {"phase": "Running"},
        });
        cluster.put(&format!("pods/{end}@shop"), pod);
    }
    let fix = || {
        let ran = cluster.run("check --only tunnels -n shop -o json");
        assert_eq!(ran.status, 0, "{ran:?}");
        assert_eq!(codes(&ran, "warning"), ["MT0392"]);
        let checks = &ran.json()["categories"][0]["checks"];
        checks[1]["fix"].as_str().unwrap().to_owned()
    };
    assert!(fix().starts_with("kubectl debug node/n2 "), "{}", fix());
    assert!(!fix().contains("node/n1"), "{}", fix());
    cluster.deny("/api/v1/namespaces/shop/pods", 403);
    let pods =
        "kubectl get pods -n shop -l muxtunnel.dev/kind=MuxTunnel,muxtunnel.dev/name=web -o wide";
    assert_eq!(fix(), pods);
}

#[test]
fn a_server_that_fails_is_a_failure() {
    let cluster = installed();
    cluster.deny("/api/v1/nodes", 500);
    let ran = cluster.run("check --only node");
    assert_eq!((ran.status, ran.out.as_str()), (1, ""), "{ran:?}");
    assert!(
        ran.err.contains("cannot list nodes: told to refuse (500)"),
        "{ran:?}"
    );
}

#[test]
fn probing_makes_pods_on_the_node_and_leaves_none() {
    let cluster = installed();
    cluster.always_sets("pods", "/status", json!({"containerStatuses": [{
        "name": "probe", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 3, "message": "MT0404 WanUnsupported: nothing works"}},
    }]}));
    let ran = cluster.run("check --only node --probe -n shop -o json");
    assert_eq!(ran.status, 3, "{ran:?}");
    assert_eq!(codes(&ran, "finding"), ["MT0308", "MT0404", "MT0404"]);
    // A gateway does not answer `udp-buffers` with this message, so the answer is unknown.
    assert_eq!(codes(&ran, "warning"), ["MT0389", "MT0390"]);
    let writes = cluster.written();
    let mut made = writes
        .iter()
        .filter(|(write, _)| write == "POST /api/v1/namespaces/shop/pods");
    let images: Vec<_> = made
        .clone()
        .map(|(_, pod)| pod["spec"]["containers"][0]["image"].clone())
        .collect();
    assert_eq!(images, ["g:1", "g:1", "n:1", "n:1", "n:1"]);
    let deleted = writes
        .iter()
        .filter(|(write, _)| write.starts_with("DELETE /api/v1/namespaces/shop/pods/"));
    assert_eq!(deleted.count(), 5);
    assert!(made.all(|(_, pod)| pod["spec"]["nodeName"] == "n1"));
}

#[test]
fn probing_that_is_ended_leaves_no_pods_either() {
    let cluster = installed();
    // The pods do not answer.
    let line = "check --only node --probe -n shop";
    let mut program = cluster.command(line);
    program.stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = program.spawn().unwrap();
    let pods = |verb: &str| {
        let writes = cluster.written();
        let pods = writes.iter().filter(|(write, _)| {
            write.starts_with(&format!("{verb} /api/v1/namespaces/shop/pods"))
        });
        pods.count()
    };
    until("there is a pod", || pods("POST") > 0);
    let id = program.id().to_string();
    let killed = Command::new("kill").args(["-TERM", &id]).status().unwrap();
    assert!(killed.success());
    let ran = Ran::from(program.wait_with_output().unwrap());
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(ran.err.contains("interrupted"), "{ran:?}");
    assert_eq!(pods("POST"), pods("DELETE"));
}

#[test]
fn explain_needs_no_cluster() {
    let cluster = Cluster::start();
    let explain = |line: &str| {
        let mut command = cluster.command(line);
        Ran::from(command.env("KUBECONFIG", "/nothing").output().unwrap())
    };
    let ran = explain("explain MT0308");
    assert_eq!(ran.status, 0);
    assert!(ran.out.starts_with("MT0308  SysctlForbidden\n"), "{ran:?}");
    let json = explain("explain sysctlforbidden -o json").json();
    assert_eq!(
        (&json["kind"], &json["code"]),
        (&json!("Code"), &json!("MT0308"))
    );
    assert!(
        explain("explain -o json").json()["items"]
            .as_array()
            .unwrap()
            .len()
            > 50
    );
    let ran = explain("explain MT0398");
    assert_eq!((ran.status, ran.out.as_str()), (2, ""));
    assert!(ran.err.contains("the nearest is MT0"), "{ran:?}");
}

#[test]
fn as_a_plugin_it_names_itself_as_kubectl_calls_it() {
    let cluster = Cluster::start();
    let plugin = cluster.file("kubectl-muxtunnel");
    symlink(env!("CARGO_BIN_EXE_muxtunnel"), &plugin).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&plugin);
        Ran::from(
            command
                .args(arguments)
                .env("KUBECONFIG", cluster.file("kubeconfig"))
                .output()
                .unwrap(),
        )
    };
    let help = run(&["--help"]);
    assert_eq!((help.status, help.err.as_str()), (0, ""));
    assert!(help.out.contains("Usage: kubectl muxtunnel "), "{help:?}");
    let failed = run(&["status", "nothing"]);
    assert!(failed.err.starts_with("kubectl muxtunnel: "), "{failed:?}");
    assert_eq!(run(&["explain", "--nonsense"]).status, 2);
}

#[test]
fn completions_are_scripts() {
    let ran = Cluster::start().run("completions bash");
    assert_eq!(ran.status, 0);
    assert!(ran.out.contains("_muxtunnel()"), "{ran:?}");
}

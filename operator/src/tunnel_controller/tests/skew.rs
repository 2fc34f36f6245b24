//! Tests upgrades and changes whose roll-out does not end. The pods of each image and of each static
//! configuration keep a document with which they can start, and no permission that is revoked.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::Event;
use muxtunnel_gateway_config::{Config, Protocol};
use serde_json::{Value, json};

use super::bench::{Bench, MADE, clock};
use super::*;
use crate::grants::Grants;
use crate::grants::tests::{grant, known};
use crate::labels::MANAGER;
use crate::tunnel_controller::config_file::is_key;

const SPEC: &str = "
forwards:
- name: web
  port: 8080
  targets: [{serviceRef: {name: shop, namespace: shops}, port: 80}]
- name: db
  port: 443
  targets: [{host: db.example.com, port: 5432}]
carrier: {protocol: JMUX}
security:
  mode: Certificates
  certificates: {entry: {secretRef: {name: near}}, exit: {secretRef: {name: far}}, exitNames: [exit.example.com],
    entryNames: [a.example.com, b.example.com]}
allow: [{host: '*.example.org', port: 443}]
deny: [{cidr: 10.1.0.0/16}]
";

fn bench(spec: &str, grants: Grants) -> Bench {
    let bench = Bench::with(spec, grants, clock(|| MADE));
    let mut shop = shop_json();
    shop["metadata"]["namespace"] = json!("shops");
    bench.api.put("services/shop@shops", shop);
    bench
}

/// Replaces the gateways' image.
fn use_image(bench: &Bench, image: &str) {
    bench.classify(|spec| spec["images"] = json!({"gateway": image}));
}

/// The key of the configuration that a pod with this spec mounts.
fn key(spec: &Value) -> String {
    let source = &spec["volumes"][0]["configMap"];
    source["items"][0]["key"].as_str().unwrap().to_owned()
}

/// The key of the Deployment's template.
fn newest(bench: &Bench, end: &str) -> String {
    let deployment = bench
        .api
        .get(&format!("deployments/{}", child(end)))
        .unwrap();
    key(&deployment["spec"]["template"]["spec"])
}

fn keys(bench: &Bench, end: &str) -> Vec<String> {
    let config_map = bench
        .api
        .get(&format!("configmaps/{}", child(end)))
        .unwrap();
    let keys = config_map["data"].as_object().unwrap().keys();
    keys.filter(|key| is_key(key)).cloned().collect()
}

fn text(bench: &Bench, end: &str, key: &str) -> String {
    let config_map = bench
        .api
        .get(&format!("configmaps/{}", child(end)))
        .unwrap();
    let text = config_map["data"][key].as_str();
    text.unwrap_or_else(|| panic!("{key} is not in {config_map}"))
        .to_owned()
}

/// Stores `text` as the document `key` of the end's ConfigMap, like the operator of another version.
async fn write(bench: &Bench, end: &str, key: &str, text: &str) {
    let name = child(end);
    let mut config_map = bench.api.get(&format!("configmaps/{name}")).unwrap();
    config_map["data"][key] = json!(text);
    for kept in ["managedFields", "resourceVersion", "uid"] {
        config_map["metadata"].as_object_mut().unwrap().remove(kept);
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(bench.api.client(), "site");
    let params = PatchParams::apply(MANAGER).force();
    let patch = Patch::Apply(config_map);
    let written = config_maps.patch(&name, &params, &patch).await;
    written.unwrap();
}

/// Gives the documents of both ends a field that this version does not know, as gateways of another
/// version have. Returns the keys.
async fn of_another_version(bench: &Bench) -> [String; 2] {
    let keys = ["entry", "exit"].map(|end| (end, newest(bench, end)));
    for (end, key) in &keys {
        let text = text(bench, end, key);
        write(bench, end, key, &format!("{text}further: 1\n")).await;
    }
    keys.map(|(_, key)| key)
}

/// The document `key`, without the field of the other version.
fn config(bench: &Bench, end: &str, key: &str) -> Config {
    let text = text(bench, end, key);
    let known = text.replace("further: 1\n", "");
    assert_ne!(text, known, "the document has lost its field");
    Config::from_yaml(&known).unwrap()
}

/// Pods of the newest template. The earlier pods stay, as in a roll-out that does not end.
fn start(bench: &Bench, end: &str, name: &str) {
    let deployment = bench
        .api
        .get(&format!("deployments/{}", child(end)))
        .unwrap();
    let template = &deployment["spec"]["template"];
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": template["metadata"]["labels"]},
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    });
    let path = format!("pods/{name}");
    bench.api.put_pod_of(&child(end), &path, pod);
}

/// Ends the pods of all ReplicaSets whose template mounts `key`.
fn stop(bench: &Bench, key_of_set: &str) {
    for mut set in bench.api.list("replicasets") {
        if key(&set["spec"]["template"]["spec"]) == key_of_set {
            set["spec"]["replicas"] = json!(0);
            let name = set["metadata"]["name"].as_str().unwrap().to_owned();
            bench.api.put(&format!("replicasets/{name}"), set);
        }
    }
    for pod in bench.api.list("pods") {
        if key(&pod["spec"]) == key_of_set {
            let name = pod["metadata"]["name"].as_str().unwrap();
            bench.api.remove(&format!("pods/{name}"));
        }
    }
}

async fn writes_nothing(bench: &Bench) {
    bench.reconcile().await.unwrap();
    bench.api.take_requests();
    for _ in 0..20 {
        bench.reconcile().await.unwrap();
    }
    assert_eq!(bench.api.take_writes(), [""; 0]);
}

#[tokio::test]
async fn a_pod_of_a_stuck_roll_out_starts_again_with_the_file_of_its_own_version() {
    let recorded = |end: &str| {
        let child = child(end);
        let end = child.strip_prefix("office-").unwrap();
        let path = format!("tests/operator/recorded/0.1.0/jmux-{end}.yaml");
        std::fs::read_to_string(path).unwrap()
    };
    let bench = bench(SMALLEST, known([]));
    bench.run().await;
    let old = ["entry", "exit"].map(|end| (end, newest(&bench, end)));
    for (end, key) in &old {
        write(&bench, end, key, &recorded(end)).await;
    }
    use_image(&bench, "example.com/gateway:2");
    // The field `limits` is not in the recorded files.
    let limited = SMALLEST.replacen("port:", "limits: {streams: 5}\n  port:", 1);
    bench.edit(&limited);
    for _ in 0..3 {
        bench.reconcile().await.unwrap();
        for (end, key) in &old {
            assert_ne!(newest(&bench, end), *key);
            assert_eq!(text(&bench, end, key), recorded(end));
            assert_eq!(keys(&bench, end).len(), 2);
        }
        let new = text(&bench, "entry", &newest(&bench, "entry"));
        assert!(new.contains("limits:\n    streams: 5"), "{new}");
    }
    // A gateway counts as current if it has the document of its own form.
    bench.api.run_pods();
    bench.reconcile().await.unwrap();
    bench.reconcile().await.unwrap();
    let ready = bench.condition("Ready");
    assert_eq!(ready["status"], "True", "{ready}");
    writes_nothing(&bench).await;
}

/// The volumes of the old pods have no keys and no certificate.
#[tokio::test]
async fn a_pod_starts_again_with_the_settings_of_its_template_and_gets_new_forwards() {
    let bench = bench(SMALLEST, known([]));
    bench.run().await;
    let old = newest(&bench, "entry");
    let more = "- {name: more, port: 8081, targets: [{host: a.example.com, port: 1}]}\ncarrier";
    let secured = MANAGED.replace("protocol: JMUX", "protocol: Native");
    bench.edit(&secured.replacen("carrier", more, 1));
    for _ in 0..2 {
        bench.reconcile().await.unwrap();
        start(&bench, "entry", "stuck");
    }
    let kept = Config::from_yaml(&text(&bench, "entry", &old)).unwrap();
    assert_eq!(kept.protocol, Protocol::Jmux);
    assert!(kept.security.files().is_empty());
    assert_eq!(kept.forwards.len(), 3);
    let new = Config::from_yaml(&document(&bench.api, "office-entry")).unwrap();
    assert_eq!(new.protocol, Protocol::Native);
    writes_nothing(&bench).await;
}

#[tokio::test]
async fn removed_peers_and_targets_and_new_denials_reach_old_pods() {
    let bench = bench(SPEC, known([grant("shops", "site", "shop")]));
    bench.run().await;
    let [entry, exit] = of_another_version(&bench).await;
    use_image(&bench, "example.com/gateway:2");
    bench.reconcile().await.unwrap();
    let before = config(&bench, "exit", &exit);
    assert_eq!(before.allow.len(), 3);
    bench.edit(
        &SPEC
            .replace(
                "[a.example.com, b.example.com]",
                "[b.example.com, c.example.com]",
            )
            .replace("db.example.com", "other.example.com")
            .replace("deny: [", "deny: [{host: 'bad.example.org'}, "),
    );
    bench.reconcile().await.unwrap();
    let rules = |rules: &[muxtunnel_gateway_config::Rule]| -> Vec<String> {
        rules.iter().map(ToString::to_string).collect()
    };
    let after = config(&bench, "exit", &exit);
    assert_eq!(
        rules(&after.allow),
        ["*.example.org.:443", "shop.shops.svc:80"]
    );
    assert_eq!(rules(&after.deny), ["10.1.0.0/16", "bad.example.org."]);
    let security = serde_json::to_value(&after.security).unwrap();
    // The entry that was permitted has its present names.
    let names = json!(["b.example.com", "c.example.com"]);
    let entry_names = &security["peers"][0]["certificateNames"];
    assert_eq!(
        (entry_names, security["peers"].as_array().map(Vec::len)),
        (&names, Some(1))
    );
    let after = config(&bench, "entry", &entry);
    let names: Vec<_> = after.forwards.iter().map(|forward| &forward.name).collect();
    assert_eq!(names, ["web"]);
    writes_nothing(&bench).await;
    // What returns to the spec returns to the pods.
    let removed = [text(&bench, "entry", &entry), text(&bench, "exit", &exit)];
    bench.edit(SPEC);
    bench.reconcile().await.unwrap();
    assert_eq!(config(&bench, "exit", &exit), before);
    assert_eq!(config(&bench, "entry", &entry).forwards.len(), 2);
    assert_ne!(
        [text(&bench, "entry", &entry), text(&bench, "exit", &exit)],
        removed
    );
    writes_nothing(&bench).await;
}

/// In every state of the tunnel.
#[tokio::test]
async fn a_revoked_grant_reaches_old_pods() {
    for paused in [false, true] {
        let grants = known([grant("shops", "site", "shop")]);
        let bench = bench(SPEC, grants.clone());
        bench.run().await;
        let [entry, exit] = of_another_version(&bench).await;
        use_image(&bench, "example.com/gateway:2");
        bench.reconcile().await.unwrap();
        start(&bench, "exit", "stuck");
        let before = config(&bench, "exit", &exit);
        if paused {
            bench.pause(true);
        }
        grants.handle(0, Event::Delete(grant("shops", "site", "shop")));
        bench.reconcile().await.unwrap();
        for key in keys(&bench, "exit") {
            let text = text(&bench, "exit", &key);
            let exit = Config::from_yaml(&text.replace("further: 1\n", "")).unwrap();
            let names =
                |rule: &muxtunnel_gateway_config::Rule| rule.to_string().contains("shop.shops");
            assert!(!exit.allow.iter().any(names), "{paused}: {text}");
            assert!(exit.deny.iter().any(names), "{paused}: {text}");
        }
        let forwards = config(&bench, "entry", &entry).forwards;
        assert!(
            forwards.iter().all(|forward| forward.name != "web"),
            "{paused}"
        );
        writes_nothing(&bench).await;
        // What is permitted again returns to the pods.
        assert_ne!(config(&bench, "exit", &exit), before, "{paused}");
        bench.pause(false);
        grants.handle(0, Event::Apply(grant("shops", "site", "shop")));
        bench.reconcile().await.unwrap();
        assert_eq!(config(&bench, "exit", &exit), before, "{paused}");
        assert_eq!(config(&bench, "entry", &entry).forwards.len(), 2);
        writes_nothing(&bench).await;
    }
}

#[tokio::test]
async fn a_configuration_goes_with_the_last_pod_that_mounts_it() {
    let bench = bench(SMALLEST, known([]));
    bench.run().await;
    let old = newest(&bench, "exit");
    use_image(&bench, "example.com/gateway:2");
    bench.reconcile().await.unwrap();
    start(&bench, "exit", "new");
    bench.api.run_pods();
    bench.reconcile().await.unwrap();
    assert_eq!(
        keys(&bench, "exit").len(),
        2,
        "the old ReplicaSet has a pod"
    );
    // The last pod drains.
    let pod = bench.api.get("pods/office-tunnel-exit-0").unwrap();
    stop(&bench, &old);
    let mut ending = pod;
    ending["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
    bench.api.put("pods/office-tunnel-exit-0", ending);
    bench.reconcile().await.unwrap();
    assert_eq!(keys(&bench, "exit").len(), 2, "an old pod drains");
    bench.api.remove("pods/office-tunnel-exit-0");
    bench.reconcile().await.unwrap();
    assert_eq!(keys(&bench, "exit"), [newest(&bench, "exit")]);
    writes_nothing(&bench).await;
}

#[tokio::test]
async fn a_config_map_has_the_newest_configurations_only() {
    let bench = bench(SMALLEST, known([]));
    bench.run().await;
    let mut order = vec![newest(&bench, "exit")];
    for number in 2..9 {
        use_image(&bench, &format!("example.com/gateway:{number}"));
        bench.reconcile().await.unwrap();
        start(&bench, "exit", &format!("of-{number}"));
        bench.api.run_pods();
        bench.reconcile().await.unwrap();
        order.push(newest(&bench, "exit"));
    }
    let mut wanted = order[order.len() - 5..].to_vec();
    wanted.sort();
    assert_eq!(keys(&bench, "exit"), wanted);
    writes_nothing(&bench).await;
}

#[tokio::test]
async fn large_configurations_are_dropped_before_the_api_server_refuses_them() {
    let bench = bench(SMALLEST, known([]));
    bench.run().await;
    let [_, exit] = of_another_version(&bench).await;
    let large = format!(
        "{}long: {}\n",
        text(&bench, "exit", &exit),
        "a".repeat(920 << 10)
    );
    write(&bench, "exit", &exit, &large).await;
    use_image(&bench, "example.com/gateway:2");
    bench.reconcile().await.unwrap();
    assert_eq!(keys(&bench, "exit"), [newest(&bench, "exit")]);
    assert_eq!(keys(&bench, "entry").len(), 2);
}

#[tokio::test]
async fn a_rollback_uses_the_earlier_key_with_the_present_configuration() {
    let bench = bench(SMALLEST, known([]));
    bench.run().await;
    let old = newest(&bench, "entry");
    let image = images().gateway;
    use_image(&bench, "example.com/gateway:2");
    bench.reconcile().await.unwrap();
    start(&bench, "entry", "stuck");
    let [newer, _] = of_another_version(&bench).await;
    use_image(&bench, &image);
    bench.edit(&SMALLEST.replace("port: 8080", "port: 8088"));
    bench.reconcile().await.unwrap();
    assert_eq!(newest(&bench, "entry"), old);
    let present = Config::from_yaml(&document(&bench.api, "office-entry")).unwrap();
    assert_eq!(present.forwards[0].listen, "[::]:8088");
    // The pods of the newer version lose the forward that moved, and nothing else.
    assert_eq!(config(&bench, "entry", &newer).forwards.len(), 1);
    bench.api.remove("pods/stuck");
    bench.run().await;
    let ready = bench.condition("Ready");
    assert_eq!(ready["status"], "True", "{ready}");
    writes_nothing(&bench).await;
}

/// Pods of the versions whose ConfigMap had one document.
#[tokio::test]
async fn pods_that_mount_the_whole_config_map_keep_its_file() {
    let bench = bench(SMALLEST, known([]));
    bench.run().await;
    let text_of_pod = text(&bench, "entry", &newest(&bench, "entry"));
    write(&bench, "entry", "config.yaml", &text_of_pod).await;
    let mut pod = bench.api.get("pods/office-entry-0").unwrap();
    pod["spec"]["volumes"][0]["configMap"] = json!({"name": "office-entry"});
    bench.api.put("pods/office-entry-0", pod);
    bench.edit(&SMALLEST.replace("port: 8080", "port: 8088"));
    for _ in 0..3 {
        bench.reconcile().await.unwrap();
        let kept = Config::from_yaml(&text(&bench, "entry", "config.yaml")).unwrap();
        let names: Vec<_> = kept.forwards.iter().map(|forward| &forward.name).collect();
        assert_eq!(names, ["db"]);
    }
}

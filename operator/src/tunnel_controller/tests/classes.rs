//! The class of an object: what it decides, and what remains of an object without one.

use kube::runtime::reflector::ObjectRef;
use muxtunnel_crds::MuxTunnel;
use serde_json::json;

use super::bench::Bench;
use super::running::{Process, put_tunnel, server, until};
use super::*;
use crate::testing::watching::Watches;
use crate::tunnel_controller::triggers::concerned;
use crate::watches::ObjectId;

/// The class `other` of another operator, which is not the default.
fn foreign() -> Value {
    let mut class = class_json();
    class["metadata"]["name"] = json!("other");
    class["spec"] = json!({"controllerName": "example.com/operator"});
    class
}

/// The writes, without those that make kubelets read a ConfigMap again.
fn writes(bench: &Bench) -> Vec<String> {
    let mut writes = bench.api.take_writes();
    writes.retain(|write| !write.starts_with("PATCH pods/"));
    writes
}

fn template(bench: &Bench, name: &str) -> Value {
    let deployment = bench.api.get(&format!("deployments/{name}")).unwrap();
    deployment["spec"]["template"].clone()
}

#[tokio::test]
async fn the_class_decides_images_pods_and_tuning_of_all_gateways() {
    let bench = Bench::new(&format!(
        "{SMALLEST}wanEmulation: {{delayMilliseconds: 5}}\n"
    ));
    bench.classify(|spec| {
        spec["images"] = json!({"gateway": "own/g:1", "wan": "own/w:1"});
        spec["imagePullPolicy"] = json!("Always");
        spec["imagePullSecrets"] = json!([{"name": "registry"}]);
        spec["template"] = json!({"metadata": {"labels": {"cost-centre": "7"}}, "spec": {"nodeSelector": {"pool": "mux"}}});
        spec["tuning"] = json!({"profile": "WAN"});
    });
    bench.reconcile().await.unwrap();
    assert_eq!(bench.status()["className"], "muxtunnel");
    for end in ["entry", "exit"] {
        let template = template(&bench, &child(end));
        assert_eq!(template["metadata"]["labels"]["cost-centre"], "7");
        let spec = &template["spec"];
        assert_eq!(spec["nodeSelector"], json!({"pool": "mux"}));
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "registry"}]));
        let container = &spec["containers"][0];
        assert_eq!(container["image"], "own/g:1");
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(spec["initContainers"][0]["image"], "own/w:1");
        assert_eq!(spec["initContainers"][0]["imagePullPolicy"], "Always");
        let sysctls = spec["securityContext"]["sysctls"].to_string();
        assert!(sysctls.contains("net.ipv4.tcp_rmem"), "{sysctls}");
    }
    // The tuning of the object replaces that of the class.
    bench.change(|spec| spec["tuning"] = json!({"profile": "None"}));
    bench.reconcile().await.unwrap();
    let sysctls =
        template(&bench, "office-entry")["spec"]["securityContext"]["sysctls"].to_string();
    assert!(!sysctls.contains("net.ipv4.tcp_rmem"), "{sysctls}");
}

#[tokio::test]
async fn an_object_without_a_class_makes_nothing_and_says_what_to_do() {
    let bench = Bench::new(SMALLEST);
    bench.classes.borrow_mut().remove(class_json());
    bench.reconcile().await.unwrap();
    let accepted = bench.condition("Accepted");
    assert_eq!(
        (&accepted["status"], &accepted["reason"]),
        (&json!("False"), &json!("ClassNotFound"))
    );
    let message = accepted["message"].as_str().unwrap();
    assert!(
        message.contains("no MuxClass has `default: true`")
            && message.contains("the chart creates the class `muxtunnel`"),
        "{message}"
    );
    assert_eq!(bench.condition("Stalled")["reason"], "ClassNotFound");
    assert_eq!(bench.api.take_writes(), ["PATCH muxtunnels/office/status"]);
}

#[tokio::test]
async fn gateways_stay_if_their_class_goes_or_is_no_longer_the_only_default() {
    let bench = Bench::new(MANAGED);
    bench.run().await;
    bench.api.take_requests();
    let mut second = class_json();
    second["metadata"]["name"] = json!("second");
    let steps: [(&dyn Fn(), &str); 3] = [
        (
            &|| bench.classes.borrow_mut().put(second.clone()),
            "ClassAmbiguous",
        ),
        (
            &|| {
                bench.classes.borrow_mut().remove(second.clone());
                bench.classes.borrow_mut().remove(class_json());
            },
            "ClassNotFound",
        ),
        (
            &|| bench.classify(|spec| spec["namespaces"] = json!({"from": "All"})),
            "Accepted",
        ),
    ];
    for (step, reason) in steps {
        step();
        let port = if reason == "Accepted" { "8080" } else { "8088" };
        bench.edit(&MANAGED.replace("8080", port));
        bench.reconcile().await.unwrap();
        assert_eq!(bench.condition("Accepted")["reason"], reason);
        assert_eq!(bench.status()["className"], "muxtunnel", "{reason}");
        assert_eq!(
            writes(&bench),
            ["PATCH muxtunnels/office/status"],
            "{reason}"
        );
    }
}

#[tokio::test]
async fn what_a_class_no_longer_permits_is_refused_and_its_gateways_stay() {
    for (spec, field) in [
        (
            format!("{SMALLEST}wanEmulation: {{delayMilliseconds: 5}}\n"),
            "wanEmulation",
        ),
        (tuned(), "tuning.allowUnsafe"),
        (
            format!("{SMALLEST}entry: {{template: {{metadata: {{annotations: {{note: x}}}}}}}}\n"),
            "template.metadata.annotations note",
        ),
        (with_driver(), "security.certificates: csi.driver"),
    ] {
        let bench = Bench::new(&spec);
        bench.run().await;
        bench.api.take_requests();
        bench.classify(|spec| spec["permitted"] = json!({}));
        bench.reconcile().await.unwrap();
        assert_eq!(
            writes(&bench),
            ["PATCH muxtunnels/office/status"],
            "{field}"
        );
        let accepted = bench.condition("Accepted");
        assert_eq!(accepted["reason"], "ClassNotPermitted", "{field}");
        let message = accepted["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("MT0372 {field}")), "{message}");
    }
}

#[tokio::test]
async fn nothing_is_written_to_an_object_of_another_operator() {
    for spec in [MANAGED, EXIT, RENDEZVOUS] {
        let bench = Bench::new(&format!("{spec}className: other\n"));
        bench.classes.borrow_mut().put(foreign());
        bench.api.take_requests();
        bench.reconcile().await.unwrap();
        assert_eq!(bench.api.take_writes(), [""; 0], "{spec}");
        assert_eq!(bench.status(), Value::Null, "{spec}");
    }
    // Not even an object that this version cannot decode.
    let bench = Bench::new(&format!("{SMALLEST}className: other\n"));
    bench.classes.borrow_mut().put(foreign());
    bench.change(|spec| spec["carrier"]["protocol"] = json!("Quantum"));
    bench.reconcile().await.unwrap();
    assert_eq!(bench.status(), Value::Null);
}

#[tokio::test]
async fn an_object_moves_to_another_class_and_back() {
    let bench = Bench::new(MANAGED);
    let mut canary = class_json();
    canary["metadata"]["name"] = json!("canary");
    canary["spec"]["default"] = json!(false);
    canary["spec"]["images"] = json!({"gateway": "example.com/gateway:2"});
    bench.classes.borrow_mut().put(canary);
    for (class, image) in [("canary", "2"), ("muxtunnel", "1")] {
        bench.change(|spec| spec["className"] = json!(class));
        bench.run().await;
        assert_eq!(bench.status()["className"], class);
        let container = &template(&bench, "office-entry")["spec"]["containers"][0];
        assert_eq!(container["image"], format!("example.com/gateway:{image}"));
        assert_eq!(bench.condition("Ready")["status"], "True");
    }
}

#[tokio::test]
async fn a_change_of_a_class_concerns_its_objects_and_those_without_a_name() {
    let api = FakeApi::default();
    for (name, class) in [
        ("plain", None),
        ("fast", Some("fast")),
        ("slow", Some("slow")),
    ] {
        let mut object = object_json(SMALLEST);
        object["metadata"]["name"] = json!(name);
        if let Some(class) = class {
            object["spec"]["className"] = json!(class);
        }
        api.put(&format!("muxtunnels/{name}"), object);
    }
    let mut watches = Watches::new();
    watches.deliver(&api);
    let change = crate::classes::Change::Class("fast".to_owned());
    let mut woken = concerned::<MuxTunnel>(&watches.caches(), &change);
    woken.sort_by(|one, other| one.name.cmp(&other.name));
    let expected = ["fast", "plain"].map(|name| {
        let object = ObjectRef::<MuxTunnel>::new(name).within("site");
        ObjectId::from(object)
    });
    assert_eq!(woken, expected);
}

#[tokio::test(start_paused = true)]
async fn a_running_operator_follows_its_classes() {
    let api = server();
    put_tunnel(&api, "office");
    let mut process = Process::alone(&api);
    process.plan();
    let image = || {
        let deployment = api.get("deployments/office-entry")?;
        let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
        Some(image.as_str()?.to_owned())
    };
    let is = |version: &str| image() == Some(format!("example.com/gateway:{version}"));
    until("the class of the start", || is("1")).await;
    let mut class = class_json();
    class["spec"]["images"] = json!({"gateway": "example.com/gateway:3"});
    process.classes.lock().unwrap().put(class);
    until("the changed class", || is("3")).await;
}

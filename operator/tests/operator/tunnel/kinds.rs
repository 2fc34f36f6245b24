//! Objects of different kinds with one name.

use std::collections::BTreeSet;

use super::*;

/// An object of each kind, all of them called `office`, with every kind of child.
fn objects() -> Vec<String> {
    let native = SMALLEST.replace("JMUX", "Native");
    let reverse = "- {name: back, port: 9000, targets: [{host: a.example.com, port: 80}]}";
    let tuning = "tuning: {allowUnsafe: true, sysctls: [{name: net.a, value: '1'}]}";
    vec![
        format!(
            "{native}reverseForwards:\n{reverse}\nentry: {{replicas: 2}}\nexit: {{replicas: 2}}\n"
        ),
        format!(
            "{EXIT}reversePorts: [{{name: back, port: 9000}}]\nssh: {{secretRef: {{name: people}}}}\n\
             gateway: {{replicas: 2}}\n"
        ),
        RENDEZVOUS.to_owned(),
        format!("{SMALLEST}{tuning}\n"),
        format!("{EXIT}{tuning}\n"),
    ]
}

/// All children of the objects.
fn children() -> Vec<Value> {
    fn json<K: serde::Serialize>(objects: &[K]) -> impl Iterator<Item = Value> + '_ {
        let objects = objects.iter();
        objects.map(|object| serde_json::to_value(object).unwrap())
    }
    let mut all = Vec::new();
    for spec in objects().iter() {
        let built = built(spec);
        all.extend(json(&built.service_accounts));
        all.extend(json(&built.config_maps));
        all.extend(json(&built.services));
        all.extend(json(&built.network_policies));
        all.extend(json(&built.deployments));
        all.extend(json(&built.pod_disruption_budgets));
        all.extend(json(&built.probe_jobs));
    }
    all
}

#[test]
fn no_two_objects_have_a_child_of_one_name() {
    let mut owners = std::collections::BTreeMap::new();
    for child in children() {
        let (kind, name) = (&child["kind"], &child["metadata"]["name"]);
        let owner = child["metadata"]["ownerReferences"][0]["kind"].clone();
        let labels = &child["metadata"]["labels"];
        assert_eq!(labels["muxtunnel.dev/kind"], owner, "{kind} {name}");
        assert_eq!(labels["muxtunnel.dev/name"], "office", "{kind} {name}");
        let before = owners.insert(format!("{kind} {name}"), owner.clone());
        assert!(before.is_none_or(|before| before == owner), "{kind} {name}");
    }
    assert!(owners.len() > 20, "{owners:?}");
}

/// The rule of `serviceName` refuses the names of all of these Services.
#[test]
fn no_port_of_another_object_can_have_the_name_of_a_default_service() {
    let children = children();
    let services = children.iter().filter(|child| child["kind"] == "Service");
    let names: BTreeSet<_> = services
        .filter_map(|service| service["metadata"]["name"].as_str())
        .collect();
    for name in &names {
        assert!(
            muxtunnel_crds::OWN_SERVICE_ENDS
                .iter()
                .any(|end| name.ends_with(end)),
            "{name}"
        );
    }
    assert!(names.len() > 6, "{names:?}");
}

#[test]
fn a_selector_selects_the_pods_of_one_end_of_one_object() {
    let children = children();
    let pods: BTreeSet<String> = children
        .iter()
        .map(|child| &child["spec"]["template"]["metadata"]["labels"])
        .filter(|labels| labels.is_object())
        .map(Value::to_string)
        .collect();
    let mut selectors = 0;
    for child in &children {
        let spec = &child["spec"];
        let labels = match child["kind"].as_str().unwrap() {
            "Service" => &spec["selector"],
            "NetworkPolicy" => &spec["podSelector"]["matchLabels"],
            "Deployment" | "PodDisruptionBudget" => &spec["selector"]["matchLabels"],
            _ => continue,
        };
        let selected = pods.iter().filter(|pod| {
            let pod: Value = serde_json::from_str(pod).unwrap();
            let wanted = labels.as_object().unwrap().iter();
            wanted.clone().all(|(key, value)| pod[key] == *value)
        });
        let of: Vec<_> = selected.collect();
        assert_eq!(of.len(), 1, "{child}: {of:?}");
        selectors += 1;
    }
    assert!(selectors > 15, "{selectors} selectors");
}

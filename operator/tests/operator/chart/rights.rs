//! The permissions in the rendered roles: those of the operator, and those for users.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::Value;

use super::{compare, golden, read};

/// The verbs by `group/resource`, followed by the names that a rule is limited to.
type Rights = BTreeMap<String, BTreeSet<String>>;

/// Granted only with `certificates.certManager`.
const CERT_MANAGER: &str = "cert-manager.io/certificates";
const NAMESPACES: &str = "/namespaces";

fn texts(list: &Value) -> Vec<&str> {
    list.as_array()
        .into_iter()
        .flatten()
        .map(|text| text.as_str().unwrap())
        .collect()
}

/// Whether a binding gives the role to the operator, whose account is the only subject of the chart.
fn is_bound(documents: &[Value], role: &Value) -> bool {
    documents.iter().any(|binding| {
        binding["roleRef"]["kind"] == role["kind"]
            && binding["roleRef"]["name"] == role["metadata"]["name"]
            && binding["metadata"]["namespace"] == role["metadata"]["namespace"]
    })
}

/// The operator's permissions by scope: `cluster-wide`, or `in NAMESPACE`.
fn rights(documents: &[Value]) -> BTreeMap<String, Rights> {
    by_scope(documents, |role| {
        let scope = match role["kind"].as_str() {
            Some("ClusterRole") => "cluster-wide".to_owned(),
            Some("Role") => format!("in {}", role["metadata"]["namespace"].as_str().unwrap()),
            _ => return None,
        };
        is_bound(documents, role).then_some(scope)
    })
}

/// The permissions of the roles for users, by role.
fn rights_of_users(documents: &[Value]) -> BTreeMap<String, Rights> {
    by_scope(documents, |role| {
        let is_for_users = role["kind"] == "ClusterRole" && !is_bound(documents, role);
        is_for_users.then(|| role["metadata"]["name"].as_str().unwrap().to_owned())
    })
}

fn by_scope(
    documents: &[Value],
    scope: impl Fn(&Value) -> Option<String>,
) -> BTreeMap<String, Rights> {
    let mut found: BTreeMap<String, Rights> = BTreeMap::new();
    for role in documents {
        let Some(scope) = scope(role) else { continue };
        let rights = found.entry(scope).or_default();
        for rule in role["rules"].as_array().unwrap() {
            let mut names = texts(&rule["resourceNames"]).join(",");
            if !names.is_empty() {
                names = format!("[{names}]");
            }
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    let verbs = rights
                        .entry(format!("{group}/{resource}{names}"))
                        .or_default();
                    verbs.extend(texts(&rule["verbs"]).into_iter().map(str::to_owned));
                }
            }
        }
    }
    found
}

/// A line per scope and resource.
fn listed(rights: &BTreeMap<String, Rights>) -> String {
    let mut text = String::new();
    for (scope, rights) in rights {
        for (resource, verbs) in rights {
            let verbs: Vec<_> = verbs.iter().map(String::as_str).collect();
            writeln!(text, "{scope}: {resource}: {}", verbs.join(" ")).unwrap();
        }
    }
    text
}

#[test]
fn the_operator_may_do_what_is_recorded_and_nothing_else() {
    for (name, file) in [
        ("default", "rights-cluster-wide"),
        ("all-values", "rights-namespaced"),
    ] {
        let listed = listed(&rights(&golden(name)));
        compare(
            &format!("charts/tests/golden/{file}.txt"),
            &listed,
            "UPDATE_GOLDEN",
        );
    }
}

#[test]
fn users_may_do_what_is_recorded_and_nothing_else() {
    let listed = listed(&rights_of_users(&golden("default")));
    compare(
        "charts/tests/golden/rights-of-users.txt",
        &listed,
        "UPDATE_GOLDEN",
    );
    assert!(rights_of_users(&golden("all-values")).is_empty());
}

/// The labels with which the cluster adds the rules of a role to its roles `view`, `edit` and
/// `admin`.
fn aggregated(documents: &[Value]) -> BTreeMap<&str, Vec<&str>> {
    let roles = documents
        .iter()
        .filter(|role| role["kind"] == "ClusterRole");
    let roles = roles.filter(|role| !is_bound(documents, role));
    let with_labels = roles.map(|role| {
        let labels = role["metadata"]["labels"].as_object().unwrap().keys();
        let labels = labels.filter_map(|key| key.strip_prefix("rbac.authorization.k8s.io/"));
        (role["metadata"]["name"].as_str().unwrap(), labels.collect())
    });
    with_labels.collect()
}

#[test]
fn a_user_who_may_edit_a_namespace_lets_no_peer_in() {
    let documents = golden("default");
    let [view, edit, admin] = [
        "aggregate-to-view",
        "aggregate-to-edit",
        "aggregate-to-admin",
    ];
    let expected = [
        ("muxtunnel-admin", vec![admin]),
        ("muxtunnel-class-admin", vec![]),
        ("muxtunnel-connect", vec![]),
        ("muxtunnel-edit", vec![admin, edit]),
        ("muxtunnel-peer-admin", vec![]),
        ("muxtunnel-view", vec![admin, edit, view]),
    ];
    assert_eq!(aggregated(&documents), expected.into());
    let rights = rights_of_users(&documents);
    let reads = BTreeSet::from(["get", "list", "watch"].map(str::to_owned));
    for role in ["muxtunnel-view", "muxtunnel-edit"] {
        for kind in ["muxexits", "muxpeers", "muxrendezvous", "muxgrants"] {
            let verbs = rights[role].get(&format!("muxtunnel.dev/{kind}"));
            assert!(verbs.is_none_or(|verbs| verbs.is_subset(&reads)), "{role}");
        }
    }
    let peers = "muxtunnel.dev/muxpeers";
    assert!(rights["muxtunnel-admin"][peers].contains("permanent"));
    assert!(rights["muxtunnel-peer-admin"][peers].contains("permanent"));
    assert!(!rights["muxtunnel-connect"][peers].contains("permanent"));
}

#[test]
fn with_watched_namespaces_it_may_do_the_same_there_and_nothing_cluster_wide() {
    let everywhere = rights(&golden("default"));
    let namespaced = rights(&golden("all-values"));
    // Classes are cluster-scoped.
    let of_classes = |resource: &String| resource.starts_with("muxtunnel.dev/muxclasses");
    assert!(namespaced["cluster-wide"].keys().all(of_classes));
    for namespace in ["one", "two"] {
        let mut rights = namespaced[&format!("in {namespace}")].clone();
        // Only the values of all-values.yaml request this permission.
        rights.remove(CERT_MANAGER).unwrap();
        // Without a list of namespaces, the operator also watches them.
        let verbs = rights.get_mut(NAMESPACES).unwrap();
        verbs.extend(["list", "watch"].map(str::to_owned));
        let mut everywhere = everywhere["cluster-wide"].clone();
        everywhere.retain(|resource, _| !of_classes(resource));
        assert_eq!(rights, everywhere);
    }
}

#[test]
fn it_may_nowhere_do_what_would_lead_further() {
    for name in ["default", "all-values"] {
        for (scope, rights) in rights(&golden(name)) {
            for (resource, verbs) in rights {
                let at = format!("{name}: {scope}: {resource}");
                assert!(!resource.contains('*') && !verbs.contains("*"), "{at}");
                if resource.starts_with("/secrets") {
                    // The answers to `get`, `update` and `patch` contain the Secret.
                    assert_eq!(verbs, BTreeSet::from(["create".to_owned()]), "{at}");
                }
                for verb in ["escalate", "bind", "impersonate", "deletecollection"] {
                    assert!(!verbs.contains(verb), "{at}: {verb}");
                }
                for refused in [
                    "pods/exec",
                    "pods/attach",
                    "pods/portforward",
                    "nodes",
                    "roles",
                    "tokenreviews",
                    "serviceaccounts/token",
                ] {
                    assert!(!resource.contains(refused), "{at}");
                }
                if resource == "/pods/status" {
                    // An admission policy permits one annotation.
                    let only = BTreeSet::from(["patch".to_owned()]);
                    assert_eq!(verbs, only, "{at}");
                } else if resource.starts_with("/pods") {
                    assert!(
                        verbs
                            .iter()
                            .all(|verb| ["get", "list", "watch"].contains(&verb.as_str())),
                        "{at}"
                    );
                }
            }
        }
    }
}

/// The table in operator/README.md.
fn documented() -> Rights {
    let page = read("operator/README.md");
    let (_, table) = page
        .split_once("| apiGroup | resources | verbs | for |\n|---|---|---|---|\n")
        .unwrap();
    let mut rights = Rights::new();
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let group = if cells[1] == "(core)" { "" } else { cells[1] };
        for resource in cells[2].split(", ") {
            let verbs = rights.entry(format!("{group}/{resource}")).or_default();
            verbs.extend(cells[3].split(", ").map(str::to_owned));
        }
    }
    rights
}

#[test]
fn the_table_of_the_readme_has_what_the_chart_grants() {
    let mut granted = Rights::new();
    let all = ["default", "all-values"].map(|name| rights(&golden(name)));
    let all = all.into_iter().flatten();
    for (resource, verbs) in all.flat_map(|(_, rights)| rights) {
        // The table describes in words to which names a rule is limited. This test does not compare
        // these words.
        let resource = resource.split('[').next().unwrap().to_owned();
        granted.entry(resource).or_default().extend(verbs);
    }
    assert_eq!(documented(), granted);
}

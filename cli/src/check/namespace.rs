//! Category namespace: whether the Pod Security level of a namespace admits the gateways of its
//! tunnels and exits.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::is_unsafe_sysctl;
use serde_json::Value;

use super::fix::{self, Right};
use super::{Check, Finding, Scope, readable};
use crate::cluster::refusal;
use crate::end::Failure;
use crate::object::{self, Gateways, Kind};

const LEVEL: &str = "pod-security.kubernetes.io/enforce";
/// The level that admits every pod.
const PRIVILEGED: &str = "privileged";

pub(super) async fn run(scope: &Scope<'_>) -> Result<Vec<Check>, Failure> {
    let client = &scope.cluster.client;
    let mut objects = Vec::new();
    for kind in [Kind::Tunnel, Kind::Exit] {
        let right = Right::new("list", "muxtunnel.dev", kind.plural(), scope.namespace());
        match object::all(&object::api(client, kind, scope.namespace())).await {
            // Before the installation, the kind does not exist, so there are no objects.
            Err(error) if refusal(&error) == Some(404) => {}
            answer => match readable(
                answer,
                "the tunnels and exits, which determine the Pod Security level, can be read",
                &right,
            )? {
                Ok(found) => objects.extend(found),
                Err(check) => return Ok(vec![check]),
            },
        }
    }
    let mut wanting = wanting(&objects);
    if let Some(namespace) = scope.namespace() {
        wanting.entry(namespace.to_owned()).or_default();
    }
    let api: Api<Namespace> = Api::all(client.clone());
    let right = Right::new("get", "", "namespaces", None);
    let mut checks = Vec::new();
    for (name, wanting) in wanting {
        let description = description(&name);
        let namespace = match readable(api.get_opt(&name).await, &description, &right)? {
            Ok(namespace) => namespace,
            Err(check) => {
                checks.push(check);
                continue;
            }
        };
        checks.push(match namespace {
            Some(namespace) => judge(&namespace, &wanting),
            None => Check::skipped(description, "the namespace does not exist"),
        });
    }
    if checks.is_empty() {
        checks.push(Check::skipped(
            "Pod Security admits the gateways",
            "there are no tunnels and exits",
        ));
    }
    Ok(checks)
}

fn description(namespace: &str) -> String {
    format!("Pod Security admits the gateways in namespace {namespace}")
}

/// The tunnels and exits of a namespace that need the Pod Security level privileged, by the feature that
/// needs it. All other pods fit the level restricted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanting {
    /// Objects with WAN emulation, whose container has NET_ADMIN.
    wan: BTreeSet<String>,
    /// Objects with a network, whose init container has NET_ADMIN and MKNOD.
    network: BTreeSet<String>,
    /// Objects with unsafe sysctls, which only the level privileged allows.
    sysctls: BTreeSet<String>,
}

impl Wanting {
    /// The features as text, for example `WAN emulation of slow, and unsafe sysctls of tuned`.
    /// `None` if no object needs the level privileged.
    fn words(&self) -> Option<String> {
        let parts = [
            ("WAN emulation", &self.wan),
            ("the network", &self.network),
            ("unsafe sysctls", &self.sysctls),
        ];
        let parts = parts.into_iter().filter(|(_, names)| !names.is_empty());
        let parts: Vec<_> = parts
            .map(|(what, names)| {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                format!("{what} of {}", names.join(", "))
            })
            .collect();
        (!parts.is_empty()).then(|| parts.join(", and "))
    }
}

/// The namespaces of the objects, each with its objects that need the level privileged.
fn wanting(objects: &[Gateways]) -> BTreeMap<String, Wanting> {
    let mut wanting: BTreeMap<String, Wanting> = BTreeMap::new();
    for object in objects {
        let of_namespace = wanting
            .entry(object.namespace().unwrap_or_default())
            .or_default();
        if object.spec["wanEmulation"].is_object() {
            of_namespace.wan.insert(object.name_any());
        }
        if object.spec["network"].is_object() {
            of_namespace.network.insert(object.name_any());
        }
        let tuning = &object.spec["tuning"];
        let mut sysctls = tuning["sysctls"].as_array().into_iter().flatten();
        let is_unsafe = |one: &Value| one["name"].as_str().is_some_and(is_unsafe_sysctl);
        if tuning["allowUnsafe"] == true && sysctls.any(is_unsafe) {
            of_namespace.sysctls.insert(object.name_any());
        }
    }
    wanting
}

fn judge(namespace: &Namespace, wanting: &Wanting) -> Check {
    let name = namespace.name_any();
    let description = description(&name);
    let level = namespace.labels().get(LEVEL).map(String::as_str);
    let words = wanting.words().filter(|_| level != Some(PRIVILEGED));
    let Some(words) = words else {
        return Check::good(description);
    };
    let fix = fix::privileged(&name);
    let Some(level) = level else {
        let cause = format!(
            "the gateways need the level privileged ({words}), but without the label {LEVEL} the API server's default level applies"
        );
        return Check::warning(
            description,
            Finding::new(Code::PodSecurityTooStrict, cause, fix),
        );
    };
    let cause =
        format!("the namespace has the level {level}, but the gateways need privileged: {words}");
    Check::finding(
        description,
        Finding::new(Code::PodSecurityTooStrict, cause, fix),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Verdict;

    #[test]
    fn only_wan_emulation_and_unsafe_sysctls_need_more_than_restricted() {
        let objects: Vec<Gateways> = serde_json::from_value(json!([
            {"metadata": {"name": "plain", "namespace": "a"}, "spec": {}},
            {"metadata": {"name": "slow", "namespace": "b"}, "spec": {"wanEmulation": {"delayMilliseconds": 50}}},
            {"metadata": {"name": "tuned", "namespace": "b"}, "spec": {"tuning": {
                "allowUnsafe": true, "sysctls": [{"name": "net.core.somaxconn", "value": "9"}],
            }}},
            {"metadata": {"name": "routed", "namespace": "c"}, "spec": {"network": {"mtu": 1400}}},
            {"metadata": {"name": "careful", "namespace": "a"}, "spec": {"tuning": {
                "allowUnsafe": true, "sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1 2 3"}],
            }}},
        ]))
        .unwrap();
        let wanting = wanting(&objects);
        let level = |name: &str, level: Option<&str>| {
            let mut namespace = Namespace::default();
            namespace.metadata.name = Some(name.to_owned());
            namespace.metadata.labels =
                level.map(|level| [(LEVEL.to_owned(), level.to_owned())].into());
            judge(&namespace, &wanting[name]).verdict
        };
        assert_eq!(level("a", Some("restricted")), Verdict::Good);
        assert_eq!(level("b", Some("privileged")), Verdict::Good);
        assert_eq!(level("c", Some("privileged")), Verdict::Good);
        assert!(matches!(level("c", Some("baseline")), Verdict::Finding(_)));
        assert!(matches!(level("b", None), Verdict::Warning(_)));
        let Verdict::Finding(finding) = level("b", Some("baseline")) else {
            panic!("no finding");
        };
        assert_eq!(
            finding.cause,
            "the namespace has the level baseline, but the gateways need privileged: WAN emulation of slow, and unsafe sysctls of tuned"
        );
        assert_eq!(
            finding.fix,
            "kubectl label namespace b pod-security.kubernetes.io/enforce=privileged --overwrite"
        );
    }
}

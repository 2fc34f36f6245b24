//! Category namespace: whether its Pod Security level lets the gateways of its tunnels run.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};
use muxtunnel_codes::Code;

use super::fix::{self, Right};
use super::{Check, Finding, Scope, readable};
use crate::cluster::refusal;
use crate::end::Failure;
use crate::object::{self, Tunnel};

const LEVEL: &str = "pod-security.kubernetes.io/enforce";
/// Lets every pod run.
const PRIVILEGED: &str = "privileged";

pub(super) async fn look(scope: &Scope<'_>) -> Result<Vec<Check>, Failure> {
    let client = &scope.cluster.client;
    let right = Right {
        verb: "list",
        group: "muxtunnel.dev",
        resource: "muxtunnels",
        namespace: scope.namespace(),
    };
    let tunnels = match object::tunnels(client, scope.namespace()).await {
        // Before the installation there are no tunnels.
        Err(error) if refusal(&error) == Some(404) => Vec::new(),
        answer => match readable(
            answer,
            "the tunnels' needs of Pod Security can be read",
            &right,
        )? {
            Ok(tunnels) => tunnels,
            Err(check) => return Ok(vec![check]),
        },
    };
    let mut wanting = wanting(&tunnels);
    if let Some(namespace) = scope.namespace() {
        wanting.entry(namespace.to_owned()).or_default();
    }
    let api: Api<Namespace> = Api::all(client.clone());
    let right = Right {
        verb: "get",
        group: "",
        resource: "namespaces",
        namespace: None,
    };
    let mut checks = Vec::new();
    for (name, privileged) in wanting {
        let description = description(&name);
        let namespace = match readable(api.get_opt(&name).await, &description, &right)? {
            Ok(namespace) => namespace,
            Err(check) => {
                checks.push(check);
                continue;
            }
        };
        checks.push(match namespace {
            Some(namespace) => judge(&namespace, &privileged),
            None => Check::skipped(description, "the namespace does not exist"),
        });
    }
    if checks.is_empty() {
        checks.push(Check::skipped(
            "Pod Security lets the gateways run",
            "there are no tunnels",
        ));
    }
    Ok(checks)
}

fn description(namespace: &str) -> String {
    format!("Pod Security in namespace {namespace} lets its gateways run")
}

/// The namespaces of tunnels, each with those that need the level privileged: WAN emulation has NET_ADMIN, all else
/// fits into restricted.
fn wanting(tunnels: &[Tunnel]) -> BTreeMap<String, BTreeSet<String>> {
    let mut wanting: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for tunnel in tunnels {
        let names = wanting
            .entry(tunnel.namespace().unwrap_or_default())
            .or_default();
        if tunnel.spec["wan"].is_object() {
            names.insert(tunnel.name_any());
        }
    }
    wanting
}

fn judge(namespace: &Namespace, privileged: &BTreeSet<String>) -> Check {
    let name = namespace.name_any();
    let description = description(&name);
    let level = namespace.labels().get(LEVEL).map(String::as_str);
    if privileged.is_empty() || level == Some(PRIVILEGED) {
        return Check::good(description);
    }
    let names: Vec<_> = privileged.iter().map(String::as_str).collect();
    let (names, fix) = (names.join(", "), fix::privileged(&name));
    let Some(level) = level else {
        let cause = format!(
            "WAN emulation of {names} needs the level privileged; there is no label {LEVEL}, so the API server's default holds"
        );
        return Check::warning(
            description,
            Finding::new(Code::PodSecurityTooStrict, cause, fix),
        );
    };
    let cause = format!("its level is {level}, WAN emulation of {names} needs privileged");
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
    fn only_wan_emulation_needs_more_than_restricted() {
        let tunnels: Vec<Tunnel> = serde_json::from_value(json!([
            {"metadata": {"name": "plain", "namespace": "a"}, "spec": {}},
            {"metadata": {"name": "slow", "namespace": "b"}, "spec": {"wan": {"delay": "50ms"}}},
        ]))
        .unwrap();
        let wanting = wanting(&tunnels);
        let level = |name: &str, level: Option<&str>| {
            let mut namespace = Namespace::default();
            namespace.metadata.name = Some(name.to_owned());
            namespace.metadata.labels =
                level.map(|level| [(LEVEL.to_owned(), level.to_owned())].into());
            judge(&namespace, &wanting[name]).verdict
        };
        assert_eq!(level("a", Some("restricted")), Verdict::Good);
        assert_eq!(level("b", Some("privileged")), Verdict::Good);
        assert!(matches!(level("b", None), Verdict::Warning(_)));
        let Verdict::Finding(finding) = level("b", Some("baseline")) else {
            panic!("no finding");
        };
        assert_eq!(
            finding.cause,
            "its level is baseline, WAN emulation of slow needs privileged"
        );
        assert_eq!(
            finding.fix,
            "kubectl label namespace b pod-security.kubernetes.io/enforce=privileged --overwrite"
        );
    }
}

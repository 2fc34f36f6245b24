//! Category cluster: the API server, its version, and the rights of the user.

use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Api;
use kube::api::PostParams;
use muxtunnel_codes::Code;

use super::fix::Right;
use super::{Check, Finding, Scope, version};
use crate::args::CheckArgs;
use crate::cluster::{Cluster, failed, in_words};
use crate::end::Failure;
use crate::object::Kind;

/// Reads the server's version, which needs no right. Returns a finding if the server does not
/// answer.
pub(super) async fn reach(cluster: &Cluster) -> Result<Info, Check> {
    cluster.client.apiserver_version().await.map_err(|error| {
        let context = cluster.context.as_ref();
        let flag = context.map_or_else(String::new, |name| format!(" --context {name}"));
        let fix = format!("kubectl version{flag}");
        let finding = Finding::new(Code::ApiServerUnreachable, in_words(&error), fix);
        Check::finding("the API server answers", finding)
    })
}

pub(super) async fn run(scope: &Scope<'_>, info: &Info) -> Result<Vec<Check>, Failure> {
    let mut checks = vec![
        Check::good("the API server answers"),
        server_version(&info.git_version),
    ];
    let rights = rights(scope.args, &scope.cluster.namespace);
    let asked = rights
        .iter()
        .map(|(right, _)| allowed(scope.cluster, right));
    let allowed = try_join_all(asked).await?;
    checks.extend(
        rights
            .iter()
            .zip(allowed)
            .map(|((right, need), allowed)| judge(right, *need, allowed)),
    );
    Ok(checks)
}

fn server_version(text: &str) -> Check {
    let (major, minor) = version::LEAST;
    let description = format!("the server's version {text} is {major}.{minor} or newer");
    if version::parse(text).is_some_and(|version| version >= version::LEAST) {
        return Check::good(description);
    }
    let cause = format!("the server's version is {text}");
    let fix = "kubeadm upgrade plan";
    Check::finding(description, Finding::new(Code::ServerTooOld, cause, fix))
}

/// The effect of a missing right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Without the right, some checks are skipped.
    ToLook,
    /// Without the right, the requested command cannot run.
    Asked,
}

/// The rights to check: to read nodes and namespaces; with `--pre`, the rights of an installation,
/// otherwise to read definitions and our objects; with `--probe`, to run test pods.
fn rights<'a>(args: &CheckArgs, namespace: &'a str) -> Vec<(Right<'a>, Need)> {
    let whole = |verb, group, resource| Right::new(verb, group, resource, None);
    let here = |verb, group, resource| Right::new(verb, group, resource, Some(namespace));
    let (definitions, ours) = ("apiextensions.k8s.io", "muxtunnel.dev");
    let mut rights = vec![
        (whole("list", "", "nodes"), Need::ToLook),
        (whole("get", "", "namespaces"), Need::ToLook),
    ];
    if args.pre {
        rights
            .extend(MADE.map(|(group, resource)| (whole("create", group, resource), Need::Asked)));
    } else {
        rights.push((
            whole("get", definitions, "customresourcedefinitions"),
            Need::ToLook,
        ));
        let list = |resource| match args.all_namespaces {
            true => whole("list", ours, resource),
            false => here("list", ours, resource),
        };
        let kinds = Kind::ALL.map(Kind::plural).into_iter();
        rights.extend(
            kinds
                .chain(["muxpeers"])
                .map(|kind| (list(kind), Need::Asked)),
        );
    }
    if args.probe {
        let pods = |verb| (here(verb, "", "pods"), Need::Asked);
        rights.extend(["create", "get", "delete"].map(pods));
    }
    rights
}

/// Group and resource of the objects that the chart creates by default, and of Helm's release
/// Secret.
const MADE: [(&str, &str); 14] = [
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("", "namespaces"),
    ("", "secrets"),
    ("", "serviceaccounts"),
    ("apps", "deployments"),
    ("networking.k8s.io", "networkpolicies"),
    ("policy", "poddisruptionbudgets"),
    ("", "configmaps"),
    (ADMISSION, "validatingadmissionpolicies"),
    (ADMISSION, "validatingadmissionpolicybindings"),
];

const ADMISSION: &str = "admissionregistration.k8s.io";

async fn allowed(cluster: &Cluster, right: &Right<'_>) -> Result<bool, Failure> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(right.group.to_owned()),
                resource: Some(right.resource.to_owned()),
                verb: Some(right.verb.to_owned()),
                namespace: right.namespace.map(str::to_owned),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let answer = api
        .create(&PostParams::default(), &review)
        .await
        .map_err(|error| failed("cannot read your rights", error))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

fn judge(right: &Right<'_>, need: Need, allowed: bool) -> Check {
    let description = format!("you may {}", right.name());
    match (allowed, need) {
        (true, _) => Check::good(description),
        (false, Need::ToLook) => Check::warning(description, right.missing()),
        (false, Need::Asked) => Check::finding(description, right.missing()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;

    #[test]
    fn what_the_chart_makes_by_default_takes_rights_that_are_asked_for() {
        let golden = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../charts/tests/golden/default.yaml"
        );
        let text = std::fs::read_to_string(golden).unwrap();
        // The list needs no objects of `helm test`.
        let documents = text.split("\n---\n");
        let made = documents.filter(|document| !document.contains("helm.sh/hook: test"));
        let kinds = made.filter_map(|document| {
            let mut lines = document.lines();
            lines.find_map(|line| line.strip_prefix("kind: "))
        });
        let kinds: std::collections::BTreeSet<_> = kinds.collect();
        assert!(kinds.len() > 8, "{kinds:?}");
        for kind in kinds {
            let resource = match kind.to_lowercase() {
                policy if policy.ends_with('y') => policy.replace("policy", "policies"),
                other => format!("{other}s"),
            };
            assert!(MADE.iter().any(|(_, made)| *made == resource), "{resource}");
        }
    }

    #[test]
    fn a_server_that_is_too_old_is_a_finding() {
        assert_eq!(server_version("v1.32.0").verdict, Verdict::Good);
        assert_eq!(server_version("v1.34.1+k3s1").verdict, Verdict::Good);
        for old in ["v1.31.9", "unknown"] {
            let Verdict::Finding(finding) = server_version(old).verdict else {
                panic!("{old}");
            };
            assert_eq!(finding.code, "MT0381");
        }
    }
}

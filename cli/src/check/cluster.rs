//! Category cluster: the API server, its version, and the rights of whoever asks.

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

/// Asks for the version, which takes no right; the finding where there is no answer.
pub(super) async fn reach(cluster: &Cluster) -> Result<Info, Check> {
    cluster.client.apiserver_version().await.map_err(|error| {
        let context = cluster.context.as_ref();
        let flag = context.map_or_else(String::new, |name| format!(" --context {name}"));
        let fix = format!("kubectl version{flag}");
        let finding = Finding::new(Code::ApiServerUnreachable, in_words(&error), fix);
        Check::finding("the API server answers", finding)
    })
}

pub(super) async fn look(scope: &Scope<'_>, info: &Info) -> Result<Vec<Check>, Failure> {
    let mut checks = vec![
        Check::good("the API server answers"),
        server_version(&info.git_version),
    ];
    let rights = rights(scope.args, &scope.cluster.namespace);
    let asked = rights.iter().map(|right| allowed(scope.cluster, right));
    let allowed = try_join_all(asked).await?;
    checks.extend(
        rights
            .iter()
            .zip(allowed)
            .map(|(right, allowed)| judge(right, allowed)),
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

/// What the other categories read, or an installation makes.
fn rights<'a>(args: &CheckArgs, namespace: &'a str) -> Vec<Right<'a>> {
    let whole = |verb, group, resource| Right {
        verb,
        group,
        resource,
        namespace: None,
    };
    let here = |verb, group, resource| Right {
        namespace: Some(namespace),
        ..whole(verb, group, resource)
    };
    let mut rights = vec![whole("list", "", "nodes"), whole("get", "", "namespaces")];
    if args.pre {
        rights.extend([
            whole(
                "create",
                "apiextensions.k8s.io",
                "customresourcedefinitions",
            ),
            whole("create", "rbac.authorization.k8s.io", "clusterroles"),
            whole("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
            whole("create", "", "namespaces"),
            whole("create", "", "serviceaccounts"),
            whole("create", "apps", "deployments"),
        ]);
    } else {
        rights.push(whole(
            "get",
            "apiextensions.k8s.io",
            "customresourcedefinitions",
        ));
        let (group, resource) = ("muxtunnel.dev", "muxtunnels");
        rights.push(match args.all_namespaces {
            true => whole("list", group, resource),
            false => here("list", group, resource),
        });
    }
    if args.probe {
        rights.extend(["create", "get", "delete"].map(|verb| here(verb, "", "pods")));
    }
    rights
}

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
        .map_err(|error| failed("cannot ask for your rights", error))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

fn judge(right: &Right<'_>, allowed: bool) -> Check {
    let description = format!("you may {}", right.name());
    match allowed {
        true => Check::good(description),
        false => Check::finding(description, right.missing()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;

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

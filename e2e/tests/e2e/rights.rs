//! The operator's rights in the cluster, asked of the API server.

use anyhow::{Result, ensure};
use muxtunnel_e2e::tools;

/// What the operator can do, as `kubectl auth can-i` says it.
async fn operator_can(verb: &str, resource: &str) -> Result<bool> {
    let account = "--as=system:serviceaccount:muxtunnel-system:muxtunnel";
    let asked = [
        "auth",
        "can-i",
        verb,
        resource,
        account,
        "--namespace=default",
    ];
    // It exits with 1 for "no".
    let answer = tools::run("kubectl", &asked).await;
    Ok(answer.is_ok_and(|text| text.trim() == "yes"))
}

/// It may patch Secrets, whose answer has all of one (docs/installation.md, "What the operator may do"); what else there
/// is on Secrets it has not.
#[tokio::test]
async fn the_operator_cannot_look_for_secrets_run_in_pods_or_change_rights() -> Result<()> {
    ensure!(
        operator_can("create", "deployments.apps").await?,
        "the operator has no rights at all"
    );
    for (verb, resource) in [
        ("get", "secrets"),
        ("list", "secrets"),
        ("watch", "secrets"),
        ("update", "secrets"),
        ("delete", "secrets"),
        ("deletecollection", "secrets"),
        ("create", "pods/exec"),
        ("create", "pods"),
        ("create", "roles"),
        ("create", "rolebindings"),
        ("patch", "clusterroles"),
        ("get", "nodes"),
        ("impersonate", "users"),
        ("patch", "muxbenchmarks"),
        ("delete", "muxbenchmarks"),
    ] {
        ensure!(
            !operator_can(verb, resource).await?,
            "the operator can {verb} {resource}"
        );
    }
    Ok(())
}

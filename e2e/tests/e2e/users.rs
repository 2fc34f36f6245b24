//! A namespace whose pods get a user of the namespace's range, as on OpenShift. Admission policies of the
//! test give each pod this user, and refuse pods with another user.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use muxtunnel_crds::condition;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{
    PodSecurity, TestNamespace, benchmark, tools, tunnel, turn, wait, with_temp_ns,
};
use serde_json::Value;

const USER: i64 = 1_000_650_000;

/// The policies. The test's own pods have the label `e2e`, and keep their user. The group of the files of
/// volumes stays root, which is stricter than OpenShift.
fn policies(ns: &str, uid: &str) -> String {
    let policy = |kind: &str, spec: &str| {
        format!(
            "
apiVersion: admissionregistration.k8s.io/v1
kind: {kind}Policy
metadata: {{name: {ns}, ownerReferences: [{{apiVersion: v1, kind: Namespace, name: {ns}, uid: {uid}}}]}}
spec:
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {ns}}}}}
    resourceRules: [{{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}}]
  matchConditions:
  - {{name: not-of-the-test, expression: \"!('e2e' in object.metadata.?labels.orValue({{}}))\"}}
{spec}
---
apiVersion: admissionregistration.k8s.io/v1
kind: {kind}PolicyBinding
metadata: {{name: {ns}, ownerReferences: [{{apiVersion: v1, kind: Namespace, name: {ns}, uid: {uid}}}]}}
"
        )
    };
    let mutating = policy(
        "MutatingAdmission",
        &format!(
            "  - {{name: without-a-user, expression: '!has(object.spec.securityContext.runAsUser)'}}
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: 'Object{{spec: Object.spec{{securityContext: Object.spec.securityContext{{runAsUser: {USER}}}}}}}'"
        ),
    );
    let validating = policy(
        "ValidatingAdmission",
        &format!(
            "  validations:
  - expression: >-
      object.spec.securityContext.runAsUser == {USER} && !has(object.spec.securityContext.fsGroup) &&
      (object.spec.containers + object.spec.?initContainers.orValue([])).all(c,
      !has(c.securityContext.runAsUser) || c.securityContext.runAsUser == {USER})
    message: the user is not in the range of the namespace"
        ),
    );
    format!(
        "{mutating}spec: {{policyName: {ns}}}\n---{validating}spec: {{policyName: {ns}, validationActions: [Deny]}}\n"
    )
}

/// Creates the policies, and waits until the API server applies them.
async fn give_a_user(ns: &TestNamespace) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(ns.client.clone());
    let uid = namespaces.get(&ns.name).await?.uid().context("a UID")?;
    let folder = tools::checkout().join("target");
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(format!("e2e-users-{}.yaml", ns.name));
    std::fs::write(&file, policies(&ns.name, &uid))?;
    let file = file.display().to_string();
    ns.kubectl(&["create", "--filename", &file]).await?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let admitted = async |pod: &Value| {
        let pod = serde_json::from_value(pod.clone())?;
        anyhow::Ok(ns.api::<Pod>().create(&dry_run, &pod).await)
    };
    let mut other = pods::pod("probe", &["true"]);
    other["metadata"]["labels"] = Value::Null;
    let mut without = other.clone();
    without["spec"]["securityContext"]["runAsUser"] = Value::Null;
    wait::until("the policies apply", Duration::from_secs(60), async || {
        let (refused, given) = (admitted(&other).await?, admitted(&without).await?);
        let is_refused =
            matches!(refused, Err(kube::Error::Api(status)) if status.message.contains("range"));
        let is_given = given.is_ok_and(|pod| user(&pod) == Some(USER));
        Ok((is_refused && is_given).then_some(()))
    })
    .await
}

fn user(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.security_context.as_ref()?.run_as_user
}

/// The pods of the namespace with the operator's label.
async fn assert_users(ns: &TestNamespace, at_least: usize) -> Result<()> {
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=muxtunnel-operator");
    let pods = ns.api::<Pod>().list(&ours).await?.items;
    ensure!(pods.len() >= at_least, "{} pods", pods.len());
    for pod in pods {
        ensure!(
            user(&pod) == Some(USER),
            "{}: {:?}",
            pod.name_any(),
            user(&pod)
        );
    }
    Ok(())
}

/// The gateways read their keys and certificates, whatever their user.
#[tokio::test]
async fn gateways_and_benchmarks_run_as_a_user_of_the_namespace() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("users", PodSecurity::Restricted, async |ns| {
        give_a_user(ns).await?;
        pods::serve(ns, "web", Serve::Hash).await?;
        let spec = tunnel::to_web("PublicKeys", "", "tuning: {profile: WAN}");
        tunnel::up(ns, &spec).await?;
        let send = ["send-hashed.sh", "t-entry", "8080", "1048576"];
        pods::run(ns, "client", &send, Duration::from_secs(180)).await?;
        assert_users(ns, 2).await?;

        let yaml = "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxBenchmark
metadata: {name: small}
spec: {connections: [1], delayMilliseconds: [0], profiles: [None], durationSeconds: 2, warmUpSeconds: 1, rounds: 1}
";
        let name = benchmark::create(ns, yaml).await?;
        let outcome = benchmark::end(ns, &name, Duration::from_secs(420)).await?;
        ensure!(
            benchmark::is_true(&outcome.benchmark, condition::COMPLETE),
            "{}",
            outcome.log
        );
        assert_users(ns, 3).await
    })
    .await
}

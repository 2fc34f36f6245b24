//! Tests of the operator's rights: the rights that the API server reports, writes with the
//! operator's account, and an operator with rights in one namespace only.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use muxtunnel_crds::MuxTunnel;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{
    Cluster, PodSecurity, TestNamespace, tunnel, turn, with_temp_ns, with_temp_ns_in,
};
use serde_json::{Value, json};

/// Whether the operator has a right in a namespace, according to `kubectl auth can-i`.
async fn operator_can(
    cluster: Cluster,
    namespace: &str,
    verb: &str,
    resource: &str,
) -> Result<bool> {
    let account = "--as=system:serviceaccount:muxtunnel-system:muxtunnel";
    let namespace = format!("--namespace={namespace}");
    let question = format!("kubectl auth can-i {verb} {resource} {account} {namespace} || true");
    // The command exits with 1 for "no", so only the printed word counts as an answer.
    let answer = cluster.run("bash", &["-c", &question]).await?;
    match answer.trim() {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => bail!("{question} prints neither yes nor no: {answer:?}"),
    }
}

/// The operator may create Secrets, and has no other right on Secrets (docs/installation.md, "Rights
/// of the operator").
#[tokio::test]
async fn the_operator_cannot_look_for_secrets_run_in_pods_or_change_rights() -> Result<()> {
    let _turn = turn::beside().await?;
    ensure!(
        operator_can(Cluster::First, "default", "create", "deployments.apps").await?,
        "the operator has no rights at all"
    );
    for (verb, resource) in [
        ("get", "secrets"),
        ("list", "secrets"),
        ("watch", "secrets"),
        ("patch", "secrets"),
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
        ("patch", "muxexits"),
        ("delete", "muxexits"),
        ("patch", "muxbenchmarks"),
        ("delete", "muxbenchmarks"),
    ] {
        ensure!(
            !operator_can(Cluster::First, "default", verb, resource).await?,
            "the operator can {verb} {resource}"
        );
    }
    Ok(())
}

/// The account of the operator that `e2e/install` installs, and the groups that the API server adds.
const ACCOUNT: &str = "system:serviceaccount:muxtunnel-system:muxtunnel";
const GROUPS: [&str; 3] = [
    "system:serviceaccounts",
    "system:serviceaccounts:muxtunnel-system",
    "system:authenticated",
];

/// The API server's message that refuses a write of the operator's account. `None` if the server
/// accepts the write.
fn refusal<T>(answer: kube::Result<T>) -> Result<Option<String>> {
    match answer {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

/// Writes the Deployment in a dry run with the operator's account.
async fn try_write(
    operator: &Api<Deployment>,
    deployment: &Deployment,
    pointer: &str,
    value: Value,
) -> Result<Option<String>> {
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let (parent, field) = pointer.rsplit_once('/').context("no pointer")?;
    let mut changed = serde_json::to_value(deployment)?;
    for field in ["managedFields", "resourceVersion"] {
        changed["metadata"][field] = Value::Null;
    }
    let parent = changed.pointer_mut(parent).context("no such field")?;
    parent[field] = value;
    let how = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    refusal(operator.patch(name, &how, &Patch::Merge(&changed)).await)
}

/// The chart's admission policies refuse writes that RBAC cannot refuse. Without them the API
/// server accepts each of these writes.
#[tokio::test]
async fn in_the_operators_name_nothing_is_written_but_what_the_operator_makes() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("bounds", PodSecurity::Restricted, async |ns| {
        pods::serve(ns, "web", Serve::Echo).await?;
        tunnel::up(ns, TUNNEL).await?;
        let operator = Cluster::First.client_as(ACCOUNT, &GROUPS).await?;
        secrets_are_bounded(ns, &operator).await?;
        workloads_are_bounded(ns, &operator).await?;
        others_are_bounded(ns, &operator).await
    })
    .await
}

/// The operator can create Secrets like its own, and no others. In a dry run, which stores nothing, a
/// Secret can have any name, because the operator tries whether a Secret of a user exists.
async fn secrets_are_bounded(ns: &TestNamespace, operator: &Client) -> Result<()> {
    let stored = ns.api::<Secret>().list(&ListParams::default()).await?.items;
    let pair = stored
        .into_iter()
        .find(|secret| secret.name_any().starts_with("t-pair-"))
        .context("the tunnel has no Secret with keys")?;
    let secrets: Api<Secret> = Api::namespaced(operator.clone(), &ns.name);
    let create = async |pointer: &str, value: Value| {
        let how = PostParams {
            dry_run: pointer == "/immutable" && value == json!(true),
            ..PostParams::default()
        };
        let mut secret = json!({
            "metadata": {
                "name": format!("{}-again", pair.name_any()),
                "labels": pair.metadata.labels,
                "ownerReferences": pair.metadata.owner_references,
            },
            "type": pair.type_,
            "immutable": true,
            "data": pair.data,
        });
        *secret.pointer_mut(pointer).context("no such field")? = value;
        let secret: Secret = serde_json::from_value(secret)?;
        refusal(secrets.create(&how, &secret).await)
    };
    let own = create("/immutable", json!(true)).await?;
    ensure!(
        own.is_none(),
        "the operator cannot create its own Secret: {own:?}"
    );
    for (pointer, value) in [
        ("/metadata/labels", json!({})),
        ("/metadata/ownerReferences", json!([])),
        ("/metadata/name", json!("foreign")),
        ("/type", json!("Opaque")),
        ("/immutable", json!(false)),
    ] {
        let refused = create(pointer, value.clone()).await?;
        let refused =
            refused.with_context(|| format!("the API server accepts {value} at {pointer}"))?;
        ensure!(
            refused.contains("ValidatingAdmissionPolicy"),
            "{pointer}: {refused}"
        );
    }
    Ok(())
}

async fn workloads_are_bounded(ns: &TestNamespace, operator: &Client) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(operator.clone(), &ns.name);
    let own = ns.api::<Deployment>().get("t-tunnel-exit").await?;
    let spec = "/spec/template/spec";
    let same = try_write(&deployments, &own, "/spec/replicas", json!(1)).await?;
    ensure!(
        same.is_none(),
        "the operator cannot write its own Deployment: {same:?}"
    );
    let container = |field: &str, value: Value| {
        let mut container = serde_json::to_value(&own).unwrap_or_default()["spec"]["template"]
            ["spec"]["containers"][0]
            .clone();
        container[field] = value;
        (format!("{spec}/containers"), json!([container]))
    };
    let exec = json!({"exec": {"command": ["/bin/sh", "-c", "id"]}});
    // The benchmark's image has a shell, and its agent starts the program of `--iperf`.
    let agent = |args: Value| {
        let mut container = serde_json::to_value(&own).unwrap_or_default()["spec"]["template"]
            ["spec"]["containers"][0]
            .clone();
        container["name"] = json!("agent");
        container["image"] = json!(pods::IMAGE);
        container["command"] = Value::Null;
        container["volumeMounts"] = Value::Null;
        container["args"] = args;
        (format!("{spec}/containers"), json!([container]))
    };
    let (pointer, value) = agent(json!(["agent", "--token-file=/etc/muxbench/token"]));
    let measures = try_write(&deployments, &own, &pointer, value).await?;
    ensure!(
        measures.is_none(),
        "the operator cannot write an agent: {measures:?}"
    );
    // Adds the new volume to the existing volumes, because the container mounts the existing
    // volumes.
    let mut volumes = serde_json::to_value(&own)?["spec"]["template"]["spec"]["volumes"].clone();
    let list = volumes.as_array_mut().context("no volumes")?;
    list.push(json!({"name": "host", "hostPath": {"path": "/"}}));
    for (pointer, value) in [
        container("image", json!("example.com/other:1")),
        container("securityContext", json!({"privileged": true})),
        container("command", json!(["/bin/sh"])),
        container("command", Value::Null),
        container("args", json!(["entry", "--connect-command", "/bin/sh"])),
        container(
            "args",
            json!([
                "run",
                "--config",
                "/etc/muxgate/config.yaml",
                "--config=/tmp/a"
            ]),
        ),
        container("livenessProbe", exec.clone()),
        container("startupProbe", exec.clone()),
        container("lifecycle", json!({"postStart": exec})),
        container("lifecycle", json!({"preStop": exec})),
        container(
            "volumeMounts",
            json!([{"name": "config", "mountPath": "/usr/local/bin"}]),
        ),
        agent(json!([
            "agent",
            "--token-file=/etc/muxbench/token",
            "--iperf=/bin/sh"
        ])),
        (format!("{spec}/hostPID"), json!(true)),
        (format!("{spec}/automountServiceAccountToken"), json!(true)),
        (format!("{spec}/serviceAccountName"), json!("default")),
        (format!("{spec}/volumes"), json!(volumes)),
        ("/metadata/ownerReferences".to_owned(), json!([])),
    ] {
        let refused = try_write(&deployments, &own, &pointer, value.clone()).await?;
        let refused =
            refused.with_context(|| format!("the API server accepts {value} at {pointer}"))?;
        ensure!(
            refused.contains("ValidatingAdmissionPolicy"),
            "{pointer}: {refused}"
        );
    }
    Ok(())
}

/// Checks that the operator cannot change or delete objects of other owners, and cannot annotate
/// service accounts.
async fn others_are_bounded(ns: &TestNamespace, operator: &Client) -> Result<()> {
    let is_bounded = |refused: Option<String>, what: &str| {
        let refused = refused.with_context(|| {
            format!("the API server accepts this write of the operator: {what}")
        })?;
        ensure!(
            refused.contains("ValidatingAdmissionPolicy"),
            "{what}: {refused}"
        );
        Ok(())
    };
    let foreign = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "foreign"}});
    let foreign: ConfigMap = serde_json::from_value(foreign)?;
    ns.api::<ConfigMap>()
        .create(&PostParams::default(), &foreign)
        .await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(operator.clone(), &ns.name);
    let how = PatchParams::default();
    let patch = Patch::Merge(json!({"data": {"a": "b"}}));
    let patched = config_maps.patch("foreign", &how, &patch).await;
    is_bounded(refusal(patched)?, "a change of a foreign ConfigMap")?;
    let deleted = config_maps
        .delete("foreign", &DeleteParams::default())
        .await;
    is_bounded(refusal(deleted)?, "the deletion of a foreign ConfigMap")?;
    let accounts: Api<ServiceAccount> = Api::namespaced(operator.clone(), &ns.name);
    let role = json!({"metadata": {"annotations": {"eks.amazonaws.com/role-arn": "any"}}});
    let annotated = accounts
        .patch("t-tunnel-exit", &how, &Patch::Merge(role))
        .await;
    is_bounded(refusal(annotated)?, "an annotation of an account")
}

/// A tunnel whose keys the operator creates.
const TUNNEL: &str = "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxTunnel
metadata: {name: t}
spec:
  forwards:
  - name: web
    port: 8080
    targets: [{serviceRef: {name: web}, port: 80}]
";

#[tokio::test]
async fn an_operator_of_one_namespace_serves_that_and_no_other() -> Result<()> {
    let _turn = turn::alone().await?;
    with_temp_ns_in(
        Cluster::Second,
        "served",
        PodSecurity::Restricted,
        async |served| {
            with_temp_ns_in(
                Cluster::Second,
                "other",
                PodSecurity::Restricted,
                async |other| {
                    let one = format!("watchNamespaces=[{:?}]", served.name);
                    let alone = async {
                        Cluster::Second.set_value(&one).await?;
                        serves_alone(served, other).await
                    };
                    let alone = alone.await;
                    Cluster::Second.set_value("watchNamespaces=[]").await?;
                    alone?;
                    // The operator must also reconcile objects that were created before it got the
                    // rights.
                    tunnel::ready(other, "t").await?;
                    Ok(())
                },
            )
            .await
        },
    )
    .await
}

async fn serves_alone(served: &TestNamespace, other: &TestNamespace) -> Result<()> {
    pods::serve(other, "web", Serve::Echo).await?;
    tunnel::apply(other, TUNNEL).await?;
    pods::serve(served, "web", Serve::Echo).await?;
    tunnel::up(served, TUNNEL).await?;
    for (namespace, expected) in [(&served.name, true), (&other.name, false)] {
        for (verb, resource) in [
            ("create", "deployments.apps"),
            ("create", "secrets"),
            ("watch", "services"),
            ("watch", "muxtunnels.muxtunnel.dev"),
            ("watch", "muxexits.muxtunnel.dev"),
        ] {
            let can = operator_can(Cluster::Second, namespace, verb, resource).await?;
            ensure!(can == expected, "{verb} {resource} in {namespace}: {can}");
        }
    }
    let unserved = other.api::<MuxTunnel>().get("t").await?;
    ensure!(
        unserved.status.is_none(),
        "a tunnel that is not served has a status: {:?}",
        unserved.status
    );
    let deployments = other.api::<Deployment>();
    let entries = deployments
        .list(&ListParams::default().labels("muxtunnel.dev/name=t"))
        .await?;
    ensure!(
        entries.items.is_empty(),
        "a tunnel that is not served has gateways"
    );
    Ok(())
}

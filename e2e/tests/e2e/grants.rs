//! A forward reaches a Service of another namespace only while that namespace permits it.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::DeleteParams;
use muxtunnel_crds::{MuxGrant, MuxTunnel, condition};
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, TestNamespace, tools, tunnel, turn, wait, with_temp_ns};
use serde_json::{Value, json};

/// Maximum number of seconds until a change of forwards reaches running gateways: the kubelet's
/// sync period plus the time to live of its cache.
const TAKEN_OVER: &str = "150";

/// A MuxTunnel `t` whose port 8080 forwards to the Service `name` of `namespace`.
fn tunnel_to(namespace: &str, name: &str) -> String {
    crate::tunnel_to_web("").replace(
        "serviceRef: {name: web}",
        &format!("serviceRef: {{name: {name}, namespace: {namespace}}}"),
    )
}

fn grant(kind: (&str, &str), from: &TestNamespace) -> Value {
    json!({
        "apiVersion": kind.0, "kind": kind.1,
        "metadata": {"name": "office"},
        "spec": {
            "from": [{"group": "muxtunnel.dev", "kind": "MuxTunnel", "namespace": from.name}],
            "to": [{"group": "", "kind": "Service", "name": "web"}],
        },
    })
}

const OURS: (&str, &str) = ("muxtunnel.dev/v1alpha1", "MuxGrant");

/// Applies an object of any kind by kubectl. `namespace`: `None` for cluster-wide objects.
async fn apply(namespace: Option<&str>, object: &Value) -> Result<()> {
    let folder = tools::checkout().join("target");
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(format!(
        "e2e-{}-{}.json",
        namespace.unwrap_or_default(),
        object["metadata"]["name"].as_str().unwrap_or_default()
    ));
    std::fs::write(&file, object.to_string())?;
    let file = file.display().to_string();
    let mut arguments = vec!["apply", "--server-side", "--filename", &file];
    arguments.extend(
        namespace
            .iter()
            .flat_map(|namespace| ["--namespace", namespace]),
    );
    tools::run("kubectl", &arguments).await?;
    Ok(())
}

/// Waits until the tunnel reports that the other namespace does not permit the target. Returns the
/// message.
async fn refused(ns: &TestNamespace) -> Result<String> {
    let says_so = |tunnel: &MuxTunnel| {
        tunnel::condition(tunnel, condition::ACCEPTED).is_some_and(|ready| {
            // The condition describes the current spec.
            ready.reason == "TargetNotPermitted"
                && ready.observed_generation == tunnel.metadata.generation
        })
    };
    let what = "the tunnel is not permitted";
    let tunnel = wait::for_object(
        &ns.api::<MuxTunnel>(),
        "t",
        what,
        Duration::from_secs(180),
        says_so,
    )
    .await?;
    let ready = tunnel::condition(&tunnel, condition::ACCEPTED);
    Ok(ready.map(|ready| ready.message.clone()).unwrap_or_default())
}

#[tokio::test]
async fn a_grant_permits_streams_and_its_removal_cuts_them() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("office", PodSecurity::Restricted, async |office| {
        with_temp_ns("shop", PodSecurity::Restricted, async |shop| {
            pods::serve(shop, "web", Serve::Echo).await?;
            tunnel::apply(office, &tunnel_to(&shop.name, "web")).await?;
            refused(office).await?;

            apply(Some(&shop.name), &grant(OURS, office)).await?;
            tunnel::ready(office, "t").await?;
            let held = ["revoked.sh", "t-entry", "8080", TAKEN_OVER];
            pods::start(office, "held", &held).await?;
            pods::printed(
                office,
                "held",
                "held stream is open",
                Duration::from_secs(180),
            )
            .await?;

            let grants = shop.api::<MuxGrant>();
            grants.delete("office", &DeleteParams::default()).await?;
            let log = pods::end(office, "held", Duration::from_secs(200)).await?;
            ensure!(
                log.contains("held stream is cut") && log.contains("takes no new stream"),
                "{log}"
            );
            refused(office).await?;
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn without_a_grant_the_same_is_said_of_a_service_that_there_is_and_of_one_that_there_is_not()
-> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("office", PodSecurity::Restricted, async |office| {
        with_temp_ns("shop", PodSecurity::Restricted, async |shop| {
            pods::serve(shop, "web", Serve::Echo).await?;
            // The messages may differ only in the Service's name. The test replaces the name in
            // both messages, and the forward is also named `web`.
            let said_of = async |name: &str| {
                let said = refused(office).await?;
                let (one, any) = (format!("Service {name}:"), "Service NAME:");
                ensure!(said.contains(&one), "{said}");
                Ok(said.replace(&one, any))
            };
            let mut said = Vec::new();
            for name in ["web", "wet"] {
                tunnel::apply(office, &tunnel_to(&shop.name, name)).await?;
                said.push(said_of(name).await?);
            }
            ensure!(said[0] == said[1], "{said:?}");
            // The DNS name of the Service needs the same permission.
            let by_name = crate::tunnel_to_web("").replace(
                "serviceRef: {name: web}",
                &format!("host: web.{}.svc.cluster.local", shop.name),
            );
            tunnel::apply(office, &by_name).await?;
            ensure!(said_of("web").await? == said[0]);
            Ok(())
        })
        .await
    })
    .await
}

/// The part of the Gateway API that this test needs: the definition of ReferenceGrant.
fn definition() -> Value {
    let entry = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let list = json!({"type": "array", "items": entry});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "referencegrants.gateway.networking.k8s.io",
            // The API server requires this annotation for API groups below k8s.io.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": "gateway.networking.k8s.io", "scope": "Namespaced",
            "names": {"kind": "ReferenceGrant", "plural": "referencegrants", "singular": "referencegrant"},
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {
                    "type": "object", "properties": {"from": list, "to": list},
                }}}},
            }],
        },
    })
}

#[tokio::test]
async fn a_reference_grant_counts_once_the_gateway_api_is_installed_and_not_beyond_it() -> Result<()>
{
    let _turn = turn::beside().await?;
    with_temp_ns("office", PodSecurity::Restricted, async |office| {
        with_temp_ns("shop", PodSecurity::Restricted, async |shop| {
            pods::serve(shop, "web", Serve::Echo).await?;
            tunnel::apply(office, &tunnel_to(&shop.name, "web")).await?;
            refused(office).await?;
            apply(None, &definition()).await?;
            let outcome = with_reference_grants(office, shop).await;
            let remove = ["delete", "crd", "referencegrants.gateway.networking.k8s.io"];
            tools::run("kubectl", &remove).await?;
            outcome?;
            refused(office).await?;
            Ok(())
        })
        .await
    })
    .await
}

async fn with_reference_grants(office: &TestNamespace, shop: &TestNamespace) -> Result<()> {
    let crd = "crd/referencegrants.gateway.networking.k8s.io";
    tools::run(
        "kubectl",
        &["wait", "--for=condition=Established", crd, "--timeout=30s"],
    )
    .await?;
    let theirs = ("gateway.networking.k8s.io/v1beta1", "ReferenceGrant");
    apply(Some(&shop.name), &grant(theirs, office)).await?;
    // The operator checks once a minute whether ReferenceGrants exist. Then the gateways receive
    // the forward.
    let tunnels = office.api::<MuxTunnel>();
    let is_ready = |tunnel: &MuxTunnel| tunnel::is_true(tunnel, condition::READY);
    wait::for_object(
        &tunnels,
        "t",
        "the ReferenceGrant takes effect",
        Duration::from_secs(240),
        is_ready,
    )
    .await?;
    let probe = ["round-trips.sh", "t-entry", "8080", "3"];
    pods::run(office, "client", &probe, Duration::from_secs(180)).await?;
    Ok(())
}

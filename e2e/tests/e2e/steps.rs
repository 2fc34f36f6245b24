//! A new image reaches the objects of a class in steps, while all of them carry load.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use muxtunnel_crds::{MuxClass, condition};
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, TestNamespace, tunnel, turn, with_temp_ns};
use serde_json::{Value, json};
use tokio::time::sleep;

/// Tunnels of the test, each with its own load.
const TUNNELS: usize = 20;
/// Objects that may roll at the same time.
const PLACES: usize = 3;
/// Short connections of each load per second.
const OPENS_PER_SECOND: u32 = 2;
/// Time-out for the roll-out of all tunnels. A step takes as long as the pods of a tunnel need to
/// start.
const ROLLED_WITHIN: Duration = Duration::from_secs(900);
/// Time-out for the end of a load.
const END: Duration = Duration::from_secs(60);

fn name(number: usize) -> String {
    format!("t{number}")
}

/// The tunnel of this number.
fn yaml(number: usize, class: &str) -> String {
    let class = format!("className: {class}");
    let yaml = tunnel::to_web("PublicKeys", "", &class);
    yaml.replace("{name: t}", &format!("{{name: {}}}", name(number)))
}

/// The class of the namespace, with this image of gateways.
fn class(ns: &TestNamespace, gateway: &str) -> Value {
    json!({
        "apiVersion": "muxtunnel.dev/v1alpha1",
        "kind": "MuxClass",
        "metadata": {"name": ns.name},
        "spec": {
            "controllerName": "muxtunnel.dev/operator",
            "namespaces": {
                "from": "Selector",
                "selector": {"matchLabels": {"kubernetes.io/metadata.name": ns.name}},
            },
            "images": {"gateway": gateway},
            "rollout": {"maxConcurrent": PLACES},
        },
    })
}

async fn apply(ns: &TestNamespace, gateway: &str) -> Result<()> {
    let classes: Api<MuxClass> = Api::all(ns.client.clone());
    let how = PatchParams::apply("muxtunnel-e2e").force();
    let class = Patch::Apply(class(ns, gateway));
    classes.patch(&ns.name, &how, &class).await?;
    Ok(())
}

/// The tunnels with a Deployment whose pods do not all have the newest template, or are not ready.
fn rolling(deployments: &[Deployment]) -> BTreeSet<String> {
    let rolls = |deployment: &&Deployment| {
        let status = deployment.status.clone().unwrap_or_default();
        status.observed_generation != deployment.metadata.generation
            || status.updated_replicas != status.replicas
            || status.ready_replicas != status.replicas
    };
    let owner = |deployment: &Deployment| deployment.labels().get("muxtunnel.dev/name").cloned();
    deployments.iter().filter(rolls).filter_map(owner).collect()
}

/// The tunnels whose Deployments all have this image.
fn with_image(deployments: &[Deployment], image: &str) -> usize {
    let has = |deployment: &&Deployment| {
        let spec = deployment.spec.as_ref();
        let pod = spec.and_then(|spec| spec.template.spec.as_ref());
        let mut containers = pod.into_iter().flat_map(|pod| &pod.containers);
        containers.any(|container| container.image.as_deref() == Some(image))
    };
    deployments.iter().filter(has).count() / 2
}

#[tokio::test]
async fn twenty_tunnels_under_load_take_a_new_image_three_at_a_time() -> Result<()> {
    let _turn = turn::both().await?;
    with_temp_ns("steps", PodSecurity::Restricted, async |ns| {
        let outcome = upgraded(ns).await;
        let classes: Api<MuxClass> = Api::all(ns.client.clone());
        classes.delete(&ns.name, &DeleteParams::default()).await?;
        outcome
    })
    .await
}

async fn upgraded(ns: &TestNamespace) -> Result<()> {
    let (tag, image) = (
        pods::GATEWAY_IMAGE,
        format!("{}-steps", pods::GATEWAY_IMAGE),
    );
    let retag =
        format!("ctr --namespace k8s.io images tag --force docker.io/{tag} docker.io/{image}");
    ns.cluster.node().await?.run(&retag).await?;
    apply(ns, tag).await?;
    pods::serve(ns, "web", Serve::Load).await?;
    for number in 0..TUNNELS {
        tunnel::apply(ns, &yaml(number, &ns.name)).await?;
    }
    for number in 0..TUNNELS {
        tunnel::ready(ns, &name(number)).await?;
    }
    // Each load runs until the end of the test.
    let loads = (0..TUNNELS).map(|number| async move {
        let to = format!("{}-entry:8080", name(number));
        let load = format!("load-{number}");
        pods::load(ns, &load, &to, OPENS_PER_SECOND, 0, 3600).await
    });
    try_join_all(loads).await?;

    apply(ns, &image).await?;
    let most = rolled_out(ns, &image).await?;
    // With fewer tunnels at a time, the test would show nothing about the bound.
    ensure!(most == PLACES, "at most {most} tunnels rolled at a time");

    for number in 0..TUNNELS {
        let report = pods::end_load(ns, &format!("load-{number}"), END).await?;
        ensure!(
            report.opens > 0 && report.failed.is_empty(),
            "t{number}: {report:?}"
        );
    }
    let classes: Api<MuxClass> = Api::all(ns.client.clone());
    let status = classes.get(&ns.name).await?.status.context("a status")?;
    let objects = status.objects.context("the number of objects")?;
    let all = i32::try_from(TUNNELS)?;
    ensure!(
        (objects.total, objects.current) == (all, all),
        "{objects:?}"
    );
    Ok(())
}

/// Waits until all tunnels run the image, and the class reports it. Returns the greatest number of
/// tunnels that rolled at a time.
async fn rolled_out(ns: &TestNamespace, image: &str) -> Result<usize> {
    let (deployments, classes) = (
        ns.api::<Deployment>(),
        Api::<MuxClass>::all(ns.client.clone()),
    );
    let (begin, mut most) = (Instant::now(), 0);
    loop {
        let all = deployments.list(&ListParams::default()).await?.items;
        let rolling = rolling(&all);
        ensure!(
            rolling.len() <= PLACES,
            "these tunnels roll at a time: {rolling:?}"
        );
        most = most.max(rolling.len());
        let done = with_image(&all, image);
        let class = classes.get(&ns.name).await?;
        let conditions = class.status.map(|status| status.conditions);
        let is_told = conditions.iter().flatten().any(|one| {
            one.type_ == condition::ROLLED_OUT
                && one.status == "True"
                && one.observed_generation == class.metadata.generation
        });
        if done == TUNNELS && rolling.is_empty() && is_told {
            return Ok(most);
        }
        ensure!(
            begin.elapsed() < ROLLED_WITHIN,
            "{done} of {TUNNELS} tunnels run {image}; RolledOut is {is_told}"
        );
        sleep(Duration::from_millis(200)).await;
    }
}

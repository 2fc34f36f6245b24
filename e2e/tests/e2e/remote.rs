//! The commands that join two sites: `muxtunnel link` between two clusters, and `muxtunnel connect`
//! from this host, which is outside of the cluster.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::api::DeleteParams;
use muxtunnel_crds::{MuxExit, MuxPeer};
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{
    Cluster, PodSecurity, TestNamespace, tools, tunnel, turn, wait, with_temp_ns,
    with_temp_ns_in_both,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

const WITHIN: Duration = Duration::from_secs(240);
/// The lifetime of a peer whose process is killed.
const LIFE: &str = "60s";
const GONE_WITHIN: Duration = Duration::from_secs(180);

/// The address of the node of a cluster, and a node port that no Service has.
async fn free_node_port(ns: &TestNamespace) -> Result<(String, u16)> {
    let create = ["create", "service", "nodeport", "free", "--tcp=80"];
    ns.kubectl(&create).await?;
    let services = ns.api::<Service>();
    let service = services.get("free").await?;
    let port = service
        .spec
        .and_then(|spec| spec.ports?.first()?.node_port)
        .context("a node port")?;
    services.delete("free", &DeleteParams::default()).await?;
    Ok((ns.cluster.node().await?.address, u16::try_from(port)?))
}

/// The context of a cluster's kubeconfig.
async fn context(cluster: Cluster) -> Result<String> {
    let current = ["config", "current-context"];
    Ok(cluster.run("kubectl", &current).await?.trim().to_owned())
}

#[tokio::test]
async fn one_command_links_a_service_of_one_cluster_to_another() -> Result<()> {
    let _turn = turn::across().await?;
    with_temp_ns_in_both("link", PodSecurity::Restricted, async |near, far| {
        pods::serve(far, "web", Serve::Echo).await?;
        let (host, port) = free_node_port(far).await?;
        // The client runs before the command, so the time does not include the start of its pod.
        pods::start(near, "client", &["edits.pl", "opens", "web-entry", "80"]).await?;
        let is_running = |pod: &k8s_openapi::api::core::v1::Pod| {
            let status = pod.status.as_ref();
            status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
        };
        wait::for_object(&near.api(), "client", "the client runs", pods::START, is_running).await?;
        let (from, to) = (
            context(Cluster::First).await?,
            context(Cluster::Second).await?,
        );
        let files = [Cluster::First.kubeconfig()?, Cluster::Second.kubeconfig()?];
        let files = files.map(|file| file.to_string_lossy().into_owned());
        let address = format!("{host}:{port}");
        let link = [
            "link",
            "svc/web",
            "--from",
            &from,
            "--to",
            &to,
            "--namespace",
            &near.name,
            "--to-namespace",
            &far.name,
            "--service-type",
            "NodePort",
            "--address",
            &address,
        ];
        let began = Instant::now();
        let ran = tools::muxtunnel_with(&[("KUBECONFIG", &files.join(":"))], &link).await?;
        let linked = began.elapsed();
        ensure!(ran.status == 0, "{ran:?}");
        pods::end(near, "client", WITHIN).await?;
        println!(
            "muxtunnel link: {:.1} s; from the command to the first byte in the other cluster: {:.1} s",
            linked.as_secs_f64(),
            began.elapsed().as_secs_f64()
        );
        Ok(())
    })
    .await
}

/// `muxtunnel connect` on this host.
struct Connect<'a> {
    ns: &'a TestNamespace,
    address: String,
    /// The user's folder for configuration.
    folder: TempDir,
}

impl Connect<'_> {
    /// Runs the command with the MuxPeer `name`. Returns its process and the local port of `web`.
    async fn start(&self, name: &str, life: &str) -> Result<(Child, u16)> {
        let free = TcpListener::bind("127.0.0.1:0").await?;
        let here = free.local_addr()?.port();
        drop(free);
        let forward = format!("{here}:web:80");
        let muxgate = muxgate()?;
        let muxgate = muxgate.to_str().context("a path")?;
        let mut command = Command::new(tools::muxtunnel_program()?);
        command
            .args(["connect", "far", "--namespace", &self.ns.name])
            .args(["--forward", &forward, "--address", &self.address])
            .args(["--name", name, "--for", life, "--muxgate", muxgate])
            .env("KUBECONFIG", self.ns.cluster.kubeconfig()?)
            .env("XDG_CONFIG_HOME", self.folder.path())
            .kill_on_drop(true);
        Ok((command.spawn().context("muxtunnel")?, here))
    }

    async fn peer(&self, name: &str) -> Result<Option<MuxPeer>> {
        Ok(self.ns.api::<MuxPeer>().get_opt(name).await?)
    }
}

/// The muxgate that the images have. `make images` builds it.
fn muxgate() -> Result<PathBuf> {
    let program = tools::muxtunnel_program()?;
    let target = program.parent().and_then(|folder| folder.parent());
    let muxgate = target
        .context("cargo's target folder")?
        .join("release/muxgate");
    ensure!(
        muxgate.is_file(),
        "cannot find {}: run `make images`",
        muxgate.display()
    );
    Ok(muxgate)
}

/// Waits until curl gets the page of the web server through a port of this host.
async fn answers(port: u16) -> Result<()> {
    let url = format!("http://127.0.0.1:{port}/");
    wait::until("curl gets the page", WITHIN, async || {
        let got = tools::run("curl", &["--silent", "--fail", "--max-time", "5", &url]).await;
        Ok(got
            .is_ok_and(|page| page == "Hello from web\n")
            .then_some(()))
    })
    .await
}

async fn signal(process: &Child, signal: &str) -> Result<()> {
    let id = process.id().context("the process has ended")?.to_string();
    tools::run("kill", &[signal, &id]).await?;
    Ok(())
}

#[tokio::test]
async fn a_host_outside_of_the_cluster_connects_and_leaves_no_peer() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("connect", PodSecurity::Restricted, async |ns| {
        let web = tools::checkout().join("docs/examples/web.yaml");
        let web = format!("--filename={}", web.display());
        ns.kubectl(&["apply", &web]).await?;
        let (host, port) = free_node_port(ns).await?;
        let exit: Value = json!({
            "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxExit", "metadata": {"name": "far"},
            "spec": {
                "service": {"type": "NodePort", "nodePort": port},
                "advertisedEndpoint": {"host": host, "port": port},
                "allow": [{"host": "web", "port": 80}],
            },
        });
        tunnel::up_of::<MuxExit>(ns, &exit.to_string()).await?;
        let connect = Connect {
            ns,
            address: format!("{host}:{port}"),
            folder: TempDir::new()?,
        };

        let (mut process, here) = connect.start("laptop", "10m").await?;
        answers(here).await?;
        let peer = connect.peer("laptop").await?.context("a MuxPeer")?;
        ensure!(peer.spec.expiration_time.is_some(), "{:?}", peer.spec);
        signal(&process, "-TERM").await?;
        let status = process.wait().await?;
        ensure!(status.success(), "{status}");
        ensure!(connect.peer("laptop").await?.is_none(), "the peer is left");

        let (mut process, here) = connect.start("killed", LIFE).await?;
        answers(here).await?;
        signal(&process, "-KILL").await?;
        process.wait().await?;
        ensure!(connect.peer("killed").await?.is_some(), "the peer is gone");
        let what = "the peer of the killed process is gone by its time";
        wait::until(what, GONE_WITHIN, async || {
            Ok(connect.peer("killed").await?.is_none().then_some(()))
        })
        .await
    })
    .await
}

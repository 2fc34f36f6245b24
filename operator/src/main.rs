//! `muxtunnel-operator run`: reads the flags, connects to the API server, runs the controllers and the
//! health endpoint until SIGTERM.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use futures::future::{self, FutureExt, LocalBoxFuture};
use kube::Client;
use kube::client::ClientBuilder;
use muxtunnel_operator::events::Events;
use muxtunnel_operator::health::{self, WatchClock, WatchLayer};
use muxtunnel_operator::settings::Settings;
use muxtunnel_operator::{benchmark_controller, tunnel_controller};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;

#[derive(Parser)]
#[command(
    name = "muxtunnel-operator",
    version,
    about = "Runs MuxTunnels and MuxBenchmarks"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the controllers until SIGTERM.
    Run(RunArgs),
}

#[derive(Args)]
struct RunArgs {
    /// Image of the gateways.
    #[arg(long, env = "GATEWAY_IMAGE")]
    gateway_image: String,
    /// Image of WAN emulation.
    #[arg(long, env = "NETEM_IMAGE")]
    netem_image: String,
    /// Image of benchmarks.
    #[arg(long, env = "BENCH_IMAGE")]
    bench_image: String,
    /// Pull policy of the pods that are made.
    #[arg(long, env = "IMAGE_PULL_POLICY", default_value = "IfNotPresent",
          value_parser = ["Always", "IfNotPresent", "Never"])]
    image_pull_policy: String,
    /// Allow WAN emulation, whose containers need NET_ADMIN.
    #[arg(long, env = "WAN_EMULATION", default_value_t = false,
          action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    wan_emulation: bool,
    /// Namespace to watch; repeatable. None: all.
    #[arg(
        long = "watch-namespace",
        env = "WATCH_NAMESPACES",
        value_delimiter = ','
    )]
    watch_namespaces: Vec<String>,
    /// Address of /healthz and /readyz.
    #[arg(long, env = "HEALTH_LISTEN", default_value = "0.0.0.0:8080")]
    health_listen: SocketAddr,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .init();
    let Command::Run(args) = Cli::parse().command;
    run(args).await
}

async fn run(args: RunArgs) -> anyhow::Result<()> {
    let clock = Arc::new(WatchClock::default());
    let client = connect(&clock).await?;
    let settings = Arc::new(Settings {
        gateway_image: args.gateway_image,
        netem_image: args.netem_image,
        bench_image: args.bench_image,
        image_pull_policy: args.image_pull_policy,
        wan_emulation: args.wan_emulation,
    });
    let events = Events::new(client.clone());
    let mut controllers: Vec<LocalBoxFuture<'static, ()>> = Vec::new();
    for namespace in scopes(args.watch_namespaces) {
        info!(namespace = namespace.as_deref().unwrap_or("*"), "watching");
        let tunnels =
            tunnel_controller::Context::new(client.clone(), settings.clone(), events.clone());
        let benchmarks =
            benchmark_controller::Context::new(client.clone(), settings.clone(), events.clone());
        let (tunnels, benchmarks) = (
            tunnel_controller::run(tunnels, namespace.clone(), clock.clone()),
            benchmark_controller::run(benchmarks, namespace, clock.clone()),
        );
        controllers.push(tunnels.boxed_local());
        controllers.push(benchmarks.boxed_local());
    }
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    tokio::select! {
        result = health::serve(args.health_listen, clock) => {
            result.with_context(|| format!("cannot listen on {}", args.health_listen))
        }
        // A controller ends only when its watches do, which is a fault: a restart begins them anew.
        _ = future::select_all(controllers) => anyhow::bail!("a controller ended by itself"),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// One set of controllers a namespace, or one for all.
fn scopes(namespaces: Vec<String>) -> Vec<Option<String>> {
    if namespaces.is_empty() {
        vec![None]
    } else {
        namespaces.into_iter().map(Some).collect()
    }
}

async fn connect(clock: &Arc<WatchClock>) -> anyhow::Result<Client> {
    let config = kube::Config::infer()
        .await
        .context("no configuration of the API server: neither in a pod nor a kubeconfig")?;
    let builder = ClientBuilder::try_from(config).context("cannot use the API server's address")?;
    Ok(builder.with_layer(&WatchLayer(clock.clone())).build())
}

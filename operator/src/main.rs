//! `muxtunnel-operator run`: reads the flags, connects to the API server, competes for the Lease,
//! runs the controllers and the health endpoint until SIGTERM.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use futures::future::{self, FutureExt, LocalBoxFuture};
use kube::Client;
use kube::client::ClientBuilder;
use muxtunnel_operator::api_server::ApiServer;
use muxtunnel_operator::apply::Settled;
use muxtunnel_operator::caches::{Cluster, Feeds, Targets};
use muxtunnel_operator::class_controller::{self, Planner};
use muxtunnel_operator::class_file::ClassFile;
use muxtunnel_operator::classes::Classes;
use muxtunnel_operator::cli::{Cli, Command, RunArgs};
use muxtunnel_operator::clock::Clock;
use muxtunnel_operator::events::Events;
use muxtunnel_operator::grants::Grants;
use muxtunnel_operator::health::{self, Progress};
use muxtunnel_operator::interceptor::InterceptorLayer;
use muxtunnel_operator::leader::{Elector, Leadership, WriteGate};
use muxtunnel_operator::metrics::Metrics;
use muxtunnel_operator::settings::{AdminPeers, Images, Settings};
use muxtunnel_operator::tunnel_controller::access::{Access, Memory, Outputs};
use muxtunnel_operator::tunnel_controller::observe::HttpGateways;
use muxtunnel_operator::upgrades::turns::Turns;
use muxtunnel_operator::watch_clock::WatchClock;
use muxtunnel_operator::watches::{self, WATCH_SECONDS};
use muxtunnel_operator::{benchmark_controller, peer_controller, tunnel_controller};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;

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
    let config = kube::Config::infer()
        .await
        .context("cannot find the API server: run the operator in a pod, or set KUBECONFIG")?;
    let config = asking_once(config);
    let clock = Clock::system();
    let mut elector = elector(&args, config.clone(), clock.clone())?;
    let (leadership, watched) = (elector.leadership(), Arc::new(WatchClock::default()));
    let metrics = Metrics::new(leadership.clone(), watched.clone());
    let client = client(config, &leadership, &watched, &metrics)?;
    let class_file = args.class_file.as_deref();
    let class_file = class_file.map(ClassFile::read).transpose()?;
    let (scopes, health_listen) = (scopes(args.watch_namespaces.clone()), args.health_listen);
    let served = (args.controller_name.clone(), images(&args));
    let settings = Arc::new(settings(args));
    let api_server = ApiServer::default();
    api_server.first_refresh(&client).await;
    let (grants, watch_grants) = Grants::watch(&client, &scopes, &watched);
    let (classes, watch_classes) = Classes::watch(&client, served, &scopes, &watched);
    let follow_api_server = api_server.clone().follow(client.clone());
    let operator = Operator {
        events: Events::new(client.clone(), clock.clone()),
        client,
        settings,
        grants,
        classes,
        turns: Turns::default(),
        api_server,
        leadership,
        metrics: metrics.clone(),
        watched: watched.clone(),
        clock,
    };
    let mut controllers = operator.controllers(scopes);
    if let Some(file) = class_file {
        let (client, classes) = (operator.client.clone(), operator.classes.clone());
        let applied = file.keep_applied(client, classes, operator.leadership.clone());
        controllers.push(applied.boxed_local());
    }
    controllers.push(watch_grants.boxed_local());
    controllers.push(watch_classes.boxed_local());
    controllers.push(follow_api_server.boxed_local());
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let progress = Progress::default();
    // The health endpoint has a separate thread, so that `/healthz` answers even if the controllers
    // block their thread.
    let health = tokio::spawn(health::serve(
        health_listen,
        watched,
        progress.clone(),
        metrics,
    ));
    let ended = tokio::select! {
        result = health => {
            let result = result.context("serving /healthz ended unexpectedly")?;
            result.with_context(|| format!("cannot listen on {health_listen}"))
        }
        never = progress.beat() => match never {},
        // A controller ends only if its watches end, which is a fault. The process then exits,
        // because its restart also restarts the watches.
        _ = future::select_all(controllers) => Err(anyhow::anyhow!("a controller ended unexpectedly")),
        () = elector.run() => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // All reconciliations are cancelled here. The API server may still process their requests, so
    // `release` waits.
    elector.release().await;
    ended
}

fn settings(args: RunArgs) -> Settings {
    Settings {
        refresh_volumes: args.refresh_volumes,
        network_policy: args.network_policy.then(|| AdminPeers {
            operator_namespace: args.namespace,
            operator_labels: args.pod_labels.into_iter().collect(),
            metrics_namespace_labels: args.metrics_namespace_labels.into_iter().collect(),
        }),
    }
}

/// The images of classes that name none.
fn images(args: &RunArgs) -> Images {
    Images {
        gateway: args.gateway_image.clone(),
        wan: args.wan_image.clone(),
        bench: args.bench_image.clone(),
    }
}

/// The common part of the controllers of all scopes. A scope is one namespace, or all namespaces.
struct Operator {
    client: Client,
    settings: Arc<Settings>,
    events: Events,
    grants: Grants,
    classes: Classes,
    turns: Turns,
    api_server: ApiServer,
    leadership: Leadership,
    metrics: Metrics,
    watched: Arc<WatchClock>,
    clock: Clock,
}

impl Operator {
    /// The controllers of each scope, with shared watches.
    fn controllers(&self, scopes: Vec<Option<String>>) -> Vec<LocalBoxFuture<'static, ()>> {
        let scopes: Vec<_> = scopes
            .into_iter()
            .map(|scope| (scope, Feeds::default()))
            .collect();
        let caches = |(scope, feeds): &(Option<String>, Feeds)| (scope.clone(), feeds.caches());
        let targets = Targets::new(scopes.iter().map(caches));
        let planner = Planner {
            client: self.client.clone(),
            scopes: scopes.iter().map(|(_, feeds)| feeds.caches()).collect(),
            classes: self.classes.clone(),
            turns: self.turns.clone(),
            figures: self.metrics.classes.clone(),
            clock: self.clock.clone(),
        };
        let classes = class_controller::run(planner, self.leadership.clone());
        let controllers = scopes
            .into_iter()
            .flat_map(|(scope, feeds)| self.controllers_of(scope, feeds, targets.clone()));
        controllers.chain([classes.boxed_local()]).collect()
    }

    fn controllers_of(
        &self,
        scope: Option<String>,
        mut feeds: Feeds,
        targets: Targets,
    ) -> [LocalBoxFuture<'static, ()>; 3] {
        info!(namespace = scope.as_deref().unwrap_or("*"), "watching");
        let cluster = Cluster {
            client: self.client.clone(),
            caches: feeds.caches(),
            settled: Settled::default(),
        };
        let memory = Memory::new(self.client.clone());
        let access = Access {
            caches: cluster.caches.clone(),
            reader: cluster.reader(),
            targets,
            grants: self.grants.clone(),
            classes: self.classes.clone(),
            turns: self.turns.clone(),
            api_server: self.api_server.clone(),
            memory: memory.clone(),
            watches: self.watched.clone(),
            settings: self.settings.clone(),
        };
        let outputs = Outputs {
            cluster: cluster.clone(),
            memory,
            figures: self.metrics.tunnels.clone(),
            refreshes_volumes: self.settings.refresh_volumes,
        };
        let (gateways, events) = (HttpGateways::default(), self.events.clone());
        let steps = (access, outputs);
        let tunnels = tunnel_controller::Context::new(steps, gateways, events, self.clock.clone());
        let (changed, queued) = watches::queue();
        let peers = peer_controller::run(
            (cluster.clone(), self.classes.clone()),
            self.clock.clone(),
            queued,
            self.leadership.clone(),
            self.metrics.clone(),
        );
        let benchmarks = benchmark_controller::Context::new(
            (cluster, self.classes.clone()),
            self.settings.clone(),
            self.events.clone(),
            self.leadership.clone(),
            self.clock.clone(),
        );
        let of_benchmarks = std::mem::take(&mut feeds.benchmarks);
        let tunnels = tunnel_controller::run(
            tunnels,
            scope.clone(),
            (feeds, changed),
            self.leadership.clone(),
            self.metrics.clone(),
        );
        let benchmarks = benchmark_controller::run(
            benchmarks,
            scope,
            of_benchmarks,
            self.leadership.clone(),
            self.metrics.clone(),
            self.watched.clone(),
        );
        [
            tunnels.boxed_local(),
            peers.boxed_local(),
            benchmarks.boxed_local(),
        ]
    }
}

/// One set of controllers per namespace, or one for all namespaces.
fn scopes(namespaces: Vec<String>) -> Vec<Option<String>> {
    if namespaces.is_empty() {
        vec![None]
    } else {
        namespaces.into_iter().map(Some).collect()
    }
}

/// Disables kube's own retries, because a renewal that was written and is sent again would conflict
/// with itself. The caller repeats a refused request after it has read the current state. The
/// metrics count every attempt. A request fails if no byte arrives within [`READ_TIMEOUT`], so that
/// no list and no reconciliation hangs forever.
fn asking_once(mut config: kube::Config) -> kube::Config {
    config.default_retry = false;
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    config
}

/// A request fails after this time without a byte from the API server. The time is longer than a
/// watch call, because the API server may send no byte during a watch call.
const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);

/// A candidate for the Lease with the identity of this process. The candidate has a separate
/// client, because the other client cannot write without the Lease.
fn elector(args: &RunArgs, config: kube::Config, clock: Clock) -> anyhow::Result<Elector> {
    let client = Client::try_from(config).context("cannot use the API server's address")?;
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator".to_owned());
    let identity = format!("{host}_{:016x}", rand::random::<u64>());
    let (namespace, name) = (&args.namespace, args.lease_name.clone());
    Ok(Elector::new(client, namespace, name, identity, clock))
}

fn client(
    config: kube::Config,
    leadership: &Leadership,
    watched: &Arc<WatchClock>,
    metrics: &Metrics,
) -> anyhow::Result<Client> {
    let builder = ClientBuilder::try_from(config).context("cannot use the API server's address")?;
    Ok(builder
        .with_layer(&InterceptorLayer(watched.clone()))
        .with_layer(&InterceptorLayer(metrics.clone()))
        .with_layer(&InterceptorLayer(WriteGate(leadership.clone())))
        .build())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The arguments in the chart, and the namespace in the pod's environment.
    fn charts_arguments(golden: &str) -> Vec<String> {
        let path = format!(
            "{}/../charts/tests/golden/{golden}.yaml",
            env!("CARGO_MANIFEST_DIR")
        );
        let text = std::fs::read_to_string(path).unwrap();
        let (_, text) = text.split_once("        args:\n").unwrap();
        let flags = text
            .lines()
            .map_while(|line| line.strip_prefix("        - "));
        ["muxtunnel-operator"]
            .into_iter()
            .chain(flags)
            .chain(["--namespace=mux"])
            .map(|flag| flag.trim_matches('"').to_owned())
            .collect()
    }

    #[test]
    fn the_chart_starts_it_with_flags_that_it_has() {
        for (golden, namespaces) in [("default", 0), ("all-values", 2)] {
            let arguments = charts_arguments(golden);
            assert!(arguments.len() > 8, "{arguments:?}");
            let Command::Run(args) = Cli::try_parse_from(arguments).unwrap().command;
            assert!(args.network_policy, "{golden}");
            assert_eq!(args.pod_labels.len(), 3, "{golden}");
            assert_eq!(args.watch_namespaces.len(), namespaces, "{golden}");
            assert_eq!(
                args.metrics_namespace_labels.is_empty(),
                golden == "default"
            );
        }
    }

    #[tokio::test]
    async fn what_the_api_server_cannot_do_now_is_asked_once() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let refuse = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            async { axum::http::StatusCode::SERVICE_UNAVAILABLE }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = axum::Router::new().fallback(refuse);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let (leadership, watched) = (Leadership::default(), Arc::new(WatchClock::default()));
        let metrics = Metrics::new(leadership.clone(), watched.clone());
        let client = client(asking_once(config), &leadership, &watched, &metrics).unwrap();
        client.apiserver_version().await.unwrap_err();
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    /// The liveness probe does not restart an operator whose list requests hang, so a timeout must
    /// end such a request.
    #[test]
    fn what_the_api_server_never_answers_ends() {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let limit = asking_once(config).read_timeout.unwrap();
        assert!(limit > Duration::from_secs(WATCH_SECONDS.into()));
        assert!(limit < Duration::from_secs(180), "watches are stale then");
    }

    #[test]
    fn it_does_not_guess_its_namespace() {
        let images = ["gateway", "wan", "bench"].map(|name| format!("--{name}-image=i"));
        let arguments = ["muxtunnel-operator", "run", "--network-policy=true"].map(str::to_owned);
        let parsed = Cli::try_parse_from(arguments.into_iter().chain(images));
        assert!(parsed.is_err_and(|error| error.to_string().contains("--namespace")));
    }
}

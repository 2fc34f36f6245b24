//! Tests and measures the capacity of one operator. The controller runs alone in one process, and
//! the API server runs in another process.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use muxtunnel_gateway_config::status::Status;
use muxtunnel_gateway_config::{GatewayKey, Role};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::running::{Process, is_ready_at};
use super::*;
use crate::leader::Leadership;
use crate::testing::{FakeApi, loopback};
use crate::tunnel_controller::observe::Gateways;

/// Tunnels of the test, each with its own target Service. Every tenth object is an exit with peers.
const TUNNELS: usize = 200;
/// Tunnels of the measurement.
const MANY: usize = 1000;
/// The peers of each exit.
const PEERS: usize = 5;
/// Foreign Services and Deployments that the watches also deliver.
const OTHERS: usize = 1000;
/// The operator's memory limit in the chart, in KiB.
const MEMORY_MAX_KIB: u64 = 128 << 10;
/// Time limit for the whole test, even if other tests run at the same time.
const WITHIN: Duration = Duration::from_mins(20);
/// Environment variable with the API server's address for the measured process.
const SERVER: &str = "MUXTUNNEL_TEST_API_SERVER";
const HERE: &str = "tunnel_controller::tests::scale";

/// Queries the process with the fake API server.
struct OverHttp(String);

impl Gateways for OverHttp {
    async fn status(&self, address: &str) -> Result<Status, String> {
        let http: HttpClient<_, Empty<Bytes>> =
            HttpClient::builder(TokioExecutor::new()).build_http();
        let uri = format!("{}/gateways/{address}", self.0).parse().unwrap();
        let answer = http.get(uri).await.map_err(|error| error.to_string())?;
        let body = answer.into_body().collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    }
}

/// Ends the process with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A value of a process's `status`, KiB.
fn memory_kib(process: &Child, figure: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(figure));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse().unwrap()
}

/// CPU time of a process in seconds, in the units of 10 ms of `/proc`.
fn cpu_seconds(process: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2);
    ticks
        .map(|ticks| ticks.parse::<f64>().unwrap() / 100.0)
        .sum()
}

/// The number of requests by verb, without Events. A list is a read without a name.
fn counted(api: &FakeApi) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in api.take_requests() {
        let verb = match request.method.as_str() {
            "GET" if request.query.contains("watch=") => "watch",
            "GET" if !request.path.contains('/') => "list",
            method => method,
        };
        if !request.path.starts_with("events") {
            *counts.entry(verb.to_owned()).or_default() += 1;
        }
    }
    counts
}

fn put_objects(api: &FakeApi, tunnels: usize) {
    let authorities = json!({"metadata": {"namespace": "operators"}});
    api.put("secrets/authorities@operators", authorities);
    for number in 0..OTHERS {
        let name = format!("other-{number}");
        let mut service = shop_json();
        service["metadata"] = json!({"name": name, "labels": {"app": name}});
        api.put(&format!("services/{name}"), service);
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"replicas": 1, "template": {"metadata": {"labels": {"app": name}}}},
        });
        api.put(&format!("deployments/{name}"), deployment);
    }
    for number in 0..tunnels {
        let (name, target) = (format!("t{number}"), format!("shop-{number}"));
        let mut service = shop_json();
        service["metadata"] = json!({"name": target});
        api.put(&format!("services/{target}"), service);
        let spec = match is_exit(number) {
            true => EXIT.replace("shop", &target),
            false => MANAGED.replace("shop", &target),
        };
        let mut object = object_json(&spec);
        object["metadata"]["name"] = json!(name);
        object["metadata"]["uid"] = json!(format!("uid-of-{name}"));
        api.put(&path(number), object);
        let peers = if is_exit(number) { PEERS } else { 0 };
        for peer in 0..peers {
            let peer_name = format!("{name}-{peer}");
            let mut object = peer_json(&peer_name, &entry_key(peer), &json!({}));
            object["spec"]["exitRef"]["name"] = json!(name);
            api.put(&format!("muxpeers/{peer_name}"), object);
        }
    }
}

/// Whether the object of this number is a MuxExit. The others are MuxTunnels.
fn is_exit(number: usize) -> bool {
    number % 10 == 9
}

/// The path of the object of this number.
fn path(number: usize) -> String {
    match is_exit(number) {
        true => format!("muxexits/t{number}"),
        false => format!("muxtunnels/t{number}"),
    }
}

/// The key of an entry elsewhere.
fn entry_key(number: usize) -> String {
    let mut bytes = [7; 32];
    bytes[0] = u8::try_from(number).unwrap();
    GatewayKey::new(Role::Entry, bytes).unwrap().to_string()
}

/// The operator in another process. `test`: the test that runs in both processes.
async fn operator(api: &FakeApi, test: &str) -> Ended {
    let server = format!("http://{}", loopback::listen(api).await);
    let operator = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{HERE}::{test}"), "--include-ignored"])
        .env(SERVER, server)
        .spawn();
    Ended(operator.unwrap())
}

/// Runs the operator, if this is its process.
async fn run_if_asked() {
    if let Ok(server) = std::env::var(SERVER) {
        let client = kube::Client::try_from(Config::new(server.parse().unwrap())).unwrap();
        let _process = Process::of(client, OverHttp(server), Leadership::always());
        std::future::pending::<()>().await;
    }
}

/// Waits until all tunnels are ready.
async fn all_ready(api: &FakeApi, tunnels: usize, begin: Instant) {
    let waits = || (0..tunnels).find(|number| !is_ready_at(api, &path(*number)));
    while let Some(waiting) = waits() {
        let tunnel = api.get(&path(waiting));
        assert!(begin.elapsed() < WITHIN, "{tunnel:#?}");
        api.run_pods();
        sleep(Duration::from_millis(200)).await;
    }
}

/// Waits until reconciliations in progress have ended and nothing more is written.
async fn quiet(api: &FakeApi, begin: Instant) {
    let mut quiet = 0;
    while quiet < 3 {
        api.take_writes();
        sleep(Duration::from_secs(1)).await;
        let writes = api.take_writes();
        quiet = if writes.is_empty() { quiet + 1 } else { 0 };
        assert!(begin.elapsed() < WITHIN, "{writes:?}");
    }
}

/// With `--nocapture` the test prints its duration and memory.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_tunnels_are_ready_within_the_operators_memory() {
    run_if_asked().await;
    let api = FakeApi::default();
    put_objects(&api, TUNNELS);
    let begin = Instant::now();
    let test = "two_hundred_tunnels_are_ready_within_the_operators_memory";
    let operator = operator(&api, test).await;
    all_ready(&api, TUNNELS, begin).await;
    let ready = begin.elapsed();
    quiet(&api, begin).await;
    let (now, peak) = (
        memory_kib(&operator.0, "VmRSS"),
        memory_kib(&operator.0, "VmHWM"),
    );
    println!(
        "{TUNNELS} tunnels, and {OTHERS} Services and Deployments of other owners: all ready after {:.1} s; resident \
         memory {} MiB, {} MiB at most",
        ready.as_secs_f64(),
        now >> 10,
        peak >> 10
    );
    assert!(peak <= MEMORY_MAX_KIB, "{peak} KiB");
}

/// Prints the time, the requests and the memory of the start, of a list of all kinds, and of a
/// change of each foreign Service.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: cargo test -p muxtunnel-operator --lib -- --ignored --nocapture a_thousand_tunnels"]
async fn a_thousand_tunnels_are_measured() {
    run_if_asked().await;
    let api = FakeApi::default();
    put_objects(&api, MANY);
    let begin = Instant::now();
    let operator = operator(&api, "a_thousand_tunnels_are_measured").await;
    let report = |what: &str, since: Instant, cpu: f64| {
        println!(
            "{MANY} tunnels: {what}: {:.1} s, CPU {:.1} s, resident memory {} MiB, {} MiB at most; requests {:?}",
            since.elapsed().as_secs_f64(),
            cpu_seconds(&operator.0) - cpu,
            memory_kib(&operator.0, "VmRSS") >> 10,
            memory_kib(&operator.0, "VmHWM") >> 10,
            counted(&api)
        );
    };
    all_ready(&api, MANY, begin).await;
    report("all ready", begin, 0.0);
    quiet(&api, begin).await;

    let (since, cpu) = (Instant::now(), cpu_seconds(&operator.0));
    loopback::take_asked();
    api.compact();
    api.put("services/wakes-all-watches", shop_json());
    let mut asked = BTreeSet::new();
    while asked.len() < 2 * MANY {
        asked.extend(loopback::take_asked());
        assert!(since.elapsed() < WITHIN);
        sleep(Duration::from_millis(20)).await;
    }
    report("all kinds listed and all tunnels reconciled", since, cpu);
    quiet(&api, begin).await;

    let (since, cpu) = (Instant::now(), cpu_seconds(&operator.0));
    counted(&api);
    for number in 0..OTHERS {
        let path = format!("services/other-{number}");
        let mut service = api.get(&path).unwrap();
        service["spec"]["ports"][0]["port"] = json!(81);
        api.put(&path, service);
    }
    sleep(Duration::from_secs(20)).await;
    report("each foreign Service changed once, over 20 s", since, cpu);
}

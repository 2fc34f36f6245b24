//! Tests the capacity of one operator. The controller runs alone in one process, and the API server
//! runs in another process.

use std::process::{Child, Command};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use muxtunnel_gateway_config::status::Status;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::running::{Process, is_ready};
use super::*;
use crate::leader::Leadership;
use crate::testing::{FakeApi, loopback};
use crate::tunnel_controller::observe::Gateways;

/// Tunnels, each with its own target Service.
const TUNNELS: usize = 200;
/// Foreign Services and Deployments that the watches also deliver.
const OTHERS: usize = 1000;
/// The operator's memory limit in the chart, in KiB.
const MEMORY_MAX_KIB: u64 = 128 << 10;
/// Time limit for the whole test, even if other tests run at the same time.
const WITHIN: Duration = Duration::from_mins(10);
/// Environment variable with the API server's address for the measured process.
const SERVER: &str = "MUXTUNNEL_TEST_API_SERVER";
const THIS: &str =
    "tunnel_controller::tests::scale::two_hundred_tunnels_are_ready_within_the_operators_memory";

/// Queries the process with the fake API server.
struct OverHttp(String);

impl Gateways for OverHttp {
    async fn offer(&self, _address: &str) -> Result<String, String> {
        Err("no tunnel of this test has an exit elsewhere".to_owned())
    }

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

fn put_objects(api: &FakeApi) {
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
    for number in 0..TUNNELS {
        let (name, target) = (format!("t{number}"), format!("shop-{number}"));
        let mut service = shop_json();
        service["metadata"] = json!({"name": target});
        api.put(&format!("services/{target}"), service);
        let mut tunnel = tunnel_json(&MANAGED.replace("shop", &target));
        tunnel["metadata"]["name"] = json!(name);
        tunnel["metadata"]["uid"] = json!(format!("uid-of-{name}"));
        api.put(&format!("muxtunnels/{name}"), tunnel);
    }
}

/// With `--nocapture` the test prints its duration and memory.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_tunnels_are_ready_within_the_operators_memory() {
    if let Ok(server) = std::env::var(SERVER) {
        let client = kube::Client::try_from(Config::new(server.parse().unwrap())).unwrap();
        let _process = Process::of(client, OverHttp(server), Leadership::always());
        return std::future::pending().await;
    }
    let api = FakeApi::default();
    put_objects(&api);
    let server = format!("http://{}", loopback::listen(&api).await);
    let begin = Instant::now();
    let operator = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", THIS])
        .env(SERVER, server)
        .spawn();
    let operator = Ended(operator.unwrap());
    let all_ready = || (0..TUNNELS).all(|number| is_ready(&api, &format!("t{number}")));
    while !all_ready() {
        let waiting = (0..TUNNELS).find(|number| !is_ready(&api, &format!("t{number}")));
        let tunnel = waiting.and_then(|number| api.get(&format!("muxtunnels/t{number}")));
        assert!(begin.elapsed() < WITHIN, "{tunnel:#?}");
        api.run_pods();
        sleep(Duration::from_millis(200)).await;
    }
    let ready = begin.elapsed();
    // Waits until reconciliations in progress have ended and nothing more is written.
    let mut quiet = 0;
    while quiet < 3 {
        api.take_writes();
        sleep(Duration::from_secs(1)).await;
        let writes = api.take_writes();
        quiet = if writes.is_empty() { quiet + 1 } else { 0 };
        assert!(begin.elapsed() < WITHIN, "{writes:?}");
    }
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

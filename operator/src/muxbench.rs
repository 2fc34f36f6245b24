//! The containers of muxbench: the runner and the agents. Agents run in pods of their own, except
//! agents that measure IP packets. These run in the gateways' pods, because no other pod has a
//! route into a tunnel's network.

use k8s_openapi::api::core::v1::{Container, Volume};
use muxtunnel_bench_api::HTTP_PORT;
use muxtunnel_crds::Resources;

use crate::class::Class;
use crate::pods::{helper_resources, port, probe, read_only, secret_volume, unprivileged};

/// Path of the token in every container of a benchmark.
pub const TOKEN_FILE: &str = "/etc/muxbench/token";
/// Directory of [`TOKEN_FILE`].
const TOKEN_DIRECTORY: &str = "/etc/muxbench";
const TOKEN_VOLUME: &str = "token";

/// Name of the Secret with the token of a benchmark's runner and agents. The name contains a part
/// of the benchmark's UID, so a Secret with this name belongs to this benchmark. The operator
/// relies on the name, because it may not read the Secret to check the owner.
pub fn token(benchmark: &str, uid: &str) -> String {
    let uid: String = uid
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(12)
        .collect();
    format!("{benchmark}-token-{uid}")
}

/// The volume with the token. `secret`: [`token`].
pub fn token_volume(secret: String) -> Volume {
    secret_volume(TOKEN_VOLUME, secret)
}

/// The container of an agent.
pub fn agent(class: &Class, resources: Option<&Resources>) -> Container {
    let args = vec!["agent".to_owned(), format!("--token-file={TOKEN_FILE}")];
    container(class, "agent", args, resources)
}

/// A container of muxbench with the resources `resources`.
pub fn container(
    class: &Class,
    name: &str,
    args: Vec<String>,
    resources: Option<&Resources>,
) -> Container {
    Container {
        name: name.to_owned(),
        image: Some(class.part.images.bench.clone()),
        image_pull_policy: Some(class.pull_policy()),
        args: Some(args),
        ports: Some(vec![port("http", HTTP_PORT)]),
        readiness_probe: Some(probe("/healthz", HTTP_PORT, (2, 5), None)),
        // By default, there is no CPU limit, because the kernel would throttle the agent, and the
        // agent would measure this throttling.
        resources: Some(helper_resources(
            resources,
            &[("cpu", "10m"), ("memory", "16Mi")],
            &[],
        )),
        security_context: Some(unprivileged()),
        volume_mounts: Some(vec![read_only(TOKEN_VOLUME, TOKEN_DIRECTORY)]),
        ..Container::default()
    }
}

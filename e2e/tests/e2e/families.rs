//! Tunnels over IPv4 and IPv6. The pods and Services of the second cluster have addresses of both
//! IP families.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::api::PostParams;
use muxtunnel_crds::MuxExit;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{Cluster, PodSecurity, TestNamespace, tunnel, turn, wait, with_temp_ns_in};
use serde_json::json;

/// Time-out until the Services of a tunnel exist.
const SERVICE: Duration = Duration::from_secs(120);
/// Time-out until a pod has started and sent its bytes.
const ARRIVES: Duration = Duration::from_secs(180);

const EXIT: &str = "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxExit
metadata: {name: far}
spec:
  allow: [{host: web-ipv4, port: 80}, {host: web-ipv6, port: 80}]
  security: {mode: None}
";

/// The YAML of an entry that dials `address`.
fn entry(address: &str) -> String {
    format!(
        "
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxTunnel
metadata: {{name: near}}
spec:
  connect: [{{name: far, host: '{address}', port: 443}}]
  forwards:
  - name: to-ipv4
    port: 8004
    targets: [{{host: web-ipv4, port: 80}}]
  - name: to-ipv6
    port: 8006
    targets: [{{host: web-ipv6, port: 80}}]
  security: {{mode: None}}
"
    )
}

/// Creates the Service `web-<family>` of one IP family in front of the server `web`.
async fn serve_by(ns: &TestNamespace, family: &str) -> Result<()> {
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": format!("web-{}", family.to_lowercase())},
        "spec": {
            "ipFamilyPolicy": "SingleStack",
            "ipFamilies": [family],
            "selector": {"e2e": "web"},
            "ports": [{"port": 80, "targetPort": 8080}],
        },
    }))?;
    let services = ns.api::<Service>();
    services.create(&PostParams::default(), &service).await?;
    Ok(())
}

/// The cluster addresses of a Service: the IPv4 address, then the IPv6 address.
async fn addresses(ns: &TestNamespace, service: &str) -> Result<(String, String)> {
    let found = ns.api::<Service>().get(service).await?;
    let all = found.spec.and_then(|spec| spec.cluster_ips);
    let (six, four): (Vec<_>, Vec<_>) = all
        .unwrap_or_default()
        .into_iter()
        .partition(|address| address.contains(':'));
    let both = four.into_iter().next().zip(six.into_iter().next());
    both.with_context(|| format!("{service} does not have an IPv4 and an IPv6 address"))
}

#[tokio::test]
async fn clients_carriers_and_targets_may_each_be_of_either_family() -> Result<()> {
    let _turn = turn::across().await?;
    let level = PodSecurity::Restricted;
    with_temp_ns_in(Cluster::Second, "families", level, async |ns| {
        pods::serve(ns, "web", Serve::Hash).await?;
        for family in ["IPv4", "IPv6"] {
            serve_by(ns, family).await?;
        }
        tunnel::apply_of::<MuxExit>(ns, EXIT).await?;
        let (_, exit) = wait::until("the exit's addresses", SERVICE, async || {
            Ok(addresses(ns, "far-exit").await.ok())
        })
        .await?;
        tunnel::up(ns, &entry(&exit)).await?;
        let (four, six) = addresses(ns, "near-entry").await?;
        for (client, address, port) in [
            ("four-to-four", &four, "8004"),
            ("four-to-six", &four, "8006"),
            ("six-to-four", &six, "8004"),
            ("six-to-six", &six, "8006"),
        ] {
            let send = ["send-hashed.sh", address, port, "1048576"];
            pods::run(ns, client, &send, ARRIVES).await?;
        }
        Ok(())
    })
    .await
}

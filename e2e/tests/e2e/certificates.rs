//! A tunnel between two clusters with certificates of the user.

use std::time::Duration;

use anyhow::Result;
use muxtunnel_crds::tunnel_condition;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, keys, tunnel, turn, with_temp_ns_in_both};
use serde_json::json;

use crate::peers::{address, behind_a_node_port, entry};

#[tokio::test]
async fn an_entry_reaches_an_exit_in_another_cluster_with_certificates_of_ones_own() -> Result<()> {
    let _turn = turn::across().await;
    with_temp_ns_in_both("own", PodSecurity::Restricted, async |near, far| {
        pods::serve(far, "web", Serve::Hash).await?;
        keys::certificates(&[(near, "near"), (far, "far")]).await?;
        let mut exit = behind_a_node_port().await?;
        exit["spec"]["carrier"]["security"] = json!({
            "mode": "MutualTls",
            "exit": {"secretName": "far", "peers": ["near"]},
        });
        tunnel::apply(far, &exit.to_string()).await?;
        let mut entry = entry("near", &address(far).await?, &[])?;
        entry["spec"]["carrier"]["security"] = json!({
            "mode": "MutualTls",
            "entry": {"secretName": "near", "peers": ["far"]},
        });
        let up = tunnel::up(near, &entry.to_string()).await?;
        anyhow::ensure!(
            tunnel::is_true(&up, tunnel_condition::CREDENTIALS_VALID),
            "{:?}",
            up.status
        );
        tunnel::ready(far, "far").await?;
        let send = ["send-hashed.sh", "near-entry", "8080", "1048576"];
        pods::run(near, "client", &send, Duration::from_secs(180)).await?;
        Ok(())
    })
    .await
}

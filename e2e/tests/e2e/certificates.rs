//! A tunnel between two clusters with certificates of the user.

use std::time::Duration;

use anyhow::Result;
use kube::api::PostParams;
use muxtunnel_crds::{MuxExit, MuxPeer, condition};
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, keys, tunnel, turn, with_temp_ns_in_both};
use serde_json::json;

use crate::peers::{behind_a_node_port, endpoint, entry};

#[tokio::test]
async fn an_entry_reaches_an_exit_in_another_cluster_with_certificates_of_ones_own() -> Result<()> {
    let _turn = turn::across().await?;
    with_temp_ns_in_both("own", PodSecurity::Restricted, async |near, far| {
        pods::serve(far, "web", Serve::Hash).await?;
        keys::certificates(&[(near, "near"), (far, "far")]).await?;
        let mut exit = behind_a_node_port().await?;
        exit["spec"]["security"] = json!({
            "mode": "Certificates",
            "certificates": {"secretRef": {"name": "far"}},
        });
        tunnel::apply_of::<MuxExit>(far, &exit.to_string()).await?;
        let peer = json!({
            "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxPeer", "metadata": {"name": "near"},
            "spec": {"exitRef": {"name": "far"}, "certificateNames": ["near"]},
        });
        let peer: MuxPeer = serde_json::from_value(peer)?;
        far.api().create(&PostParams::default(), &peer).await?;
        let mut entry = entry("near", &endpoint(far).await?, &[])?;
        entry["spec"]["connect"][0]["certificateNames"] = json!(["far"]);
        entry["spec"]["security"] = json!({
            "mode": "Certificates",
            "certificates": {"entry": {"secretRef": {"name": "near"}}},
        });
        let up = tunnel::up(near, &entry.to_string()).await?;
        anyhow::ensure!(
            tunnel::is_true(&up, condition::CREDENTIALS_VALID),
            "{:?}",
            up.status
        );
        tunnel::ready_of::<MuxExit>(far, "far").await?;
        let send = ["send-hashed.sh", "near-entry", "8080", "1048576"];
        pods::run(near, "client", &send, Duration::from_secs(180)).await?;
        Ok(())
    })
    .await
}

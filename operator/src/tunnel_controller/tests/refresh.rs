//! Tests of how a changed configuration reaches running gateways.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use muxtunnel_gateway_config::status::Status;

use super::running::{Process, is_ready, put_tunnel, server, until};
use serde_json::json;

use super::*;
use crate::labels::REFRESH;
use crate::leader::Leadership;
use crate::testing::FakeApi;
use crate::testing::kubelet::Healthy;
use crate::tunnel_controller::observe::Gateways;

/// What the kubelet has mounted into a pod.
struct Volume {
    hash: String,
    mark: Value,
    /// Number of changes of the pod's object.
    changes: usize,
}

/// Gateways of kubelets that read a ConfigMap again only if the pod's object changes, and whose
/// cache lags behind at the first change.
#[derive(Clone)]
struct Mounted {
    api: FakeApi,
    volumes: Arc<Mutex<BTreeMap<String, Volume>>>,
}

impl Gateways for Mounted {
    async fn status(&self, address: &str) -> Result<Status, String> {
        let mut status = Healthy(self.api.clone()).status(address).await?;
        let pod = self.api.pod_at(address).ok_or("no such pod")?;
        let mark = pod["metadata"]["annotations"][REFRESH].clone();
        let mut volumes = self.volumes.lock().unwrap();
        let volume = volumes.entry(address.to_owned()).or_insert_with(|| Volume {
            hash: status.config_hash.clone(),
            mark: mark.clone(),
            changes: 0,
        });
        if volume.mark != mark {
            volume.mark = mark;
            volume.changes += 1;
            if volume.changes > 1 {
                volume.hash.clone_from(&status.config_hash);
            }
        }
        status.config_hash.clone_from(&volume.hash);
        Ok(status)
    }
}

fn patches(api: &FakeApi) -> usize {
    let requests = api.requests();
    let is_patch = |path: &str| path.starts_with("pods/") && path.ends_with("/status");
    requests
        .iter()
        .filter(|request| is_patch(&request.path))
        .count()
}

#[tokio::test(start_paused = true)]
async fn pods_are_refreshed_until_their_gateways_have_the_new_configuration() {
    let api = server();
    put_tunnel(&api, "office");
    let gateways = Mounted {
        api: api.clone(),
        volumes: Arc::default(),
    };
    let _process = Process::of(api.client(), gateways, Leadership::always());
    until("children", || api.get("deployments/office-entry").is_some()).await;
    api.run_pods();
    until("readiness", || is_ready(&api, "office")).await;
    assert_eq!(patches(&api), 0, "gateways with the newest configuration");
    let mut tunnel = api.get("muxtunnels/office").unwrap();
    tunnel["spec"]["forwards"][0]["port"] = json!(8081);
    tunnel["metadata"]["generation"] = json!(2);
    api.put("muxtunnels/office", tunnel);
    let is_current = || {
        let ready = condition(&api, "muxtunnels/office", "Ready").unwrap();
        ready["status"] == "True" && ready["observedGeneration"] == 2
    };
    until("the new configuration", is_current).await;
    // Only the configuration of the entry has changed, and the first patch had no effect.
    let needed = patches(&api);
    assert_eq!(needed, 2);
    tokio::time::sleep(std::time::Duration::from_mins(5)).await;
    assert_eq!(patches(&api), needed);
}

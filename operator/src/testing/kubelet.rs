//! Healthy gateways in the pods of the API server in memory.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use muxtunnel_gateway_config::status::Status;
use serde_json::json;

use super::FakeApi;
use crate::labels;
use crate::tunnel_controller::build::config_map::expected_hash;
use crate::tunnel_controller::observe::Gateways;

/// Gateways that run the configuration in their ConfigMaps.
#[derive(Clone)]
pub(crate) struct Healthy(pub(crate) FakeApi);

impl Gateways for Healthy {
    async fn status(&self, address: &str) -> Result<Status, String> {
        let pod = self.0.pod_at(address).ok_or("no such pod")?;
        let label = |key: &str| pod["metadata"]["labels"][key].as_str().unwrap().to_owned();
        let component = label(labels::COMPONENT);
        let path = format!("configmaps/{}-{component}", label(labels::INSTANCE));
        let config_map = self.0.get(&path).ok_or("no such ConfigMap")?;
        let config_map: ConfigMap = serde_json::from_value(config_map).unwrap();
        let volume = pod["spec"]["volumes"].as_array().unwrap().iter();
        let mut items = volume.filter_map(|volume| volume["configMap"]["items"][0]["key"].as_str());
        let key = items.next().unwrap_or("config.yaml");
        let sysctls = pod["spec"]["securityContext"]["sysctls"].as_array();
        let sysctls: BTreeMap<_, _> = sysctls
            .into_iter()
            .flatten()
            .map(|sysctl| (sysctl["name"].as_str().unwrap(), sysctl["value"].clone()))
            .collect();
        let instance = label(labels::INSTANCE);
        let tunnel = self
            .0
            .get(&format!("muxtunnels/{instance}"))
            .ok_or("no such tunnel")?;
        let keys = tunnel["status"]["publicKeys"].clone();
        let carrier = json!({
            "peer": "10.0.0.1:64000", "uptimeSeconds": 1.0, "rttMilliseconds": 100.0,
            "rttMinMilliseconds": 100.0, "congestionControl": "cubic", "bytesSent": 1,
            "bytesReceived": 1, "retransmits": 0, "congestionWindow": 10, "streams": 0,
            "receiveBudgetUsed": 0,
        });
        let mut status = json!({
            "version": "1", "role": if component == "entry" { "Entry" } else { "Exit" },
            "protocol": "Native", "configHash": expected_hash(&config_map, key), "ready": true, "files": [],
            "draining": false, "sysctls": sysctls, "carriers": [carrier],
            "streams": {
                "open": 0, "opened": 0, "bytesSent": 0, "bytesReceived": 0, "closed": {},
                "refused": {},
            },
            "process": {"cpuSeconds": 0.0, "maxRssBytes": 0, "uptimeSeconds": 1.0},
        });
        // A gateway of an object with one end reports its own keys.
        if keys.is_array() {
            status["publicKeys"] = keys;
        }
        serde_json::from_value(status).map_err(|error| error.to_string())
    }
}

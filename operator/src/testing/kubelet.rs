//! Healthy gateways in the pods of the API server in memory.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use muxtunnel_gateway_config::status::Status;
use serde_json::json;

use super::FakeApi;
use crate::labels;
use crate::tunnel_controller::build::config_map::expected_hash;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::observe::Gateways;

/// The kind with this name in the API.
pub(crate) fn kind_named(name: &str) -> Kind {
    let mut kinds = Kind::ALL.into_iter();
    kinds.find(|kind| kind.name() == name).unwrap()
}

/// The kind's plural in the API.
pub(crate) const fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Tunnel => "muxtunnels",
        Kind::Exit => "muxexits",
        Kind::Rendezvous => "muxrendezvous",
    }
}

/// Gateways that run the configuration in their ConfigMaps.
#[derive(Clone)]
pub(crate) struct Healthy(pub(crate) FakeApi);

impl Gateways for Healthy {
    async fn status(&self, address: &str) -> Result<Status, String> {
        let pod = self.0.pod_at(address).ok_or("no such pod")?;
        let label = |key: &str| pod["metadata"]["labels"][key].as_str().unwrap().to_owned();
        let (component, name) = (label(labels::COMPONENT), label(labels::OWNER_NAME));
        let kind = kind_named(&label(labels::OWNER_KIND));
        let end = End::ALL
            .into_iter()
            .find(|end| end.component() == component);
        let end = end.ok_or("no gateway")?;
        let path = format!("configmaps/{}", kind.child(end, &name));
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
        let owner = self.0.get(&format!("{}/{name}", plural(kind)));
        let owner = owner.ok_or("no such object")?;
        let keys = owner["status"]["publicKeys"].clone();
        let role = match end {
            End::Entry => "Entry",
            End::Exit => "Exit",
            End::Rendezvous => "Rendezvous",
        };
        let carrier = json!({
            "peer": "10.0.0.1:64000", "uptimeSeconds": 1.0, "rttMilliseconds": 100.0,
            "rttMinMilliseconds": 100.0, "congestionControl": "cubic", "bytesSent": 1,
            "bytesReceived": 1, "retransmits": 0, "congestionWindow": 10, "streams": 0,
            "receiveBudgetUsed": 0,
        });
        let mut status = json!({
            "version": "1", "role": role,
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

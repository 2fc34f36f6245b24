//! What other controllers, the scheduler and the kubelets do, at once: a pod for each replica, which
//! runs; and gateways in them that say all is well.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use muxtunnel_gateway_config::status::Status;
use serde_json::{Value, json};

use super::FakeApi;
use crate::labels;
use crate::tunnel_controller::build::config_map::expected_hash;
use crate::tunnel_controller::observe::Gateways;

impl FakeApi {
    /// Brings the pods of all Deployments up that have none yet.
    pub(crate) fn run_pods(&self) {
        let deployments: Vec<Value> = {
            let world = self.lock();
            let all = world.objects.iter();
            all.filter(|(path, _)| path.starts_with("deployments/"))
                .map(|(_, stored)| stored.object.clone())
                .collect()
        };
        for mut deployment in deployments {
            let name = deployment["metadata"]["name"].as_str().unwrap().to_owned();
            let replicas = deployment["spec"]["replicas"].as_i64().unwrap();
            let template = deployment["spec"]["template"].clone();
            for index in 0..replicas {
                let path = format!("pods/{name}-{index}");
                if self.get(&path).is_none() {
                    let number = self.lock().version;
                    let address = format!("10.{}.{}.1", number >> 8 & 255, number & 255);
                    self.put(&path, pod(&template, &name, &address));
                }
            }
            let status = json!({
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": replicas, "readyReplicas": replicas, "updatedReplicas": replicas,
            });
            if deployment["status"] != status {
                deployment["status"] = status;
                self.put(&format!("deployments/{name}"), deployment);
            }
        }
    }
}

impl FakeApi {
    /// Autoscalers that see no load: as few pods as they may leave.
    pub(crate) fn run_autoscalers(&self) {
        let autoscalers: Vec<Value> = {
            let world = self.lock();
            let all = world.objects.iter();
            all.filter(|(path, _)| path.starts_with("horizontalpodautoscalers/"))
                .map(|(_, stored)| stored.object["spec"].clone())
                .collect()
        };
        for spec in autoscalers {
            let name = spec["scaleTargetRef"]["name"].as_str().unwrap();
            let replicas = json!({"spec": {"replicas": spec["minReplicas"]}});
            let path = format!("deployments/{name}");
            let mut world = self.lock();
            if world.objects.contains_key(&path) {
                world.scale(&path, &replicas);
            }
            self.wake(&world);
        }
    }

    /// Ends all Jobs that are not over well.
    pub(crate) fn run_jobs(&self) {
        let jobs: Vec<(String, Value)> = {
            let world = self.lock();
            let all = world.objects.iter();
            all.filter(|(path, stored)| {
                path.starts_with("jobs/") && stored.object["status"].is_null()
            })
            .map(|(path, stored)| (path.clone(), stored.object.clone()))
            .collect()
        };
        for (path, mut job) in jobs {
            job["status"] = json!({"conditions": [{
                "type": "Complete", "status": "True", "lastTransitionTime": "2030-01-01T00:00:00Z",
            }]});
            self.put(&path, job);
        }
    }
}

fn pod(template: &Value, deployment: &str, address: &str) -> Value {
    json!({
        "metadata": {"labels": template["metadata"]["labels"], "annotations": {"of": deployment}},
        "spec": template["spec"],
        "status": {
            "phase": "Running", "podIP": address,
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{
                "name": "gateway", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
                "state": {"running": {}},
            }],
        },
    })
}

/// Where tests put what [`Healthy`] gateways say that the exit offers.
pub(crate) const OFFER: &str = "offers/exit";

/// Gateways that run what their ConfigMaps say.
#[derive(Clone)]
pub(crate) struct Healthy(pub(crate) FakeApi);

impl Gateways for Healthy {
    /// What a test has put there.
    async fn offer(&self, _address: &str) -> Result<String, String> {
        let offer = self.0.get(OFFER).ok_or("the exit offers nothing")?;
        Ok(offer["offer"].as_str().unwrap().to_owned())
    }

    async fn status(&self, address: &str) -> Result<Status, String> {
        let pod = {
            let world = self.0.lock();
            let is_it = |object: &&Value| object["status"]["podIP"] == address;
            let mut objects = world.objects.values().map(|stored| &stored.object);
            objects.find(is_it).cloned().ok_or("no such pod")?
        };
        let label = |key: &str| pod["metadata"]["labels"][key].as_str().unwrap().to_owned();
        let component = label(labels::COMPONENT);
        let path = format!("configmaps/{}-{component}", label(labels::INSTANCE));
        let config_map = self.0.get(&path).ok_or("no such ConfigMap")?;
        let config_map: ConfigMap = serde_json::from_value(config_map).unwrap();
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
        let issued = &tunnel["status"]["certificates"][&component];
        let carrier = json!({
            "peer": "10.0.0.1:64000", "uptimeSeconds": 1.0, "rttMilliseconds": 100.0,
            "rttMinMilliseconds": 100.0, "congestionControl": "cubic", "bytesSent": 1,
            "bytesReceived": 1, "retransmits": 0, "congestionWindow": 10, "streams": 0,
            "receiveBudgetUsed": 0,
        });
        let mut status = json!({
            "version": "1", "role": if component == "entry" { "Entry" } else { "Exit" },
            "protocol": "Native", "configHash": expected_hash(&config_map), "ready": true,
            "draining": false, "sysctls": sysctls, "carriers": [carrier],
            "streams": {
                "open": 0, "opened": 0, "bytesSent": 0, "bytesReceived": 0, "closed": {},
                "refused": {},
            },
            "process": {"cpuSeconds": 0.0, "maxRssBytes": 0, "uptimeSeconds": 1.0},
        });
        if issued["fingerprint"].is_string() {
            status["certificate"] = json!({
                "fingerprint": issued["fingerprint"],
                "notBefore": issued["issuedAt"], "notAfter": issued["notAfter"],
            });
        }
        serde_json::from_value(status).map_err(|error| error.to_string())
    }
}

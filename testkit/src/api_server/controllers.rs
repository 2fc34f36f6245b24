//! Acts as the other controllers, the scheduler and the kubelets at the same time: creates a
//! running pod for each replica.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use super::FakeApi;

impl FakeApi {
    /// Creates running pods for all Deployments without pods.
    pub fn run_pods(&self) {
        let deployments: Vec<Value> = {
            let world = self.lock();
            let runs = |deployment: &Value| {
                let (name, replicas) = name_and_replicas(deployment);
                let mut pods = (0..replicas).map(|index| format!("pods/{name}-{index}"));
                deployment["status"] == running(deployment)
                    && pods.all(|path| world.objects.get(&path).is_some())
            };
            let all = world.objects.of("deployments");
            all.filter(|(_, stored)| !runs(&stored.object))
                .map(|(_, stored)| stored.object.clone())
                .collect()
        };
        for mut deployment in deployments {
            let (name, replicas) = name_and_replicas(&deployment);
            let name = name.to_owned();
            let template = deployment["spec"]["template"].clone();
            for index in 0..replicas {
                let path = format!("pods/{name}-{index}");
                if self.get(&path).is_none() {
                    let number = self.lock().version;
                    let address = format!("10.{}.{}.1", number >> 8 & 255, number & 255);
                    self.put_pod_of(&name, &path, pod(&template, &name, &address));
                }
            }
            let status = running(&deployment);
            if deployment["status"] != status {
                deployment["status"] = status;
                self.put(&format!("deployments/{name}"), deployment);
            }
        }
    }
}

fn name_and_replicas(deployment: &Value) -> (&str, i64) {
    let name = deployment["metadata"]["name"].as_str().unwrap();
    (name, deployment["spec"]["replicas"].as_i64().unwrap())
}

/// The status of a Deployment whose pods all run.
fn running(deployment: &Value) -> Value {
    let replicas = &deployment["spec"]["replicas"];
    json!({
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": replicas, "readyReplicas": replicas, "updatedReplicas": replicas,
    })
}

impl FakeApi {
    /// Stores a pod of the ReplicaSet of a Deployment's newest template.
    pub fn put_pod_of(&self, deployment: &str, path: &str, mut pod: Value) {
        let set = self.replica_set(deployment);
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set["metadata"]["name"],
            "uid": set["metadata"]["uid"], "controller": true,
        }]);
        self.put(path, pod);
        // Counts the ready pods of the ReplicaSet.
        let mut set = self.replica_set(deployment);
        let ready = {
            let world = self.lock();
            let is_ready = |path: &String| {
                let pod = world.objects.get(path).unwrap();
                let conditions = pod.object["status"]["conditions"].to_string();
                conditions.contains("\"Ready\"")
            };
            let uid = set["metadata"]["uid"].as_str().unwrap();
            let pods = world.objects.owned_by(uid).into_iter();
            pods.filter(|path| path.starts_with("pods/") && is_ready(path))
                .count()
        };
        if set["status"]["readyReplicas"] != json!(ready) {
            set["status"] = json!({"replicas": ready, "readyReplicas": ready});
            let name = set["metadata"]["name"].as_str().unwrap().to_owned();
            self.put(&format!("replicasets/{name}"), set);
        }
    }

    /// The pod with the IP address `address`.
    pub fn pod_at(&self, address: &str) -> Option<Value> {
        let world = self.lock();
        let pod = world.objects.at_address(address)?;
        Some(pod.object.clone())
    }

    /// The ReplicaSet of a Deployment's newest template, created if necessary.
    fn replica_set(&self, deployment: &str) -> Value {
        let deployment = self.get(&format!("deployments/{deployment}")).unwrap();
        let mut template = deployment["spec"]["template"].clone();
        let mut hasher = DefaultHasher::new();
        template.to_string().hash(&mut hasher);
        let hash = format!("{:016x}", hasher.finish())[..8].to_owned();
        template["metadata"]["labels"]["pod-template-hash"] = json!(hash);
        let name = format!(
            "{}-{hash}",
            deployment["metadata"]["name"].as_str().unwrap()
        );
        let path = format!("replicasets/{name}");
        if self.get(&path).is_none() {
            let sets = self.lock().objects.of("replicasets").count();
            self.put(&path, json!({
                "apiVersion": "apps/v1", "kind": "ReplicaSet",
                "metadata": {
                    "name": name, "labels": template["metadata"]["labels"],
                    "annotations": {"deployment.kubernetes.io/revision": (sets + 1).to_string()},
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "Deployment",
                        "name": deployment["metadata"]["name"],
                        "uid": deployment["metadata"]["uid"], "controller": true,
                    }],
                },
                "spec": {"replicas": 1, "selector": deployment["spec"]["selector"], "template": template},
            }));
        }
        self.get(&path).unwrap()
    }
}

impl FakeApi {
    /// Runs the autoscalers without load: they set the least number of pods.
    pub fn run_autoscalers(&self) {
        let autoscalers: Vec<Value> = {
            let world = self.lock();
            let all = world.objects.of("horizontalpodautoscalers");
            all.map(|(_, stored)| stored.object["spec"].clone())
                .collect()
        };
        for spec in autoscalers {
            let name = spec["scaleTargetRef"]["name"].as_str().unwrap();
            let replicas = json!({"spec": {"replicas": spec["minReplicas"]}});
            let path = format!("deployments/{name}");
            let mut world = self.lock();
            if world.objects.get(&path).is_some() {
                world.scale(&path, &replicas);
            }
            self.wake(&world);
        }
    }

    /// Completes all Jobs that have not succeeded.
    pub fn run_jobs(&self) {
        let jobs: Vec<(String, Value)> = {
            let world = self.lock();
            let all = world.objects.of("jobs");
            all.filter(|(_, stored)| stored.object["status"].is_null())
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
    let mut annotations = template["metadata"]["annotations"].clone();
    annotations["of"] = json!(deployment);
    json!({
        "metadata": {"labels": template["metadata"]["labels"], "annotations": annotations},
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

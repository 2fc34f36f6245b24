//! `--probe`: short-lived pods that test a node for the sysctls and kernel features of gateways.
//!
//! Each question has its own pod, so a refused pod leaves only its own question without an answer.
//! The pods never restart, and end by themselves after [`PODS_END`]. The program deletes the pods
//! after they have answered, and also if it is interrupted.

use std::pin::pin;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use muxtunnel_codes::Code;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, timeout};

use super::fix::{self, Right};
use super::{Check, Finding};
use crate::cluster::{Cluster, failed, in_words, refusal};
use crate::end::Failure;
use crate::object;
use muxtunnel_contract::sysctls;

/// Time-out for the answer of a pod, including the pull of its image.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);
/// Time after which the kubelet ends a pod that is still running.
const PODS_END: Duration = Duration::from_secs(180);
/// Interval between two reads of a pod.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time-out of each request after an interruption.
const GRACE: Duration = Duration::from_secs(5);
/// Name of the pod's only container.
const CONTAINER: &str = "probe";
const REPORT: &str = "/run/muxwan/report.json";

/// The images of the pods.
pub(super) struct Images {
    pub(super) gateway: String,
    pub(super) netem: String,
}

/// The questions that pods answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// Whether the node accepts the sysctls of every gateway and of `tuning.profile`. All of them
    /// are safe sysctls.
    Sysctls,
    /// Whether UDP sockets get buffers of the size that gateways request.
    UdpBuffers,
    /// Whether the kernel's netem can delay packets.
    Netem,
    /// Whether NFQUEUE can delay packets.
    Nfqueue,
    /// Whether /dev/net/tun can be opened.
    Tun,
}

const QUESTIONS: [Question; 5] = [
    Question::Sysctls,
    Question::UdpBuffers,
    Question::Netem,
    Question::Nfqueue,
    Question::Tun,
];

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Yes,
    /// The node does not have the feature. The text is the message of the pod or of the kubelet.
    No(String),
    /// The namespace does not admit the pod.
    NotAdmitted(String),
    /// The pod gave no answer. The text is the reason.
    Unknown(String),
}

/// Answers all questions for one node.
///
/// # Errors
/// If pods cannot be created or read. Even then, the program deletes its pods if the API server
/// permits it.
pub(super) async fn node(
    cluster: &Cluster,
    node: &str,
    images: &Images,
) -> Result<Vec<Check>, Failure> {
    eprintln!(
        "testing node {node} with {} pods in namespace {}",
        QUESTIONS.len(),
        cluster.namespace
    );
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    // From here on the program deletes its pods before it ends.
    let interruption = interruption().map_err(anyhow::Error::from)?;
    let mut interruption = pin!(interruption);
    let mut made = Vec::new();
    let mut is_interrupted = false;
    for question in QUESTIONS {
        let mut creation = pin!(create(&api, question, node, images));
        let pod = tokio::select! {
            pod = &mut creation => Some(pod),
            () = &mut interruption => {
                is_interrupted = true;
                // Waits for a pending creation, because a pod can be deleted only once its name is
                // known.
                timeout(GRACE, creation).await.ok()
            }
        };
        made.extend(pod.map(|pod| (question, pod)));
        if is_interrupted {
            break;
        }
    }
    let asked = made.iter().map(|(_, pod)| answered(cluster, &api, pod));
    let answers = if is_interrupted {
        None
    } else {
        tokio::select! {
            answers = join_all(asked) => Some(answers),
            () = &mut interruption => None,
        }
    };
    for name in made.iter().filter_map(|(_, pod)| pod.as_ref().ok()) {
        let how = DeleteParams::default().grace_period(0);
        let why = match timeout(GRACE, api.delete(name, &how)).await {
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => in_words(&error),
            Err(_) => "the API server has not answered".to_owned(),
        };
        eprintln!(
            "cannot delete pod {name} in namespace {}: {why}",
            cluster.namespace
        );
    }
    let Some(answers) = answers else {
        return Err(Failure::Failed(anyhow::anyhow!(
            "interrupted; the pods are deleted"
        )));
    };
    let answers: Vec<_> = answers.into_iter().collect::<Result<_, _>>()?;
    Ok(judge(node, &cluster.namespace, &answers))
}

/// Returns a future that completes at SIGINT or SIGTERM, even if the signal arrives before the
/// first poll.
fn interruption() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Creates a pod. Returns its name, or the answer if the pod is not admitted.
async fn create(
    api: &Api<Pod>,
    question: Question,
    node: &str,
    images: &Images,
) -> Result<String, Result<Answer, kube::Error>> {
    let pod = serde_json::from_value(pod(question, node, images));
    let pod = pod.map_err(|error| Err(kube::Error::SerdeError(error)))?;
    match api.create(&PostParams::default(), &pod).await {
        Ok(pod) => Ok(pod.name_any()),
        Err(kube::Error::Api(status)) if status.message.contains("violates PodSecurity") => {
            Err(Ok(Answer::NotAdmitted(status.message)))
        }
        Err(error) if refusal(&error) == Some(403) => Err(Ok(Answer::Unknown(in_words(&error)))),
        Err(error) => Err(Err(error)),
    }
}

fn pod(question: Question, node: &str, images: &Images) -> Value {
    let (name, image, command) = match question {
        Question::Sysctls => (
            "sysctls",
            &images.gateway,
            vec!["/usr/local/bin/muxgate", "--version"],
        ),
        Question::UdpBuffers => (
            "udp-buffers",
            &images.gateway,
            vec!["/usr/local/bin/muxgate", "udp-buffers"],
        ),
        Question::Netem => ("netem", &images.netem, muxwan("netem")),
        Question::Nfqueue => ("nfqueue", &images.netem, muxwan("nfqueue")),
        // The shell only opens the device.
        Question::Tun => (
            "tun",
            &images.netem,
            vec!["/bin/sh", "-c", "exec 3<>/dev/net/tun"],
        ),
    };
    let mut container = container(question, image, &command);
    let mut spec = json!({
        "nodeName": node,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": PODS_END.as_secs(),
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    });
    match question {
        Question::Sysctls => {
            let all = [sysctls::UNPRIVILEGED_PORT_START].into_iter();
            let all = all.chain(sysctls::WAN.iter().copied());
            let sysctls = all.map(|(name, value)| json!({"name": name, "value": value}));
            spec["securityContext"]["sysctls"] = sysctls.collect();
        }
        Question::Netem | Question::Nfqueue => {
            container["volumeMounts"] = json!([{"name": "run", "mountPath": "/run"}]);
            spec["volumes"] = json!([{"name": "run", "emptyDir": {}}]);
        }
        Question::UdpBuffers | Question::Tun => {}
    }
    spec["containers"] = json!([container]);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": format!("muxtunnel-check-{name}-"),
            "labels": {
                "app.kubernetes.io/name": "muxtunnel-check",
                "app.kubernetes.io/component": name,
                "app.kubernetes.io/managed-by": "muxtunnel-cli",
            },
        },
        "spec": spec,
    })
}

fn container(question: Question, image: &str, command: &[&str]) -> Value {
    let mut container = json!({
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": security(question),
    });
    if question == Question::Nfqueue {
        // muxwan keeps running. The startup probe passes when muxwan has measured the delay.
        container["startupProbe"] = json!({
            "exec": {"command": ["/usr/local/bin/muxwan", "check", "--report", REPORT]},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": ANSWER_WITHIN.as_secs(),
        });
    }
    container
}

fn muxwan(backend: &str) -> Vec<&str> {
    let run = "/usr/local/bin/muxwan run --delay 5ms --port 64000 --report";
    run.split(' ')
        .chain([REPORT, "--backend", backend])
        .collect()
}

/// The security context of the container: that of gateways or of WAN emulation. A pod that opens a
/// device of the node needs more rights.
fn security(question: Question) -> Value {
    match question {
        Question::Sysctls | Question::UdpBuffers => json!({
            "runAsNonRoot": true,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        }),
        Question::Netem | Question::Nfqueue => json!({
            "runAsUser": 0,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        }),
        Question::Tun => json!({"runAsUser": 0, "privileged": true}),
    }
}

/// Reads a pod until it has answered.
async fn answered(
    cluster: &Cluster,
    api: &Api<Pod>,
    made: &Result<String, Result<Answer, kube::Error>>,
) -> Result<Answer, Failure> {
    let name = match made {
        Ok(name) => name,
        Err(Ok(answer)) => return Ok(answer.clone()),
        Err(Err(error)) => {
            return Err(Failure::Failed(anyhow::anyhow!(
                "cannot create a test pod: {}",
                in_words(error)
            )));
        }
    };
    let deadline = Instant::now() + ANSWER_WITHIN;
    loop {
        let pod = api
            .get(name)
            .await
            .map_err(|error| failed(&format!("cannot read pod {name}"), error))?;
        if let Some(answer) = answer(&pod) {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            let events = object::events(&cluster.client, &pod).await;
            let last = match &events {
                Ok(events) => events.last().map(object::in_a_line),
                Err(error) => Some(format!(
                    "the pod's Events cannot be read: {}",
                    in_words(error)
                )),
            };
            let last = last.map_or_else(String::new, |event| format!("; {event}"));
            let within = ANSWER_WITHIN.as_secs();
            return Ok(Answer::Unknown(format!(
                "pod {name} has not answered within {within}s{last}"
            )));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The answer of a pod, or `None` if it has not answered.
fn answer(pod: &Pod) -> Option<Answer> {
    let status = pod.status.as_ref()?;
    // The kubelet refuses the whole pod.
    if status.reason.as_deref() == Some("SysctlForbidden") {
        return Some(Answer::No(
            status.message.clone().unwrap_or("SysctlForbidden".into()),
        ));
    }
    let container = status
        .container_statuses
        .iter()
        .flatten()
        .find(|one| one.name == CONTAINER);
    if let Some(container) = container {
        let ContainerState {
            terminated,
            waiting,
            running,
        } = container.state.clone().unwrap_or_default();
        if let Some(ended) = terminated {
            let message = ended.message.filter(|message| !message.trim().is_empty());
            let said = || {
                message.unwrap_or_else(|| format!("the pod ended with status {}", ended.exit_code))
            };
            return Some(match ended.exit_code {
                0 => Answer::Yes,
                _ => Answer::No(said().trim().to_owned()),
            });
        }
        // A pod with a startup probe keeps running, so the probe gives its answer.
        let stays = pod
            .spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .any(|one| one.startup_probe.is_some());
        if stays && running.is_some() && container.started == Some(true) {
            return Some(Answer::Yes);
        }
        let waiting = waiting.filter(|waiting| {
            let final_ = [
                "ImagePullBackOff",
                "InvalidImageName",
                "ErrImageNeverPull",
                "CreateContainerConfigError",
            ];
            waiting
                .reason
                .as_deref()
                .is_some_and(|reason| final_.contains(&reason))
        });
        if let Some(waiting) = waiting {
            let text = format!(
                "{}: {}",
                waiting.reason.unwrap_or_default(),
                waiting.message.unwrap_or_default()
            );
            return Some(Answer::Unknown(text));
        }
    }
    (status.phase.as_deref() == Some("Failed")).then(|| {
        let reason = status.reason.clone().unwrap_or("the pod failed".into());
        let message = status
            .message
            .clone()
            .map_or_else(String::new, |text| format!(": {text}"));
        Answer::Unknown(format!("{reason}{message}"))
    })
}

/// Converts the answers, in the order of [`QUESTIONS`], into checks. WAN emulation needs only one
/// of its two mechanisms.
fn judge(node: &str, namespace: &str, answers: &[Answer]) -> Vec<Check> {
    let some_delay = QUESTIONS.iter().zip(answers).any(|(question, answer)| {
        matches!(question, Question::Netem | Question::Nfqueue) && *answer == Answer::Yes
    });
    QUESTIONS
        .iter()
        .zip(answers)
        .map(|(question, answer)| {
            let (what, code, fix) = if_not(*question, node, namespace);
            let description = format!("{node}: {what}");
            let needed = match question {
                Question::Sysctls => true,
                Question::Netem | Question::Nfqueue => !some_delay,
                // These are only warnings: small buffers only make carriers over UDP slower, and
                // only tunnels with `spec.network` need TUN.
                Question::UdpBuffers | Question::Tun => false,
            };
            let (code, cause, fix) = match answer {
                Answer::Yes => return Check::good(description),
                Answer::No(said) if is_answer(*question, said) => (code, said.clone(), fix),
                Answer::NotAdmitted(said) => (
                    Code::PodSecurityTooStrict,
                    said.clone(),
                    fix::privileged(namespace),
                ),
                Answer::No(said) | Answer::Unknown(said) => {
                    let right = Right::new("create", "", "pods", Some(namespace));
                    let fix = match said.contains("forbidden") {
                        true => right.missing().fix,
                        false => format!("kubectl describe node {node}"),
                    };
                    (Code::ProbeInconclusive, said.clone(), fix)
                }
            };
            let finding = Finding::new(code, cause, fix);
            match needed {
                true => Check::finding(description, finding),
                false => Check::warning(description, finding),
            }
        })
        .collect()
}

/// The statement to check, the code if it is false, and the command that fixes it.
fn if_not(question: Question, node: &str, namespace: &str) -> (&'static str, Code, String) {
    match question {
        Question::Sysctls => (
            "the safe sysctls of gateways are accepted",
            Code::SysctlForbidden,
            format!("kubectl get node {node} -o jsonpath={{.status.nodeInfo.kubeletVersion}}"),
        ),
        Question::UdpBuffers => (
            "UDP buffers have the size that gateways request",
            Code::UdpBuffersSmall,
            fix::udp_buffers(node, namespace),
        ),
        Question::Netem => (
            "kernel netem works",
            Code::WanUnsupported,
            load(node, namespace, "sch_netem"),
        ),
        Question::Nfqueue => (
            "NFQUEUE works",
            Code::WanUnsupported,
            load(node, namespace, "xt_NFQUEUE nfnetlink_queue"),
        ),
        Question::Tun => (
            "/dev/net/tun can be opened",
            Code::TunMissing,
            load(node, namespace, "tun"),
        ),
    }
}

/// Whether a pod's message is a result about the node. A gateway of an older version does not know
/// the command, so its message is a usage error.
fn is_answer(question: Question, said: &str) -> bool {
    question != Question::UdpBuffers || said.contains(sysctls::RMEM_MAX)
}

/// The command that loads kernel modules on a node.
fn load(node: &str, namespace: &str, modules: &str) -> String {
    fix::on_node(node, namespace, &format!("modprobe -a {modules}"))
}

#[cfg(test)]
mod tests;

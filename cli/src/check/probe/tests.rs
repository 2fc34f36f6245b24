use super::*;
use crate::check::Verdict;

fn images() -> Images {
    Images {
        gateway: "gateway:1".into(),
        netem: "netem:1".into(),
    }
}

fn seen(question: Question, status: Value) -> Option<Answer> {
    let mut value = pod(question, "n", &images());
    value["status"] = status;
    answer(&serde_json::from_value(value).unwrap())
}

fn container(state: Value) -> Value {
    json!({"containerStatuses": [{
        "name": CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "started": true, "state": state,
    }]})
}

#[test]
fn pods_are_on_the_node_have_our_images_and_do_not_outlive_us() {
    for question in QUESTIONS {
        let value = pod(question, "n", &images());
        let pod: Pod = serde_json::from_value(value.clone()).unwrap();
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("n"));
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        assert_eq!(spec.active_deadline_seconds, Some(180));
        assert_eq!(spec.automount_service_account_token, Some(false));
        let wanted = if question == Question::Sysctls {
            "gateway:1"
        } else {
            "netem:1"
        };
        assert_eq!(spec.containers[0].image.as_deref(), Some(wanted));
    }
    // What only asks for sysctls fits into the level restricted, as gateways do.
    let restricted =
        &pod(Question::Sysctls, "n", &images())["spec"]["containers"][0]["securityContext"];
    assert_eq!(restricted["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(restricted["runAsNonRoot"], true);
}

#[test]
fn an_exit_status_or_a_started_delay_line_is_an_answer() {
    let ended = |code: i32, message: &str| {
        container(json!({"terminated": {"exitCode": code, "message": message}}))
    };
    assert_eq!(seen(Question::Netem, ended(0, "")), Some(Answer::Yes));
    let refused = "MT0404 WanUnsupported: no path can be emulated here";
    assert_eq!(
        seen(Question::Netem, ended(3, refused)),
        Some(Answer::No(refused.into()))
    );
    assert_eq!(
        seen(Question::Tun, ended(2, "")),
        Some(Answer::No("it ended with status 2".into()))
    );
    let running = container(json!({"running": {}}));
    assert_eq!(seen(Question::Nfqueue, running.clone()), Some(Answer::Yes));
    assert_eq!(seen(Question::Netem, running), None);
    assert_eq!(seen(Question::Netem, json!({"phase": "Pending"})), None);
}

#[test]
fn what_the_kubelet_refuses_is_an_answer_and_what_it_cannot_pull_is_none() {
    let refused =
        json!({"phase": "Failed", "reason": "SysctlForbidden", "message": "forbidden sysctl"});
    assert_eq!(
        seen(Question::Sysctls, refused),
        Some(Answer::No("forbidden sysctl".into()))
    );
    let pull =
        container(json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}));
    assert_eq!(
        seen(Question::Tun, pull),
        Some(Answer::Unknown("ImagePullBackOff: no such image".into()))
    );
    let evicted = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "too little"});
    assert_eq!(
        seen(Question::Tun, evicted),
        Some(Answer::Unknown("OutOfcpu: too little".into()))
    );
}

#[test]
fn one_way_to_emulate_a_wan_is_enough_and_tun_is_never_needed() {
    let no = || Answer::No("no".into());
    let kinds = |answers: &[Answer]| -> Vec<_> {
        let kind = |check: Check| match check.verdict {
            Verdict::Good => "good".to_owned(),
            Verdict::Warning(finding) => format!("warning {}", finding.code),
            Verdict::Finding(finding) => format!("finding {}", finding.code),
            Verdict::Skipped(_) => "skipped".to_owned(),
        };
        judge("n", "ns", answers).into_iter().map(kind).collect()
    };
    assert_eq!(
        kinds(&[Answer::Yes, no(), Answer::Yes, no()]),
        ["good", "warning MT0404", "good", "warning MT0390"]
    );
    assert_eq!(
        kinds(&[no(), no(), no(), Answer::Yes]),
        ["finding MT0308", "finding MT0404", "finding MT0404", "good"]
    );
    let kept_out = Answer::NotAdmitted("violates PodSecurity".into());
    let unknown = Answer::Unknown("slow".into());
    assert_eq!(
        kinds(&[unknown.clone(), kept_out.clone(), kept_out, unknown]),
        [
            "finding MT0389",
            "finding MT0388",
            "finding MT0388",
            "warning MT0389"
        ]
    );
}

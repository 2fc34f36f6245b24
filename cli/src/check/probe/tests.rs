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
        let is_gateways = matches!(question, Question::Sysctls | Question::UdpBuffers);
        let wanted = if is_gateways { "gateway:1" } else { "netem:1" };
        assert_eq!(spec.containers[0].image.as_deref(), Some(wanted));
    }
    // Pods for questions without a device and without a delay meet the Pod Security level
    // restricted, like gateways.
    for question in [Question::Sysctls, Question::UdpBuffers] {
        let pod = pod(question, "n", &images());
        let restricted = &pod["spec"]["containers"][0]["securityContext"];
        assert_eq!(restricted["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(restricted["runAsNonRoot"], true);
    }
}

#[test]
fn an_exit_status_or_a_started_delay_line_is_an_answer() {
    let ended = |code: i32, message: &str| {
        container(json!({"terminated": {"exitCode": code, "message": message}}))
    };
    assert_eq!(seen(Question::Netem, ended(0, "")), Some(Answer::Yes));
    let refused = "MT0404 WanUnsupported: no backend can emulate a path in this network namespace";
    assert_eq!(
        seen(Question::Netem, ended(3, refused)),
        Some(Answer::No(refused.into()))
    );
    assert_eq!(
        seen(Question::Tun, ended(2, "")),
        Some(Answer::No("the pod ended with status 2".into()))
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
fn one_way_to_emulate_a_wan_is_enough_and_neither_buffers_nor_tun_are_needed() {
    let no = || Answer::No("no".into());
    let small = || Answer::No("net.core.rmem_max is 212992".into());
    let kinds = |answers: &[Answer]| -> Vec<_> {
        let kind = |check: Check| match check.verdict {
            Verdict::Good => "good".to_owned(),
            Verdict::Warning(finding) => format!("warning {}", finding.code),
            Verdict::Finding(finding) => format!("finding {}", finding.code),
            Verdict::Skipped { .. } => "skipped".to_owned(),
        };
        judge("n", "ns", answers).into_iter().map(kind).collect()
    };
    assert_eq!(
        kinds(&[Answer::Yes, small(), no(), Answer::Yes, no()]),
        [
            "good",
            "warning MT0392",
            "warning MT0404",
            "good",
            "warning MT0390"
        ]
    );
    assert_eq!(
        kinds(&[no(), Answer::Yes, no(), no(), Answer::Yes]),
        [
            "finding MT0308",
            "good",
            "finding MT0404",
            "finding MT0404",
            "good"
        ]
    );
    let kept_out = Answer::NotAdmitted("violates PodSecurity".into());
    let unknown = Answer::Unknown("slow".into());
    assert_eq!(
        kinds(&[
            unknown.clone(),
            // A gateway of an older version gives this answer.
            Answer::No("error: unrecognized subcommand 'udp-buffers'".into()),
            kept_out.clone(),
            kept_out,
            unknown
        ]),
        [
            "finding MT0389",
            "warning MT0389",
            "finding MT0388",
            "finding MT0388",
            "warning MT0389"
        ]
    );
}

#[test]
fn small_buffers_are_told_with_what_to_set_on_which_node() {
    let said = "muxgate: net.core.rmem_max is 212992 and net.core.wmem_max is 212992";
    let mut answers = vec![Answer::Yes; QUESTIONS.len()];
    answers[1] = Answer::No(said.into());
    let checks = judge("n", "ns", &answers);
    let Verdict::Warning(finding) = &checks[1].verdict else {
        panic!("{checks:?}");
    };
    assert_eq!(finding.cause, said);
    let debug = "kubectl debug node/n -n ns --profile=sysadmin --image=busybox -- chroot /host";
    let expected = [
        format!("{debug} sysctl -w net.core.rmem_max=8388608 net.core.wmem_max=8388608"),
        format!(
            "{debug} sh -c 'sysctl net.core.rmem_max net.core.wmem_max >/etc/sysctl.d/90-muxtunnel.conf'"
        ),
    ];
    assert!(finding.fix.lines().eq(expected), "{}", finding.fix);
}

//! Containers that emulate a wide-area network.

use serde_json::json;

use super::build::pod;
use super::*;

fn with(extra: &str) -> String {
    format!("{SMALLEST}{extra}")
}

#[test]
fn the_delay_line_is_a_sidecar_and_netem_a_container_that_exits() {
    let wan = |extra: &str| {
        pod(&built(&with(extra)), "office-entry")["spec"]["initContainers"][0].clone()
    };
    let line = wan("wanEmulation: {delayMilliseconds: 50}");
    assert_eq!(line["restartPolicy"], "Always");
    assert_eq!(
        line["startupProbe"]["exec"]["command"],
        json!([
            "/usr/local/bin/muxwan",
            "check",
            "--report",
            "/run/muxwan/report.json"
        ])
    );
    let args = "run --delay 50ms --port 443 --backend auto --report /run/muxwan/report.json";
    assert_eq!(line["args"], json!(args.split(' ').collect::<Vec<_>>()));
    let netem = wan("wanEmulation: {delayMilliseconds: 1500, backend: Netem, scope: All}");
    assert!(netem["restartPolicy"].is_null() && netem["startupProbe"].is_null());
    let args = "run --delay 1500ms --all --except-port 64001 --backend netem \
                --report /run/muxwan/report.json";
    assert_eq!(netem["args"], json!(args.split(' ').collect::<Vec<_>>()));
    let impaired = wan(
        "wanEmulation: {delayMilliseconds: 50, jitterMilliseconds: 5, lossPPM: 5000, bitsPerSecond: 100M}",
    );
    let args = "run --delay 50ms --jitter 5ms --loss 0.5000% --rate 100M --port 443 --backend auto \
                --report /run/muxwan/report.json";
    assert_eq!(impaired["args"], json!(args.split(' ').collect::<Vec<_>>()));
}

#[test]
fn net_admin_and_root_are_the_wan_containers_alone() {
    let spec = pod(
        &built(&with("wanEmulation: {delayMilliseconds: 50}")),
        "office-tunnel-exit",
    )["spec"]
        .clone();
    let wan = &spec["initContainers"][0]["securityContext"];
    assert_eq!(wan["runAsUser"], 0);
    assert_eq!(
        wan["capabilities"],
        json!({"drop": ["ALL"], "add": ["NET_ADMIN"]})
    );
    let gateway = &spec["containers"][0]["securityContext"];
    assert_eq!(gateway["capabilities"], json!({"drop": ["ALL"]}));
    assert!(gateway["runAsUser"].is_null());
}

#[test]
fn emulation_is_refused_by_a_class_and_left_out_if_the_delay_is_zero() {
    let off = class_with(|spec| spec["permitted"]["features"] = json!(["Network"]));
    assert_eq!(
        refusal_with(&with("wanEmulation: {delayMilliseconds: 50}"), off),
        "wanEmulation needs the feature WANEmulation, which permitted.features of MuxClass muxtunnel does not have"
    );
    let tunnel = valid(&with("wanEmulation: {delayMilliseconds: 0}"));
    assert!(tunnel.pods.wan.is_none());
    assert!(
        valid(&with(
            "wanEmulation: {delayMilliseconds: 0, lossPPM: 10000}"
        ))
        .pods
        .wan
        .is_some()
    );
}

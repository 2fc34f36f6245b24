//! Runs `muxwan` on real traffic between two network namespaces. The tests need root, `ip` and
//! `iptables` with NFQUEUE. If a requirement is missing, a test fails and names the requirement.

mod support;

use std::{
    fs,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use support::{Link, RTT, assert_delayed, assert_undelayed, round_trips, run_line, transfer};

fn both_ends(link: &Link, flags: &str) -> [support::Muxwan; 2] {
    [
        link.left.muxwan(flags, &link.report("left.json")),
        link.right.muxwan(flags, &link.report("right.json")),
    ]
}

fn addresses(link: &Link) -> [IpAddr; 2] {
    [link.right.ipv4, link.right.ipv6]
}

#[test]
fn both_ends_together_make_an_rtt_of_twice_the_delay_on_the_listed_port_alone() {
    let link = Link::new();
    let _running = both_ends(&link, "--delay 50ms --port 64000 --interface eth0");
    for address in addresses(&link) {
        assert_delayed(&link, address, 64000);
        assert_undelayed(&link, address, 64001);
    }
}

#[test]
fn with_all_traffic_delayed_only_the_spared_port_is_not() {
    let link = Link::new();
    let flags = "--delay 50ms --all --except-port 64001 --interface eth0";
    let _running = both_ends(&link, flags);
    for address in addresses(&link) {
        assert_delayed(&link, address, 7777);
        assert_undelayed(&link, address, 64001);
    }
}

#[test]
fn the_report_gives_the_delay_asked_for_and_the_delay_measured() {
    let link = Link::new();
    let path = link.report("left.json");
    let flags = "--delay 50ms --port 64000 --interface eth0 --backend nfqueue";
    let muxwan = link.left.muxwan(flags, &path);
    let written: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(written, muxwan.report);
    assert_eq!(written["backend"], "nfqueue");
    assert_eq!(written["asked_milliseconds"], 50.0);
    assert_eq!(written["probes"], 20);
    assert_eq!(written["ipv6"], true);
    let measured = written["measured_milliseconds"].as_f64().unwrap();
    assert!((48.5..=51.5).contains(&measured), "{measured}");
    link.left.output(&format!(
        "{} check --report {}",
        env!("CARGO_BIN_EXE_muxwan"),
        path.display()
    ));
}

#[test]
fn sigterm_removes_the_rules_and_the_report_and_ends_with_status_0() {
    let link = Link::new();
    let before = link.left.rules();
    let path = link.report("left.json");
    let mut muxwan = link
        .left
        .muxwan("--delay 50ms --port 64000 --interface eth0", &path);
    assert!(link.left.rules().contains("--queue-num"));
    assert_eq!(muxwan.terminate(), Some(0));
    assert_eq!(link.left.rules(), before);
    assert!(!path.exists());
    assert_undelayed(&link, link.right.ipv4, 64000);
}

#[test]
fn a_start_after_a_kill_replaces_the_rules_that_were_left() {
    let link = Link::new();
    let path = link.report("left.json");
    let before = link.left.rules();
    link.left
        .muxwan("--delay 50ms --port 5001 --interface eth0", &path)
        .kill();
    assert!(link.left.rules().contains("--dport 5001"));
    let mut second = link
        .left
        .muxwan("--delay 50ms --port 64000 --interface eth0", &path);
    let rules = link.left.rules();
    assert!(
        rules.contains("--dport 64000") && !rules.contains("5001"),
        "{rules}"
    );
    // Each family has one jump to the chain.
    assert_eq!(
        rules.matches("-A PREROUTING -j MUXWAN").count(),
        2,
        "{rules}"
    );
    assert_eq!(second.terminate(), Some(0));
    assert_eq!(link.left.rules(), before);
}

#[test]
fn after_a_kill_the_traffic_stops_instead_of_passing_undelayed() {
    let link = Link::new();
    let flags = "--delay 50ms --port 64000 --interface eth0";
    link.right.muxwan(flags, &link.report("right.json")).kill();
    let address = SocketAddr::new(link.right.ipv4, 64000);
    let _listener = link.right.enter(|| TcpListener::bind(address).unwrap());
    let connected = link
        .left
        .enter(|| TcpStream::connect_timeout(&address, 4 * RTT));
    assert_eq!(connected.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn a_second_muxwan_beside_a_running_one_is_refused_and_leaves_it_alone() {
    let link = Link::new();
    let _running = both_ends(&link, "--delay 50ms --port 64000 --interface eth0");
    let rules = link.left.rules();
    let line = format!(
        "{} --delay 10ms --port 1 --interface eth0 --report {}",
        run_line(),
        link.report("second.json").display()
    );
    let (status, message) = link.left.refusal(&line);
    assert_eq!(status, Some(3), "{message}");
    assert!(message.contains("cannot bind the queue"), "{message}");
    assert_eq!(link.left.rules(), rules);
    assert_delayed(&link, link.right.ipv4, 64000);
}

#[test]
fn without_rights_it_refuses_with_status_3_and_says_what_each_attempt_met() {
    let link = Link::new();
    let log = link.report("termination-log");
    fs::write(&log, "").unwrap();
    let report = link.report("report.json");
    fs::write(&report, "stale").unwrap();
    let line = format!(
        "setpriv --bounding-set -net_admin --inh-caps -net_admin {} --delay 50ms --port 64000 \
         --interface eth0 --report {} --termination-log {}",
        run_line(),
        report.display(),
        log.display()
    );
    let (status, message) = link.left.refusal(&line);
    assert_eq!(status, Some(3), "{message}");
    for part in [
        "MT0404 WanUnsupported",
        "netem: `tc ",
        "nfqueue: ",
        "NET_ADMIN",
    ] {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    let logged = fs::read_to_string(&log).unwrap();
    assert_eq!(message, format!("muxwan: {logged}\n"));
    assert!(
        !report.exists(),
        "the report of an earlier run is still there"
    );
}

#[test]
fn a_delay_of_zero_sets_nothing_and_reports_0() {
    let link = Link::new();
    let before = link.left.rules();
    let path = link.report("left.json");
    let mut muxwan = link
        .left
        .muxwan("--delay 0ms --port 64000 --interface eth0", &path);
    assert_eq!(muxwan.report["backend"], "none");
    assert_eq!(muxwan.report["measured_milliseconds"], 0.0);
    assert_eq!(link.left.rules(), before);
    assert_eq!(muxwan.terminate(), Some(0));
}

/// Asserts that the program refuses `flags` as a usage error. `what`: a word of the refusal.
fn assert_usage_error(flags: &str, what: &str) {
    let link = Link::new();
    let report = link.report("report.json");
    let line = format!("{} {flags} --report {}", run_line(), report.display());
    let (status, message) = link.left.refusal(&line);
    assert_eq!(status, Some(2), "{message}");
    assert!(
        message.contains("MT0101") && message.contains(what),
        "{message}"
    );
}

#[test]
fn an_interface_that_is_not_there_is_a_usage_error() {
    assert_usage_error("--delay 50ms --port 64000 --interface eth9", "eth9");
}

#[test]
fn loss_is_of_single_frames_and_a_transfer_survives_it() {
    let link = Link::new();
    let flags = "--delay 5ms --loss 2% --port 64000 --interface eth0 --backend nfqueue";
    let path = link.report("right.json");
    let mut muxwan = link.right.muxwan(flags, &path);
    assert_eq!(muxwan.report["asked_loss_percent"], 2.0);
    let measured = muxwan.report["measured_loss_percent"].as_f64().unwrap();
    assert!((0.5..4.0).contains(&measured), "{measured}");
    // 4 MiB are 2,900 frames, but only 64 super-packets. If whole super-packets were lost, there
    // would be few losses.
    transfer(&link, link.right.ipv4, 64000, 4 << 20);
    assert_eq!(muxwan.terminate(), Some(0));
    let retransmitted = link.left.retransmitted();
    assert!((10..400).contains(&retransmitted), "{retransmitted}");
}

#[test]
fn a_rate_is_what_a_transfer_gets() {
    let link = Link::new();
    let flags = "--delay 2ms --rate 40M --port 64000 --interface eth0 --backend nfqueue";
    let muxwan = link.right.muxwan(flags, &link.report("right.json"));
    let measured = muxwan.report["measured_mbit_s"].as_f64().unwrap();
    assert!((34.0..46.0).contains(&measured), "{measured}");
    let bytes: u64 = 5 << 20;
    let time = transfer(&link, link.right.ipv4, 64000, bytes);
    // The measured rate can differ from the link's rate: headers take a part of the rate, and the
    // first bytes do not wait in a queue.
    let mbit_s = bytes as f64 * 8.0 / time.as_secs_f64() / 1e6;
    assert!(mbit_s < 40.0, "{mbit_s}");
}

#[test]
fn jitter_makes_round_trips_differ_around_the_delay() {
    let link = Link::new();
    let flags = "--delay 50ms --jitter 20ms --port 64000 --interface eth0 --backend nfqueue";
    let _muxwan = link.right.muxwan(flags, &link.report("right.json"));
    let times = round_trips(&link, link.right.ipv4, 64000);
    let least = times.iter().min().unwrap();
    let most = times.iter().max().unwrap();
    assert!(*least >= Duration::from_millis(30), "{least:?}");
    assert!(*most - *least >= Duration::from_millis(10), "{times:?}");
}

#[test]
fn jitter_above_the_delay_is_a_usage_error() {
    assert_usage_error(
        "--delay 5ms --jitter 6ms --port 64000 --interface eth0",
        "jitter",
    );
}

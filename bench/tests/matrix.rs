//! Runs the runner as a process and agents on loopback, with real iperf, and checks the log and the
//! exit status. The test acts as the operator: it offers environments when the log requests them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test panics if it cannot continue"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use muxbench::agent::Agent;
use muxbench::http_client::Client;
use muxbench::token::{Token, sha256_hex};
use muxtunnel_bench_api::Path;
use muxtunnel_bench_api::agent::Info;
use muxtunnel_bench_api::result::{Cell, LOG_WORD, Record, Status, Summary};
use muxtunnel_bench_api::runner::{Environment, Offer, Pair, State, Tunnel, Unavailable};
use muxtunnel_testkit::port::free_port;
use tokio::net::TcpListener;

const TOKEN: &str = "a-token-of-the-tests-0123";
const OPERATOR_TOKEN: &str = "the-operators-own-token-4567";
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(20);

#[tokio::test(flavor = "current_thread")]
async fn the_whole_matrix_is_measured_and_stands_in_the_log() {
    need_iperf();
    let (direct, tunnel) = (pair().await, pair().await);
    let offer = || Offer::Ready(environment(Some(direct.clone()), Some(tunnel.clone())));
    let flags = [
        "--connections=2",
        "--delay-milliseconds=0",
        "--profiles=None,WAN",
        "--protocols=JMUX,Native",
        "--paths=Direct,Tunnel,Network",
        "--duration-seconds=1",
        "--warm-up-seconds=0",
        "--rounds=2",
        "--udp-bits-per-second=5000000",
    ];
    let ended = run(&flags, vec![offer(), offer()]).await;

    assert!(ended.status.success(), "{}", ended.log);
    assert_eq!(ended.cells.len(), 8);
    let routes = [
        (Path::Direct, None),
        (Path::Tunnel, Some("jmux")),
        (Path::Tunnel, Some("native")),
        (Path::Network, Some("native")),
    ];
    for (cell, (path, protocol)) in ended.cells.iter().zip(routes.iter().cycle()) {
        assert_eq!(
            (cell.status, cell.protocol.as_deref()),
            (Status::Ok, *protocol),
            "{}",
            ended.log
        );
        assert_eq!(cell.path, *path);
        assert!(
            cell.mbit_s.is_some_and(|rate| rate.median > 1.0),
            "{cell:?}"
        );
        assert!(
            cell.ratio_to_direct.is_some() && cell.rtt_ms.is_some(),
            "{cell:?}"
        );
        assert!(cell.ratio_to_untuned_direct.is_some(), "{cell:?}");
        assert!(
            cell.iperf
                .as_deref()
                .is_some_and(|version| version.starts_with("2.")),
            "{cell:?}"
        );
    }
    for cell in &ended.cells {
        let measured = cell.path != Path::Tunnel;
        let udp = cell
            .udp
            .filter(|udp| udp.mbit_s > 2.5 && udp.lost_percent < 50.0);
        assert_eq!(udp.is_some(), measured, "{cell:?}");
        let ping_pong = cell.ping_pong;
        let plausible =
            ping_pong.filter(|times| times.p99_us >= times.p50_us && times.p50_us > 0.0);
        assert_eq!(plausible.is_some(), measured, "{cell:?}");
    }
    assert!(ended.log.contains("| network|    5.00 "), "{}", ended.log);
    assert_eq!(ended.summary.ok, 8);
    let progress = "[8/8] network    0 ms  WAN     2 conns begins;";
    assert!(ended.log.contains(progress), "{}", ended.log);
    // The second round begins with another route, but its line has the order of the first round.
    for round in ["round 1/2:  direct ", "round 2/2:  direct "] {
        assert_eq!(ended.log.matches(round).count(), 2, "{}", ended.log);
    }
    assert!(
        ended.log.contains("0 ms WAN       2 | direct |"),
        "{}",
        ended.log
    );
    assert!(
        ended
            .log
            .trim_end()
            .lines()
            .last()
            .is_some_and(|line| line.starts_with("MUXBENCH {\"type\":\"summary\""))
    );
    assert_eq!(ended.termination_message, ended.summary);
    let for_people = ended.log.lines().filter(|line| !line.starts_with(LOG_WORD));
    assert!(
        for_people.clone().all(|line| line.chars().count() <= 100),
        "{}",
        ended.log
    );
}

#[tokio::test(flavor = "current_thread")]
async fn a_cell_that_fails_says_why_and_the_others_still_run() {
    need_iperf();
    let direct = pair().await;
    let mut tunnel = pair().await;
    tunnel.iperf_port = free_port(); // no listener: connections are refused
    let flags = ["--connections=1,2", "--delay-milliseconds=0"];
    let ended = run_brief(
        &flags,
        vec![Offer::Ready(environment(Some(direct), Some(tunnel)))],
    )
    .await;

    assert_eq!(ended.status.code(), Some(1), "{}", ended.log);
    let outcomes: Vec<_> = ended
        .cells
        .iter()
        .map(|cell| (cell.path, cell.status))
        .collect();
    let expected = [(Path::Direct, Status::Ok), (Path::Tunnel, Status::Failed)];
    assert_eq!(outcomes, [expected, expected].concat());
    let failed = &ended.cells[1];
    assert_eq!(failed.code.as_deref(), Some("MT0507"));
    let reason = failed.reason.as_deref().unwrap();
    assert!(
        reason.contains("Connection refused") && reason.contains("0 of 1 connections"),
        "{reason}"
    );
    assert!(ended.log.contains("FAILED MT0507"), "{}", ended.log);
}

#[tokio::test(flavor = "current_thread")]
async fn an_agent_that_is_gone_fails_its_cells_only() {
    need_iperf();
    let direct = pair().await;
    let gone = Pair {
        server_url: format!("http://127.0.0.1:{}", free_port()),
        ..pair().await
    };
    let flags = ["--connections=1", "--delay-milliseconds=0"];
    let ended = run_brief(
        &flags,
        vec![Offer::Ready(environment(Some(direct), Some(gone)))],
    )
    .await;

    assert_eq!(ended.status.code(), Some(1), "{}", ended.log);
    assert_eq!(ended.cells[0].status, Status::Ok);
    assert_eq!(ended.cells[1].code.as_deref(), Some("MT0504"));
    assert!(
        ended.cells[1]
            .reason
            .as_deref()
            .unwrap()
            .contains("cannot be reached")
    );
}

#[tokio::test(flavor = "current_thread")]
async fn a_path_that_is_closed_for_a_moment_is_waited_for() {
    need_iperf();
    let mut direct = pair().await;
    let late = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let echo_port = std::mem::replace(&mut direct.echo_port, late.local_addr().unwrap().port());
    tokio::spawn(forward_late(late, echo_port));
    let flags = [
        "--connections=1",
        "--delay-milliseconds=0",
        "--paths=Direct",
    ];
    let offers = vec![Offer::Ready(environment(Some(direct), None))];
    let ended = run_brief(&flags, offers).await;
    assert!(ended.status.success(), "{}", ended.log);
}

/// Forwards connections to `target`, but closes the first connection, like a node that has not
/// configured the Service of the entry yet.
async fn forward_late(listener: TcpListener, target: u16) {
    drop(listener.accept().await);
    while let Ok((mut near, _)) = listener.accept().await {
        let mut far = tokio::net::TcpStream::connect(("127.0.0.1", target))
            .await
            .unwrap();
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_delay_that_is_not_there_is_refused_and_never_measured() {
    need_iperf();
    // Loopback has no delay, so the runner refuses the environment with 50 ms. The operator refuses
    // the environment with 20 ms.
    let offers = vec![
        Offer::Ready(environment(Some(pair().await), None)),
        Offer::Unavailable(Unavailable {
            status: Status::Refused,
            code: "MT0402".into(),
            reason: "WAN emulation is switched off".into(),
        }),
    ];
    let flags = [
        "--connections=1",
        "--delay-milliseconds=50,20",
        "--paths=Direct",
    ];
    let ended = run_brief(&flags, offers).await;

    assert_eq!(ended.status.code(), Some(1), "{}", ended.log);
    let codes: Vec<_> = ended
        .cells
        .iter()
        .map(|cell| (cell.status, cell.code.as_deref()))
        .collect();
    assert_eq!(
        codes,
        [
            (Status::Refused, Some("MT0506")),
            (Status::Refused, Some("MT0402"))
        ]
    );
    assert!(ended.cells.iter().all(|cell| cell.mbit_s.is_none()));
    assert_eq!((ended.summary.refused, ended.summary.ok), (2, 0));
}

#[tokio::test(flavor = "current_thread")]
async fn an_agent_answers_nobody_without_the_token() {
    need_iperf();
    let url = format!("{}/v1/info", pair().await.client_url);
    let stranger = Client::new(&Token::new("another-token-0123456789").unwrap());
    let error = stranger.get::<Info>(&url, DEADLINE).await.unwrap_err();
    assert!(error.to_string().contains("bearer token"), "{error:#}");
    let friend = Client::new(&Token::new(TOKEN).unwrap());
    assert!(friend.get::<Info>(&url, DEADLINE).await.is_ok());
}

#[test]
fn flags_that_cannot_be_used_end_with_status_2() {
    for flags in [
        vec![
            "run",
            "--connections=0",
            "--delay-milliseconds=0",
            "--token-file=x",
        ],
        vec![
            "run",
            "--connections=1",
            "--delay-milliseconds=50ms",
            "--token-file=x",
        ],
        vec![
            "run",
            "--connections=1",
            "--delay-milliseconds=0",
            "--token-file=/nonexistent",
            "--operator-hash-file=x",
        ],
        vec!["agent"],
        vec!["sideways"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_muxbench"))
            .args(&flags)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(!output.stderr.is_empty(), "{flags:?}");
    }
}

/// The results of a runner.
struct Ended {
    log: String,
    cells: Vec<Cell>,
    summary: Summary,
    termination_message: Summary,
    status: ExitStatus,
}

/// Runs a benchmark with the shortest possible measurements.
async fn run_brief(flags: &[&str], offers: Vec<Offer>) -> Ended {
    let brief = ["--duration-seconds=1", "--warm-up-seconds=0", "--rounds=1"];
    run(&[flags, &brief].concat(), offers).await
}

/// Runs `muxbench run` and offers `offers` in order, when the log requests them.
async fn run(flags: &[&str], offers: Vec<Offer>) -> Ended {
    let directory = tempfile::tempdir().unwrap();
    let token_file = directory.path().join("token");
    let hash_file = directory.path().join("operator-sha256");
    std::fs::write(&hash_file, sha256_hex(OPERATOR_TOKEN.as_bytes())).unwrap();
    let termination_log = directory.path().join("termination-log");
    std::fs::File::create(&token_file)
        .unwrap()
        .write_all(TOKEN.as_bytes())
        .unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_muxbench"))
        .args(["run", "--listen=127.0.0.1:0"])
        .arg(format!("--token-file={}", token_file.display()))
        .arg(format!("--operator-hash-file={}", hash_file.display()))
        .arg(format!("--termination-log={}", termination_log.display()))
        .args(flags)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        stdout
            .lines()
            .map_while(Result::ok)
            .for_each(|line| sender.send(line).unwrap());
    });

    let client = Client::new(&Token::new(OPERATOR_TOKEN).unwrap());
    let (mut url, mut log, mut records) = (String::new(), String::new(), Vec::new());
    let mut offers = offers.into_iter().enumerate();
    while let Some(line) = lines.recv().await {
        log.push_str(&line);
        log.push('\n');
        if let Some(address) = line.strip_prefix("HTTP API for the operator: ") {
            url = format!("http://{address}");
        } else if line.contains(": waiting for its pods; ") {
            let (index, offer) = offers.next().expect("one offer for each environment");
            let url = format!("{url}/v1/environments/{index}");
            client.put::<State>(&url, &offer, DEADLINE).await.unwrap();
        } else if let Some(json) = line.strip_prefix(LOG_WORD) {
            records.push(serde_json::from_str::<Record>(json).unwrap());
        }
        if matches!(records.last(), Some(Record::Summary(_))) && !url.is_empty() {
            let url = std::mem::take(&mut url);
            client
                .put::<State>(&format!("{url}/v1/finished"), &(), DEADLINE)
                .await
                .unwrap();
        }
    }
    reader.join().unwrap();
    let status = wait(child);
    let message: Record = serde_json::from_slice(&std::fs::read(termination_log).unwrap()).unwrap();
    let (Some(Record::Summary(summary)), Record::Summary(termination_message)) =
        (records.pop(), message)
    else {
        panic!("no summary: {log}");
    };
    let cells = records
        .into_iter()
        .map(|record| match record {
            Record::Cell(cell) => cell,
            Record::Summary(_) => panic!("two summaries: {log}"),
        })
        .collect();
    Ended {
        log,
        cells,
        summary,
        termination_message,
        status,
    }
}

fn wait(mut child: Child) -> ExitStatus {
    child.wait().unwrap()
}

/// Both tunnels use the same pair.
fn environment(direct: Option<Pair>, tunnel: Option<Pair>) -> Environment {
    let of = |protocol: &str| {
        tunnel.clone().map(|pair| Tunnel {
            protocol: protocol.into(),
            pair,
            gateway_status_urls: Vec::new(),
        })
    };
    Environment {
        direct,
        tunnels: ["JMUX", "Native"]
            .iter()
            .filter_map(|name| of(name))
            .collect(),
        network: of("Native"),
    }
}

/// A client agent and a server agent, which serve until the test ends.
async fn pair() -> Pair {
    let iperf_port = free_port();
    let (client_url, _) = agent().await;
    let (server_url, echo_port) = agent().await;
    Pair {
        client_url,
        server_url,
        host: "127.0.0.1".into(),
        iperf_port,
        echo_port,
        server_iperf_port: iperf_port,
    }
}

async fn agent() -> (String, u16) {
    let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", http.local_addr().unwrap());
    let echo_port = echo.local_addr().unwrap().port();
    let token = Token::new(TOKEN).unwrap();
    tokio::spawn(
        Agent {
            http,
            echo,
            token,
            iperf: PathBuf::from("iperf"),
        }
        .serve(),
    );
    (url, echo_port)
}

fn need_iperf() {
    let found = Command::new("iperf").arg("-v").output().is_ok();
    assert!(
        found,
        "iperf is not on PATH: install iperf 2 (apt-get install iperf)"
    );
}

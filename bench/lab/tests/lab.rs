//! The lab's own parts with real sockets: each load against the server, both relays in a lab of their
//! own, and what a lab that is killed leaves behind. Needs root, `ip` and `iperf`; a test fails, and
//! says so, where one of them is missing.

// Clippy's exception for tests does not reach the helpers of integration tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

/// How long something may take before a test gives up; nothing here is expected to take as long.
const PATIENCE: Duration = Duration::from_secs(30);
/// By this a process of a test is known, also when its parent is gone.
const MARK: &str = "MUXLAB_TEST";

fn muxlab(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muxlab"));
    command.args(arguments.split_whitespace());
    command
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A `muxlab serve` on a free port.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let child = muxlab(&format!("serve --listen {address}"))
            .spawn()
            .unwrap();
        wait_until("the server", || TcpStream::connect(address).is_ok());
        Self { child, address }
    }

    /// The outcome of a load with this server.
    fn load(&self, line: &str) -> Value {
        let output = muxlab(&format!("load {line} --connect {}", self.address)).output();
        let output = output.unwrap();
        succeeded(&output);
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn succeeded(output: &Output) {
    let [out, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{out}\n{errors}");
}

fn figure(outcome: &Value, name: &str) -> f64 {
    let figure = outcome["figures"][name].as_f64();
    figure.unwrap_or_else(|| panic!("{outcome} has no {name}"))
}

#[test]
fn exchanges_beside_bulk_are_timed() {
    let server = Server::start();
    let outcome = server.load(&format!(
        "ping-pong --server {} --bulk 1 --seconds 1 --warm-up-seconds 0",
        server.address
    ));
    assert!(figure(&outcome, "p50_us") <= figure(&outcome, "p99_us"));
    assert!(figure(&outcome, "bulk_percent") > 0.0);
    assert!(outcome["bytes"].as_u64().unwrap() > 0);
}

#[test]
fn opens_are_counted() {
    let line =
        "opens --sources 127.0.1.1,127.0.1.2 --concurrency 4 --seconds 1 --warm-up-seconds 0";
    assert!(figure(&Server::start().load(line), "opens_s") > 0.0);
}

#[test]
fn a_stalled_reader_is_set_beside_readers() {
    let line = "stalled-reader --readers 2 --seconds 1 --warm-up-seconds 0";
    let outcome = Server::start().load(line);
    assert!(figure(&outcome, "others_percent") > 0.0);
}

#[test]
fn the_shares_of_streams_have_an_index() {
    let outcome = Server::start().load("fairness --streams 3 --seconds 1 --warm-up-seconds 0");
    let index = figure(&outcome, "jain");
    assert!((1.0 / 3.0..=1.0).contains(&index), "{index}");
}

#[test]
fn full_duplex_is_set_against_one_way() {
    let server = Server::start();
    let outcome = server.load(&format!(
        "full-duplex --server {} --one-way-seconds 1 --seconds 1 --warm-up-seconds 0",
        server.address
    ));
    assert!(figure(&outcome, "duplex_percent") > 0.0);
}

#[test]
fn streams_are_held_idle_or_unread() {
    let server = Server::start();
    for stalled in ["", " --stalled"] {
        let outcome = server.load(&format!("hold --streams 20 --seconds 0{stalled}"));
        assert_eq!(figure(&outcome, "streams"), 20.0);
    }
}

#[test]
fn streams_of_a_fixed_size_come_back_byte_for_byte() {
    let line = "fixed-streams --streams 30 --bytes 300001 --patience-seconds 30";
    let outcome = Server::start().load(line);
    assert_eq!(figure(&outcome, "lost_streams"), 0.0);
    assert_eq!(figure(&outcome, "wrong_bytes"), 0.0);
    assert_eq!(outcome["bytes"], 2 * 30 * 300_001);
}

/// The outcome, and what was said, through a path that spoils the answers of its first connection.
fn spoiled(spoil: impl Fn(TcpStream, TcpStream) + Send + 'static) -> (Value, String) {
    let server = Server::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let path = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, near) in listener.incoming().enumerate() {
            let (near, far) = (near.unwrap(), TcpStream::connect(server.address).unwrap());
            let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || copy(from, to));
            if number == 0 {
                spoil(far, near);
            } else {
                thread::spawn(move || copy(far, near));
            }
        }
    });
    let line = "load fixed-streams --streams 3 --bytes 100000 --patience-seconds 30 --connect";
    let output = muxlab(&format!("{line} {path}")).output().unwrap();
    succeeded(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn one_byte_that_is_not_the_one_that_was_sent_is_counted() {
    let (outcome, said) = spoiled(|mut far, mut near| {
        let mut byte = [0];
        far.read_exact(&mut byte).unwrap();
        near.write_all(&[byte[0] ^ 1]).unwrap();
        thread::spawn(move || copy(far, near));
    });
    assert!(said.contains("bytes wrong from offset 0 on"), "{said}");
    assert_eq!(figure(&outcome, "wrong_bytes"), 1.0);
    assert_eq!(figure(&outcome, "lost_streams"), 0.0);
}

#[test]
fn a_stream_that_ends_before_its_bytes_are_complete_is_lost_and_the_others_are_not() {
    let (outcome, said) = spoiled(|far, near| {
        near.shutdown(Shutdown::Write).unwrap();
        thread::spawn(move || copy(far, near));
    });
    assert!(
        said.contains("it ended before all that was sent had come back"),
        "{said}"
    );
    assert_eq!(figure(&outcome, "lost_streams"), 1.0);
    assert_eq!(figure(&outcome, "wrong_bytes"), 0.0);
}

#[test]
fn a_system_whose_streams_end_with_their_connection_has_no_carriers_to_be_cut() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!(
        "--rounds 1 --topologies loopback --congestion-control cubic --scenarios carrier-cuts \
         --systems relay-copy --output {}",
        folder.path().join("results.jsonl").display()
    );
    let output = muxlab(&line).output().unwrap();
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("streams of this system end with their carrier"),
        "{errors}"
    );
}

#[test]
fn a_load_that_cannot_connect_says_where() {
    let output = muxlab("load hold --connect 127.0.0.1:1 --streams 1 --seconds 0").output();
    let output = output.unwrap();
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("connecting to 127.0.0.1:1"), "{errors}");
}

fn short_run(folder: &Path) -> String {
    format!(
        "--rounds 1 --seconds 1 --topologies veth --congestion-control cubic \
         --scenarios fairness --systems direct,relay-copy,relay-splice --output {}",
        folder.join("results.jsonl").display()
    )
}

#[test]
fn both_relays_carry_streams_between_namespaces() {
    let folder = tempfile::tempdir().unwrap();
    succeeded(&muxlab(&short_run(folder.path())).output().unwrap());
    let lines = fs::read_to_string(folder.path().join("results.jsonl")).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let systems: Vec<&str> = lines
        .iter()
        .map(|line| line["system"].as_str().unwrap())
        .collect();
    assert_eq!(systems, ["direct", "relay-copy", "relay-splice"]);
    for line in &lines {
        assert_eq!(line["status"], "ok", "{line}");
        assert!(line["mbit_s"]["median"].as_f64().unwrap() > 0.0, "{line}");
    }
    assert!(lines[1]["exit_rss_mib"]["median"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_lab_that_is_killed_leaves_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mark = format!("{}-{}", std::process::id(), folder.path().display());
    let mut lab = muxlab(&short_run(folder.path()))
        .env(MARK, &mark)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("a child of the lab", || marked(&mark) > 1);
    lab.kill().unwrap();
    lab.wait().unwrap();
    wait_until("its children to end", || marked(&mark) == 0);
}

/// How many processes carry this mark.
fn marked(mark: &str) -> usize {
    let wanted = format!("{MARK}={mark}");
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.ok()?.path().join("environ")).ok())
        .filter(|environment| {
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == wanted.as_bytes())
        })
        .count()
}

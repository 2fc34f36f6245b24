//! Tests the lab's parts with real sockets: each load with the server, both relays in a lab run,
//! and the processes of a killed lab. The tests need root, `ip` and `iperf`. If a requirement is
//! missing, a test fails and names the requirement.

// Clippy's exception for tests does not apply to helpers of integration tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use muxtunnel_testkit::port::free_port;
use muxtunnel_testkit::wait::{PATIENCE, until};
use serde_json::Value;

/// An environment variable that marks the processes of a test. The mark remains after the parent of
/// a process has ended.
const MARK: &str = "MUXLAB_TEST";

fn muxlab(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muxlab"));
    command.args(arguments.split_whitespace());
    command
}

/// A `muxlab serve` on a free port.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let child = muxlab(&format!("serve --listen {address}"))
            .spawn()
            .unwrap();
        until("the server listens", || TcpStream::connect(address).is_ok());
        Self { child, address }
    }

    /// Runs a load with this server. Returns its outcome.
    fn load(&self, line: &str) -> Value {
        load(line, self.address)
    }
}

/// Runs a load with the server at `address`. Returns its outcome.
fn load(line: &str, address: SocketAddr) -> Value {
    let output = muxlab(&format!("load {line} --connect {address}")).output();
    let output = output.unwrap();
    succeeded(&output);
    serde_json::from_slice(&output.stdout).unwrap()
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

/// A path to `server`. `pass` forwards each connection. Its arguments are the number of the
/// connection, the client's end and the server's end.
fn path(
    server: SocketAddr,
    pass: impl Fn(usize, TcpStream, TcpStream) + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pass = Arc::new(pass);
    thread::spawn(move || {
        for (number, near) in listener.incoming().enumerate() {
            let (near, far) = (near.unwrap(), TcpStream::connect(server).unwrap());
            let pass = Arc::clone(&pass);
            thread::spawn(move || pass(number, near, far));
        }
    });
    address
}

/// Forwards all bytes until the end.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

/// Forwards bytes to the server on a separate thread. Returns the ends for the other direction.
fn copy_up(near: TcpStream, far: TcpStream) -> (TcpStream, TcpStream) {
    let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    thread::spawn(move || copy(from, to));
    (far, near)
}

/// Forwards pieces while `go_on` returns true, and then holds both connections open.
fn copy_while(mut from: TcpStream, mut to: TcpStream, go_on: impl Fn() -> bool) {
    let mut piece = vec![0; 64 << 10];
    while go_on() {
        match from.read(&mut piece) {
            Ok(bytes @ 1..) if to.write_all(&piece[..bytes]).is_ok() => {}
            _ => return,
        }
    }
    thread::sleep(PATIENCE);
}

#[test]
fn the_time_of_an_exchange_is_the_paths_and_the_bulk_beside_it_is_set_against_itself_alone() {
    const ANSWER_DELAY: Duration = Duration::from_millis(20);
    let server = Server::start();
    let is_exchanging = AtomicBool::new(false);
    // The first connection has the bulk, the second the exchanges. The bulk stops during the
    // exchanges.
    let path = path(server.address, move |number, near, far| {
        if number == 0 {
            return copy_while(near, far, || !is_exchanging.load(Ordering::Relaxed));
        }
        is_exchanging.store(true, Ordering::Relaxed);
        let (mut far, mut near) = copy_up(near, far);
        let mut answer = [0; 64];
        while far.read_exact(&mut answer).is_ok() {
            thread::sleep(ANSWER_DELAY);
            if near.write_all(&answer).is_err() {
                return;
            }
        }
    });
    let line = "ping-pong --bulk 1 --seconds 1 --warm-up-seconds 0";
    let outcome = load(&format!("{line} --server {}", server.address), path);
    let p50_us = figure(&outcome, "p50_us");
    // The limit is 0.1 % below the delay of the answers, because the histogram is exact to three
    // digits only.
    assert!(
        p50_us >= 0.999 * ANSWER_DELAY.as_micros() as f64,
        "{p50_us}"
    );
    assert!(p50_us <= figure(&outcome, "p99_us"));
    let bulk_percent = figure(&outcome, "bulk_percent");
    assert!(bulk_percent < 50.0, "{bulk_percent}");
    assert!(outcome["bytes"].as_u64().unwrap() > 0);
}

#[test]
fn an_open_counts_when_its_answer_has_come() {
    const AT_ONCE: u64 = 4;
    let server = Server::start();
    let answered = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&answered);
    let path = path(server.address, move |_, near, far| {
        let (mut far, mut near) = copy_up(near, far);
        let mut answer = [0];
        far.read_exact(&mut answer).unwrap();
        thread::sleep(Duration::from_millis(50));
        counted.fetch_add(1, Ordering::Relaxed);
        let _ = near.write_all(&answer);
    });
    let line = format!(
        "opens --sources 127.0.1.1,127.0.1.2 --concurrency {AT_ONCE} --seconds 1 --warm-up-seconds 0"
    );
    let opens = figure(&load(&line, path), "opens_s");
    let answered = answered.load(Ordering::Relaxed) as f64;
    assert!(opens > 0.0 && opens <= answered, "{opens}, {answered}");
    // Connections that were open at the end of the second are not counted.
    assert!(opens >= answered - AT_ONCE as f64, "{opens}, {answered}");
}

#[test]
fn a_path_on_which_a_stalled_reader_stops_the_others_is_told_from_one_on_which_it_does_not() {
    let line = "stalled-reader --readers 2 --seconds 1 --warm-up-seconds 0";
    let server = Server::start();
    let turn = Mutex::new(());
    // The path writes to one stream at a time, so the stalled stream blocks the other streams.
    let path = path(server.address, move |_, near, far| {
        let (mut far, mut near) = copy_up(near, far);
        let mut piece = vec![0; 64 << 10];
        while let Ok(bytes @ 1..) = far.read(&mut piece) {
            let _turn = turn.lock().unwrap();
            if near.write_all(&piece[..bytes]).is_err() {
                return;
            }
        }
    });
    let blocked = figure(&load(line, path), "others_percent");
    assert!(blocked < 50.0, "{blocked}");
    let direct = figure(&server.load(line), "others_percent");
    assert!(direct > 2.0 * blocked, "{direct}, {blocked}");
}

#[test]
fn a_stream_that_gets_next_to_nothing_lowers_the_index_of_fairness() {
    let line = "fairness --streams 3 --seconds 1 --warm-up-seconds 0";
    let server = Server::start();
    let path = path(server.address, |number, near, far| {
        let (far, near) = copy_up(near, far);
        let pieces = AtomicU64::new(0);
        copy_while(far, near, || {
            number > 0 || pieces.fetch_add(1, Ordering::Relaxed) == 0
        });
    });
    // One of three streams gets almost nothing, so the index is at most two thirds.
    let unfair = figure(&load(line, path), "jain");
    assert!((0.0..0.7).contains(&unfair), "{unfair}");
    let direct = figure(&server.load(line), "jain");
    assert!((0.7..=1.0).contains(&direct), "{direct}");
}

#[test]
fn a_direction_that_stops_is_seen_in_full_duplex() {
    let server = Server::start();
    let line = format!(
        "full-duplex --server {} --one-way-seconds 1 --seconds 2 --warm-up-seconds 0",
        server.address
    );
    // The first connection is used in one direction, the second in both directions.
    let path = path(server.address, |number, near, far| {
        let (far, near) = copy_up(near, far);
        let pieces = AtomicU64::new(0);
        copy_while(far, near, || {
            number == 0 || pieces.fetch_add(1, Ordering::Relaxed) == 0
        });
    });
    let outcome = load(&line, path);
    assert!(figure(&outcome, "stalled_seconds") >= 1.0, "{outcome}");
    let outcome = server.load(&line);
    assert_eq!(figure(&outcome, "stalled_seconds"), 0.0);
    assert!(figure(&outcome, "duplex_percent") > 0.0);
}

#[test]
fn streams_are_held_at_the_same_time_idle_or_unread() {
    let server = Server::start();
    for stalled in ["", " --stalled"] {
        let held = Arc::new(Mutex::new(Held::default()));
        let seen = Arc::clone(&held);
        let path = path(server.address, move |_, near, far| {
            seen.lock().unwrap().begin();
            let (mut far, mut near) = copy_up(near, far);
            let mut piece = vec![0; 64 << 10];
            while let Ok(bytes @ 1..) = far.read(&mut piece) {
                seen.lock().unwrap().bytes += bytes as u64;
                if near.write_all(&piece[..bytes]).is_err() {
                    break;
                }
            }
            seen.lock().unwrap().open -= 1;
        });
        let outcome = load(&format!("hold --streams 20 --seconds 0{stalled}"), path);
        assert_eq!(figure(&outcome, "streams"), 20.0);
        let held = held.lock().unwrap();
        assert_eq!(held.open_max, 20);
        // The server answers an idle stream with one byte, and fills an unread stream.
        let is_filled = held.bytes > 20 * (64 << 10);
        assert_eq!(is_filled, !stalled.is_empty(), "{} bytes", held.bytes);
    }
}

/// The connections of a path.
#[derive(Default)]
struct Held {
    open: u64,
    open_max: u64,
    /// Bytes from the server.
    bytes: u64,
}

impl Held {
    fn begin(&mut self) {
        self.open += 1;
        self.open_max = self.open_max.max(self.open);
    }
}

#[test]
fn a_stream_that_ends_while_it_is_opened_is_not_held() {
    let server = Server::start();
    let path = path(server.address, |number, near, far| {
        if number != 3 {
            let (far, near) = copy_up(near, far);
            copy(far, near);
        }
    });
    let line = format!("load hold --streams 20 --seconds 0 --connect {path}");
    let output = muxlab(&line).output().unwrap();
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("with 3 streams open"), "{errors}");
}

#[test]
fn streams_of_a_fixed_size_come_back_byte_for_byte() {
    let line = "fixed-streams --streams 30 --bytes 300001 --patience-seconds 30";
    let outcome = Server::start().load(line);
    assert_eq!(figure(&outcome, "lost_streams"), 0.0);
    assert_eq!(figure(&outcome, "wrong_bytes"), 0.0);
    assert_eq!(outcome["bytes"], 2 * 30 * 300_001);
}

/// Runs a load through a path that spoils the answers of the first connection. Returns the load's
/// outcome and standard error.
fn spoiled(spoil: impl Fn(TcpStream, TcpStream) + Send + Sync + 'static) -> (Value, String) {
    let server = Server::start();
    let path = path(server.address, move |number, near, far| {
        let (far, near) = copy_up(near, far);
        match number {
            0 => spoil(far, near),
            _ => copy(far, near),
        }
    });
    let line = "load fixed-streams --streams 3 --bytes 100000 --patience-seconds 30 --connect";
    let output = muxlab(&format!("{line} {path}")).output().unwrap();
    succeeded(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

#[test]
fn one_byte_that_is_not_the_one_that_was_sent_is_counted() {
    let (outcome, said) = spoiled(|mut far, mut near| {
        let mut byte = [0];
        far.read_exact(&mut byte).unwrap();
        near.write_all(&[byte[0] ^ 1]).unwrap();
        copy(far, near);
    });
    assert!(said.contains("bytes wrong from offset 0 on"), "{said}");
    assert_eq!(figure(&outcome, "wrong_bytes"), 1.0);
    assert_eq!(figure(&outcome, "lost_streams"), 0.0);
}

#[test]
fn a_stream_that_ends_before_its_bytes_are_complete_is_lost_and_the_others_are_not() {
    let (outcome, said) = spoiled(|far, near| {
        near.shutdown(Shutdown::Write).unwrap();
        copy(far, near);
    });
    assert!(
        said.contains("the stream ended before all sent bytes had returned"),
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

/// A muxgate in `folder` with a muxlab next to it. Both end at once.
fn other_build(folder: &Path) -> String {
    for name in ["muxgate", "muxlab"] {
        fs::copy("/bin/true", folder.join(name)).unwrap();
    }
    folder.join("muxgate").display().to_string()
}

#[test]
fn builds_are_compared_only_where_both_exist_and_the_system_is_made_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |line: &str| {
        let output = format!("--output {}", folder.path().join("pairs.jsonl").display());
        let output = muxlab(&format!("{line} {output}")).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused("--against /no/such/muxgate");
    assert!(
        said.contains("cannot find the other muxgate, the path in --against"),
        "{said}"
    );
    let said = refused("--against /bin/sh --muxgate /bin/sh");
    assert!(
        said.contains("cannot find the lab of the other muxgate"),
        "{said}"
    );
    let both = format!("--against {} --muxgate /bin/sh", other_build(folder.path()));
    let said = refused(&format!("{both} --systems direct"));
    assert!(said.contains("invalid --systems direct"), "{said}");
    let said = refused(&format!("{both} --rounds 3"));
    assert!(said.contains("--against needs at least 9"), "{said}");
}

#[test]
fn a_build_that_does_not_run_is_a_missed_row() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!(
        "--against {} --muxgate /bin/true --topologies loopback --scenarios ping-pong --systems muxgate-native --output {}",
        other_build(folder.path()),
        folder.path().join("pairs.jsonl").display()
    );
    let output = muxlab(&line).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let lines = fs::read_to_string(folder.path().join("pairs.jsonl")).unwrap();
    let line: Value = serde_json::from_str(lines.trim()).unwrap();
    assert_eq!(line["is_met"], false);
    let reason = line["reason"].as_str().unwrap();
    assert!(reason.starts_with("This muxgate: "), "{reason}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("MISSED"));
}

#[test]
fn a_load_that_cannot_connect_says_where() {
    let output = muxlab("load hold --connect 127.0.0.1:1 --streams 1 --seconds 0").output();
    let output = output.unwrap();
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("cannot connect to 127.0.0.1:1"), "{errors}");
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
    until("the lab has a child", || marked(&mark) > 1);
    lab.kill().unwrap();
    lab.wait().unwrap();
    until("its children have ended", || marked(&mark) == 0);
}

/// The number of processes with this mark.
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

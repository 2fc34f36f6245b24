//! Carriers that are not TCP connections: Unix sockets, commands, standard input and output.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::common::tools::{Running, sshd};
use crate::common::*;

const MIB: usize = 1 << 20;
const MUXGATE: &str = env!("CARGO_BIN_EXE_muxgate");

/// Sends bulk data in both directions at once over one stream.
fn assert_exact(client: &TcpStream, listener: &TcpListener) {
    assert_bulk(client, accept(listener), 16 * MIB);
}

/// Starts an entry with `connectCommand` `command`. Returns the address of its forward to `target`.
fn entry_by(command: &str, target: SocketAddr, more: &[&str]) -> (Gate, SocketAddr) {
    let port = free_port();
    let forward = format!("{port}:{target}");
    let args = ["entry", "--connect-command", command, "--forward", &forward];
    let entry = Gate::with_flags(&[&args[..], more].concat());
    (entry, ([127, 0, 0, 1], port).into())
}

/// Asserts that the pages of the admin port work for a carrier without TCP figures.
fn assert_has_pages_without_tcp(gate: &Gate, peer: &str) {
    until("the carrier has been sampled", || {
        let carrier = &gate.status()["carriers"][0];
        carrier["limit"].is_null() && carrier["peer"] == peer
    });
    let carrier = gate.status()["carriers"][0].clone();
    assert_eq!(carrier["rttMilliseconds"], 0.0, "{carrier}");
    let (status, page) = gate.get("/metrics");
    assert_eq!(status, 200);
    assert!(
        page.contains("muxgate_carrier_bytes_total{peer=\"\""),
        "{page}"
    );
    assert!(!page.contains("muxgate_carrier_rtt_seconds{"), "{page}");
    assert_eq!(gate.get("/readyz").0, 200);
}

#[test]
fn carriers_of_both_protocols_run_over_unix_sockets() {
    for protocol in ["native", "jmux"] {
        let (listener, target) = target();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("carriers");
        let socket = format!("unix:{}", path.display());
        let both = ["--security", "none", "--protocol", protocol];
        let (port, target_text) = (free_port(), target.to_string());
        let exit = ["exit", "--listen", &socket, "--allow", &target_text];
        let exit = Gate::with_flags(&[&exit[..], &both, &["--workers", "2"]].concat());
        let forward = format!("{port}:{target}");
        let entry = ["entry", "--connect", &socket, "--forward", &forward];
        let entry = Gate::with_flags(&[&entry[..], &both].concat()).until_ready();
        for _ in 0..2 {
            assert_exact(&connect(([127, 0, 0, 1], port).into()), &listener);
        }
        for gate in [&entry, &exit] {
            assert_has_pages_without_tcp(gate, &socket);
        }
        exit.signal("INT");
        assert!(exit.wait().success());
        assert!(!path.exists(), "the exit's socket was not removed");
    }
}

#[test]
fn a_session_over_a_unix_socket_has_several_carriers() {
    let (listener, target) = target();
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("carriers").display());
    let (port, target_text) = (free_port(), target.to_string());
    let exit = [
        "exit",
        "--security",
        "none",
        "--listen",
        &socket,
        "--allow",
        &target_text,
    ];
    let _exit = Gate::with_flags(&exit);
    let forward = format!("{port}:{target}");
    let entry = [
        "entry",
        "--security",
        "none",
        "--connect",
        &socket,
        "--forward",
        &forward,
    ];
    let entry = Gate::with_flags(&[&entry[..], &["--carriers", "2"]].concat()).until_ready();
    until("the entry has two carriers", || {
        entry.status()["carriers"].as_array().unwrap().len() == 2
    });
    assert_exact(&connect(([127, 0, 0, 1], port).into()), &listener);
}

#[test]
fn a_command_is_a_carrier_for_both_protocols_and_what_it_logs_is_in_our_log() {
    for protocol in ["native", "jmux"] {
        let (listener, target) = target();
        let command = format!("{MUXGATE} exit --stdio --protocol {protocol} --allow {target}");
        let (entry, forward) = entry_by(&command, target, &["--protocol", protocol]);
        let entry = entry.until_ready();
        for _ in 0..2 {
            assert_exact(&connect(forward), &listener);
        }
        assert_has_pages_without_tcp(&entry, "command:muxgate");
        entry.line(&[
            "Output of the command",
            "command:muxgate",
            "Listening for carriers",
            "stdio",
        ]);
        entry.line(&["Stream closed", "carrier=\"command:muxgate\"", "completed"]);
    }
}

#[test]
fn a_command_that_ends_is_a_lost_carrier_and_started_anew() {
    let (listener, target) = target();
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("count");
    let script = format!(
        "sh -c 'echo $$ >> {}; exec {MUXGATE} exit --stdio --allow {target}'",
        count.display()
    );
    let (entry, forward) = entry_by(&script, target, &[]);
    let entry = entry.until_ready();
    let client = connect(forward);
    let _server = accept(&listener);
    let first = std::fs::read_to_string(&count).unwrap();
    let killed = Command::new("kill").args(["-KILL", first.trim()]).status();
    assert!(killed.unwrap().success());
    assert_reset(&client);
    entry.line(&["MT0202", "Command has ended", "command:sh", "signal: 9"]);
    let entry = entry.until_ready();
    assert_exact(&connect(forward), &listener);
    let all = std::fs::read_to_string(&count).unwrap();
    assert!(all.lines().count() >= 2, "{all}");
    // When the entry has ended, no process of the command remains.
    entry.signal("INT");
    assert!(entry.wait().success());
    let last = all.lines().last().unwrap().to_owned();
    until("the last command has ended", || {
        let state = std::fs::read_to_string(format!("/proc/{last}/stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z")
    });
}

#[test]
fn a_command_that_fails_is_told_with_its_words_and_its_status() {
    let (_listener, target) = target();
    let quoted = "sh -c \"echo no such host: $HOME >&2; exit 7\"";
    let (entry, _) = entry_by(quoted, target, &[]);
    entry.line(&["Output of the command", "no such host: /"]);
    entry.line(&["MT0202", "Command has ended", "exit status: 7"]);
    // No shell is used: `$HOME;` is a plain argument.
    let (entry, _) = entry_by("echo $HOME;", target, &[]);
    entry.line(&["MT0203", "Carrier ended before the exit sent its hello"]);
    let (entry, _) = entry_by("/no/such/program --password secret", target, &[]);
    entry.line(&["No carrier", "cannot start /no/such/program: No such file"]);
    assert!(!entry.log().contains("secret"), "{}", entry.log());
}

#[test]
fn ssh_starts_the_exit_on_the_far_side() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, port, options): (Running, _, _) = sshd(folder.path());
    let (listener, target) = target();
    let options = options.join(" ");
    let command =
        format!("ssh {options} -p {port} root@127.0.0.1 {MUXGATE} exit --stdio --allow {target}");
    let (entry, forward) = entry_by(&command, target, &[]);
    let entry = entry.until_ready();
    assert_exact(&connect(forward), &listener);
    assert_has_pages_without_tcp(&entry, "command:ssh");
    entry.line(&["Output of the command", "Listening for carriers", "stdio"]);
}

/// An exit on pipes, as a process.
fn stdio_exit() -> std::process::Child {
    Command::new(MUXGATE)
        .args(["exit", "--stdio", "--allow", "192.0.2.1:80"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn an_exit_on_its_standard_input_and_output_ends_with_its_carrier_and_keeps_its_log_apart() {
    let mut exit = stdio_exit();
    drop(exit.stdin.take());
    let done = exit.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert!(done.stdout.is_empty(), "{done:?}");
    let log = String::from_utf8(done.stderr).unwrap();
    assert!(log.contains("Listening for carriers"), "{log}");

    // The exit refuses a carrier that joins an unknown session. The exit then ends, because it had
    // no other carrier.
    let mut exit = stdio_exit();
    let hello = muxtunnel_proto::native::codec::encode(&peer::hello(1, [7; 16], [7; 32]));
    exit.stdin.as_mut().unwrap().write_all(&hello).unwrap();
    let mut answer = Vec::new();
    exit.stdout
        .as_mut()
        .unwrap()
        .read_to_end(&mut answer)
        .unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    assert!(text.contains("session to join was not found"), "{text:?}");
    drop(exit.stdin.take());
    assert!(exit.wait().unwrap().success());
}

#[test]
fn standard_input_and_output_that_cannot_be_a_carrier_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let open = || {
        std::fs::File::options()
            .read(true)
            .write(true)
            .open(&file)
            .unwrap()
    };
    let done = Command::new(MUXGATE)
        .args(["exit", "--stdio"])
        .stdin(open())
        .stdout(open())
        .output()
        .unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot listen on stdio: is a file"), "{said}");
}

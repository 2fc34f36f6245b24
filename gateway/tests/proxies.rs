//! Carriers through third-party proxies: tinyproxy, and the SOCKS5 proxy of ssh.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::tools::{Running, sshd};
use crate::common::*;

const PASSWORD: &str = "pass-W0rd";
const ENCODED: &str = "pass%2DW0rd";

/// Starts a process that listens on `port`.
fn listening(command: &mut Command, package: &str, port: u16) -> Running {
    let child: Result<Child, _> = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let running = match child {
        Ok(child) => Running(child),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!(
                "{:?} is missing: apt-get install {package}",
                command.get_program()
            )
        }
        Err(error) => panic!("{error}"),
    };
    until("the proxy listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    running
}

/// A proxy that permits alice to connect only to `to`.
fn tinyproxy(folder: &Path, to: u16) -> (Running, u16) {
    let port = free_port();
    let file = folder.join("tinyproxy.conf");
    let log = folder.join("tinyproxy.log");
    let text = format!(
        "Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 20\nBasicAuth alice {PASSWORD}\n\
         ConnectPort {to}\nLogFile \"{}\"\n",
        log.display()
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("tinyproxy");
    command.args(["-d", "-c", file.to_str().unwrap()]);
    (listening(&mut command, "tinyproxy", port), port)
}

/// An exit, and the number of its carrier port.
fn exit(scheme: &str, target: SocketAddr) -> (Gate, u16) {
    let port = free_port();
    let listen = format!("{scheme}127.0.0.1:{port}");
    let target = target.to_string();
    let args = [
        "exit",
        "--security",
        "none",
        "--listen",
        &listen,
        "--allow",
        &target,
    ];
    (Gate::with_flags(&args), port)
}

fn entry(connect: &str, target: SocketAddr, more: &[&str]) -> (Gate, SocketAddr) {
    entry_in(connect, target, more, &[])
}

fn entry_in(
    connect: &str,
    target: SocketAddr,
    more: &[&str],
    environment: &[(&str, &str)],
) -> (Gate, SocketAddr) {
    let port = free_port();
    let forward = format!("{port}:{target}");
    let args = [
        "entry",
        "--security",
        "none",
        "--connect",
        connect,
        "--forward",
        &forward,
    ];
    let gate = Gate::with_environment(&[&args[..], more].concat(), environment);
    (gate, ([127, 0, 0, 1], port).into())
}

fn assert_carries(forward: SocketAddr, listener: &std::net::TcpListener) {
    assert_bulk(&connect(forward), accept(listener), 4 << 20);
}

#[test]
fn carriers_go_through_an_http_proxy_that_knows_its_users() {
    let (listener, target) = target();
    let (_exit, carriers) = exit("", target);
    let folder = tempfile::tempdir().unwrap();
    let (_proxy, port) = tinyproxy(folder.path(), carriers);
    // The proxy resolves the name of the exit. The entry does not.
    let exit = format!("localhost:{carriers}");
    let proxy = format!("http://alice:{ENCODED}@127.0.0.1:{port}");
    let (gate, forward) = entry(&exit, target, &["--proxy", &proxy, "--carriers", "2"]);
    let gate = gate.until_ready();
    assert_carries(forward, &listener);
    until("the entry has two carriers", || {
        gate.status()["carriers"].as_array().unwrap().len() == 2
    });
    for carrier in gate.status()["carriers"].as_array().unwrap() {
        assert_eq!(carrier["peer"], exit, "{carrier}");
    }
    gate.line(&[
        "Carriers connect through a proxy",
        &format!("http://127.0.0.1:{port}"),
    ]);
    let said = gate.log() + &gate.get("/status").1 + &gate.get("/metrics").1;
    assert!(!said.contains("W0rd"), "{said}");
}

#[test]
fn what_the_proxy_answers_is_in_the_log_without_the_password() {
    let (_listener, target) = target();
    let (_exit, carriers) = exit("", target);
    let folder = tempfile::tempdir().unwrap();
    let (_proxy, port) = tinyproxy(folder.path(), carriers);
    let exit = format!("localhost:{carriers}");
    let at = format!("127.0.0.1:{port}");
    for (user, exit, said) in [
        (
            "alice:wrong@",
            &*exit,
            "the proxy requires valid credentials: 40",
        ),
        (
            "",
            &exit,
            "the proxy requires valid credentials: 407 Proxy Authentication Required",
        ),
        (
            &format!("alice:{ENCODED}@"),
            "localhost:1",
            "the proxy returned 403 Access violation",
        ),
    ] {
        let proxy = format!("http://{user}{at}");
        let (gate, _) = entry(exit, target, &["--proxy", &proxy]);
        let line = gate.line(&["No carrier", "MT0201", &format!("proxy http://{at}: ")]);
        assert!(
            line.contains(said) || (user.contains("wrong") && line.contains("401")),
            "{line}"
        );
        assert!(
            !gate.log().contains("wrong") && !gate.log().contains("W0rd"),
            "{line}"
        );
    }
}

#[test]
fn carriers_go_through_the_socks5_of_ssh_which_looks_names_up() {
    let (listener, target) = target();
    let (_exit, carriers) = exit("", target);
    let folder = tempfile::tempdir().unwrap();
    let (_server, port, options) = sshd(folder.path());
    let socks = free_port();
    let mut command = Command::new("ssh");
    command
        .args(&options)
        .args(["-N", "-D", &format!("127.0.0.1:{socks}")]);
    command.args(["-p", &port.to_string(), "root@127.0.0.1"]);
    let _ssh = listening(&mut command, "openssh-client", socks);
    let proxy = format!("socks5h://127.0.0.1:{socks}");
    let exit = format!("localhost:{carriers}");
    let (gate, forward) = entry(&exit, target, &["--proxy", &proxy]);
    let gate = gate.until_ready();
    assert_carries(forward, &listener);
    assert_eq!(gate.status()["carriers"][0]["peer"], exit);
    let (gate, _) = entry("localhost:1", target, &["--proxy", &proxy]);
    gate.line(&[
        "No carrier", // ssh closes the connection without an answer.
        &format!("proxy {proxy}: the proxy closed the connection before it answered"),
    ]);
}

#[test]
fn the_environments_proxy_is_for_web_sockets_alone() {
    let (listener, target) = target();
    let (_exit, carriers) = exit("ws://", target);
    let folder = tempfile::tempdir().unwrap();
    let (_proxy, port) = tinyproxy(folder.path(), carriers);
    let proxy = format!("http://alice:{ENCODED}@127.0.0.1:{port}");
    let through = format!("http://127.0.0.1:{port}");
    let exit_at = format!("ws://localhost:{carriers}");
    let set = [("http_proxy", &*proxy), ("no_proxy", "")];
    let (gate, forward) = entry_in(&exit_at, target, &[], &set);
    let gate = gate.until_ready();
    gate.line(&["Carriers connect through a proxy", &through]);
    assert_carries(forward, &listener);
    let exempt = [("http_proxy", &*proxy), ("no_proxy", "localhost")];
    for (more, set) in [(&[][..], &exempt), (&["--proxy", "none"], &set)] {
        let (gate, forward) = entry_in(&exit_at, target, more, set);
        let gate = gate.until_ready();
        assert!(!gate.log().contains("through a proxy"), "{}", gate.log());
        assert_carries(forward, &listener);
    }
    // With transport Auto, the entry dials carriers other than WebSocket directly. This exit does
    // not answer such carriers.
    let (gate, forward) = entry_in(&exit_at, target, &["--transport", "auto"], &set);
    let gate = gate.until_ready();
    gate.line(&["WebSocket carriers connect through a proxy", &through]);
    assert_carries(forward, &listener);
    let carrier = gate.status()["carriers"][0].clone();
    assert_eq!(carrier["transport"], "WebSocket");
    assert_eq!(carrier["peer"], format!("localhost:{carriers}"));
    let (_exit, carriers) = exit("", target);
    let all = [
        ("http_proxy", &*proxy),
        ("https_proxy", &proxy),
        ("ALL_PROXY", &proxy),
    ];
    let (gate, forward) = entry_in(&format!("localhost:{carriers}"), target, &[], &all);
    let gate = gate.until_ready();
    assert!(!gate.log().contains("through a proxy"), "{}", gate.log());
    assert_carries(forward, &listener);
}

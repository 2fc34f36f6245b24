//! `connect`, with a program that replaces `muxgate`.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Parser;
use muxtunnel_gateway_config::{KEY_BYTES, Role, key_text};
use muxtunnel_testkit::wait::until;
use serde_json::{Value, json};

use super::cluster::{Cluster, Ran};
use super::peer::{key, ready};

const PEER: &str = "muxpeers/laptop@backend";
const PEERS: &str = "/apis/muxtunnel.dev/v1alpha1/namespaces/backend/muxpeers";
const LINE: &str =
    "connect web -n backend --name laptop -L 8080:db.internal:5432 --muxgate ./muxgate";

/// A cluster with an exit, and a program that prints keys and writes its arguments into a file.
/// `entry`: what the program does as an entry.
fn with_exit(entry: &str) -> Cluster {
    let cluster = Cluster::start();
    cluster.object("exit.yaml", |exit| {
        exit["spec"]["reversePorts"] = json!([{"name": "hook", "port": 9000}]);
        exit["status"]["publicKeys"] = json!([key_text(Role::Exit, &[9; KEY_BYTES])]);
    });
    let script = format!(
        "#!/bin/sh\n\
         case $1 in\n\
         keygen) if [ \"$2\" != --show ]; then umask 077; echo key > \"$2\"; fi\n\
         echo {}; echo {};;\n\
         entry) echo \"$@\" > arguments; {entry};;\n\
         esac\n",
        key(7),
        key_text(Role::Exit, &[7; KEY_BYTES]),
    );
    let file = cluster.file("muxgate");
    std::fs::write(&file, script).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    cluster
}

/// The program runs until SIGTERM.
const RUNS: &str = "trap 'echo ended > ended; exit 0' TERM; while :; do sleep 0.1; done";

fn command(cluster: &Cluster, line: &str) -> Command {
    let mut command = cluster.command(line);
    command
        .env("XDG_CONFIG_HOME", cluster.file("config"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(cluster: &Cluster, line: &str) -> Ran {
    Ran::from(command(cluster, line).output().unwrap())
}

/// Reports on the peer, as the operator does.
fn report(cluster: &Cluster, status: Value) {
    until("the peer exists", || cluster.get(PEER).is_some());
    let mut peer = cluster.get(PEER).unwrap();
    peer["status"] = status;
    cluster.put(PEER, peer);
}

fn finish(program: Child) -> Ran {
    Ran::from(program.wait_with_output().unwrap())
}

fn end(program: Child, signal: &str) -> Ran {
    let id = program.id().to_string();
    assert!(
        Command::new("kill")
            .args([signal, &id])
            .status()
            .unwrap()
            .success()
    );
    finish(program)
}

#[test]
fn a_connection_has_a_peer_while_muxgate_runs() {
    let cluster = with_exit(RUNS);
    for signal in ["-INT", "-TERM"] {
        let line = format!("{LINE} -R 9000:localhost:3000 --for 1h");
        let program = command(&cluster, &line).spawn().unwrap();
        report(&cluster, ready("True", "Idle"));
        let arguments = cluster.file("arguments");
        until("muxgate runs", || {
            std::fs::read_to_string(&arguments).is_ok_and(|text| text.ends_with('\n'))
        });
        let peer = cluster.get(PEER).unwrap();
        let spec = &peer["spec"];
        assert_eq!(spec["exitRef"]["name"], "web");
        assert_eq!(spec["publicKeys"], json!([key(7)]));
        assert_eq!(
            spec["allow"],
            json!([{"host": "db.internal", "port": 5432}])
        );
        assert_eq!(spec["reversePorts"], json!(["hook"]));
        assert_eq!(spec["ttlSecondsAfterExpiration"], 0);
        assert!(spec["expirationTime"].is_string(), "{spec}");
        // The real program accepts the arguments.
        let arguments = std::fs::read_to_string(&arguments).unwrap();
        let words = std::iter::once("muxgate").chain(arguments.split_whitespace());
        let parsed = muxgate::cli::Cli::try_parse_from(words).unwrap();
        assert!(parsed.task().is_ok(), "{arguments}");
        // A second process cannot use the same peer.
        let second = run(&cluster, LINE);
        assert_eq!(second.status, 1, "{second:?}");
        assert!(
            second.err.contains("choose another name with --name"),
            "{second:?}"
        );
        let ran = end(program, signal);
        assert_eq!(ran.status, 0, "{ran:?}");
        assert!(
            ran.err.contains("muxgate dials the exit web until "),
            "{ran:?}"
        );
        assert!(cluster.file("ended").exists(), "muxgate ended in order");
        assert!(cluster.get(PEER).is_none(), "the peer is deleted");
        for name in ["arguments", "ended"] {
            std::fs::remove_file(cluster.file(name)).unwrap();
        }
    }
}

#[test]
fn muxgate_ends_with_a_connection_that_is_killed() {
    let cluster = with_exit(RUNS);
    let mut program = command(&cluster, LINE).spawn().unwrap();
    report(&cluster, ready("True", "Idle"));
    until("muxgate runs", || cluster.file("arguments").exists());
    program.kill().unwrap();
    program.wait().unwrap();
    until("muxgate has ended in order", || {
        cluster.file("ended").exists()
    });
    // The operator deletes the peer after its expiration time.
    assert!(cluster.get(PEER).is_some());
}

#[test]
fn a_connection_ends_with_muxgate_or_with_its_time() {
    let cluster = with_exit("exit 3");
    let program = command(&cluster, LINE).spawn().unwrap();
    report(&cluster, ready("True", "Idle"));
    let ran = finish(program);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(
        ran.err.contains("muxgate ended with exit status: 3"),
        "{ran:?}"
    );
    assert!(cluster.get(PEER).is_none());

    let cluster = with_exit(RUNS);
    let program = command(&cluster, &format!("{LINE} --for 3s"))
        .spawn()
        .unwrap();
    report(&cluster, ready("True", "Idle"));
    let ran = finish(program);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(
        ran.err
            .contains("the permission to use the exit web expired at"),
        "{ran:?}"
    );
    assert!(cluster.get(PEER).is_none());
}

#[test]
fn a_peer_that_the_exit_does_not_accept_is_deleted() {
    let cluster = with_exit("exit 0");
    let ran = run(&cluster, &format!("{LINE} --timeout 2s"));
    assert_eq!(ran.status, 4, "{ran:?}");
    assert!(
        ran.err
            .contains("the exit does not accept this host after 2s"),
        "{ran:?}"
    );
    assert!(cluster.get(PEER).is_none());
    assert!(!cluster.file("arguments").exists(), "muxgate has not run");
    let program = command(&cluster, &format!("{LINE} --timeout 60s"))
        .spawn()
        .unwrap();
    until("the peer exists", || cluster.get(PEER).is_some());
    let ran = end(program, "-TERM");
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(ran.err.contains("interrupted"), "{ran:?}");
    assert!(cluster.get(PEER).is_none());
}

#[test]
fn without_the_right_an_administrator_creates_the_peer() {
    let cluster = with_exit(RUNS);
    // Creation is refused, and reads are not.
    cluster.refuses("muxpeers", |_, _| {
        Some((403, "you have no right".to_owned()))
    });
    let ran = run(&cluster, &format!("{LINE} --no-wait"));
    assert_eq!(ran.status, 1, "{ran:?}");
    let manifest: Value = serde_yaml::from_str(&ran.out).unwrap();
    assert_eq!(manifest["kind"], "MuxPeer");
    assert_eq!(manifest["spec"]["publicKeys"], json!([key(7)]));
    assert!(ran.err.contains("kubectl apply -f FILE"), "{ran:?}");

    let program = command(&cluster, &format!("{LINE} --for 1h"))
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let mut made = manifest;
    made["metadata"]["generation"] = json!(1);
    made["status"] = ready("True", "Idle");
    cluster.put(PEER, made);
    let arguments = cluster.file("arguments");
    until("muxgate runs", || arguments.exists());
    let ran = end(program, "-TERM");
    assert_eq!(ran.status, 0, "{ran:?}");
    // The peer of the administrator remains for the next run.
    assert!(cluster.get(PEER).is_some());

    // The manager of the MuxPeer is another one, so an apply conflicts. The key of this host suffices.
    std::fs::remove_file(&arguments).unwrap();
    let program = command(&cluster, &format!("{LINE} --for 2h"))
        .spawn()
        .unwrap();
    until("muxgate runs again", || arguments.exists());
    let ran = end(program, "-TERM");
    assert_eq!((ran.status, ran.out.as_str()), (0, ""), "{ran:?}");
    assert!(cluster.get(PEER).is_some());

    cluster.deny(PEERS, 403);
    let ran = run(&cluster, LINE);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(ran.out.contains("kind: MuxPeer"), "{ran:?}");
}

#[test]
fn what_cannot_connect_writes_nothing() {
    let cluster = with_exit(RUNS);
    let at = |line: &str| format!("connect web --name laptop --muxgate {line}");
    for (line, said) in [
        (
            at("./nothing -D 1080 -n backend"),
            "name the program with --muxgate",
        ),
        (
            at("./muxgate -R 80:localhost:80 -n backend"),
            "hook (port 9000)",
        ),
        (at("./muxgate -D 1080"), "cannot read the MuxExit web"),
    ] {
        let ran = run(&cluster, &line);
        assert_eq!((ran.status, ran.out.as_str()), (1, ""), "{line}: {ran:?}");
        assert!(ran.err.contains(said), "{line}: {ran:?}");
    }
    let ran = run(&cluster, &at("./muxgate -D 1080 -n backend --for 0s"));
    assert_eq!(ran.status, 2, "{ran:?}");
    assert!(cluster.written().is_empty(), "{:?}", cluster.written());
}

//! The output of `status`: on a terminal and in a pipe, in colour, without headers, and as the
//! state changes.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use muxtunnel_testkit::api_server::Trouble;
use muxtunnel_testkit::wait::until;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;

use super::cluster::{Cluster, Ran};

/// A program whose output is read while it runs.
struct Running {
    program: Child,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Running {
    fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }

    fn has(&self, text: &str) {
        until(&format!("it prints {text:?}"), || {
            self.output().contains(text)
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Starts the program with standard output in a pipe.
fn piped(cluster: &Cluster, line: &str) -> Running {
    let mut program = cluster
        .command(line)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = read(program.stdout.take().unwrap());
    Running { program, output }
}

/// Starts the program on a terminal with `columns` columns. 0: the terminal has no size.
fn on_a_terminal(cluster: &Cluster, line: &str, columns: u16) -> Running {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize {
        ws_row: 50,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&master, size).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal: OwnedFd =
        rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let mut command = cluster.command(line);
    command.env_remove("NO_COLOR").stdout(Stdio::from(terminal));
    let program = command.spawn().unwrap();
    let output = read(std::fs::File::from(master));
    Running { program, output }
}

/// Reads to the end in a thread. A read error is the end of a terminal.
fn read(mut from: impl Read + Send + 'static) -> Arc<Mutex<Vec<u8>>> {
    let output = Arc::new(Mutex::new(Vec::new()));
    let written = Arc::clone(&output);
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            written.lock().unwrap().extend_from_slice(&bytes[..length]);
        }
    });
    output
}

fn widest(text: &str) -> usize {
    let lines = text.lines().map(|line| line.chars().count());
    lines.max().unwrap()
}

#[test]
fn tables_are_as_wide_as_the_terminal() {
    let cluster = Cluster::start();
    cluster.object("faulty.yaml", |object| {
        object["metadata"]["namespace"] = json!("shop");
        object["metadata"]["name"] = json!("web");
        let pod = "CrashLoopBackOff ".repeat(30);
        object["status"]["conditions"][0]["message"] = json!(pod);
    });
    // The test compares the text from the line of the gateways on.
    for (columns, expected) in [(80, 80), (240, 240), (0, 100)] {
        let line = "status web --color never";
        let running = on_a_terminal(&cluster, line, columns);
        running.has("\nGATEWAYS");
        let text = running.output().replace('\r', "");
        let table = text.split("\n\n").nth(1).unwrap().to_owned();
        let columns = widest(&table);
        assert!(
            columns <= expected && columns > expected - 17,
            "{columns} of {expected}:\n{table}"
        );
    }
    let piped = cluster.run("status web").out;
    assert!(widest(piped.split("\n\n").nth(1).unwrap()) <= 100);
}

#[test]
fn colours_are_for_terminals_unless_they_are_selected() {
    let cluster = Cluster::start();
    cluster.object("both.yaml", |_| {});
    let coloured = "\x1b[32mTrue\x1b[0m";
    let running = on_a_terminal(&cluster, "status web", 80);
    running.has("Carriers:");
    assert!(running.output().contains(coloured));
    for (flag, no_color, expected) in [
        ("auto", None, false),
        ("always", None, true),
        ("always", Some("1"), true),
        ("never", None, false),
    ] {
        let mut command = cluster.command(&format!("status web --color {flag}"));
        command.env_remove("NO_COLOR");
        if let Some(value) = no_color {
            command.env("NO_COLOR", value);
        }
        let ran = Ran::from(command.output().unwrap());
        assert_eq!(ran.out.contains(coloured), expected, "{flag}: {ran:?}");
    }
}

#[test]
fn names_and_rows_without_headers_are_for_scripts() {
    let cluster = Cluster::start();
    cluster.object("both.yaml", |_| {});
    cluster.object("fresh.yaml", |_| {});
    let names = cluster.run("status -o name");
    assert_eq!(
        names.out,
        "muxtunnel.muxtunnel.dev/web\nmuxrendezvous.muxtunnel.dev/fresh\n"
    );
    let one = cluster.run("status web -o name");
    assert_eq!(one.out, "muxtunnel.muxtunnel.dev/web\n");
    let rows = cluster.run("status --no-headers");
    let names: Vec<_> = rows
        .out
        .lines()
        .map(|line| line.split(' ').next())
        .collect();
    assert_eq!(names, [Some("web"), Some("fresh")]);
    assert_eq!(cluster.run("status -n empty --no-headers").out, "");
    let wide = cluster.run("status -o wide");
    let head = wide.out.lines().next().unwrap();
    let columns: Vec<_> = head.split_whitespace().collect();
    assert!(
        columns.ends_with(&["REASON", "BOTTLENECK", "ADDRESS"]),
        "{head}"
    );
    let codes = cluster.run("explain --no-headers");
    assert!(codes.out.starts_with("MT0101 "), "{codes:?}");
}

#[test]
fn watching_prints_each_change_until_the_tunnel_is_deleted() {
    let cluster = Cluster::start();
    let ready = |replicas| {
        cluster.object("both.yaml", |object| {
            object["status"]["entry"]["readyReplicas"] = json!(replicas);
        });
    };
    ready(2);
    let mut one = piped(&cluster, "status web --watch -o name");
    let list = piped(&cluster, "status --watch");
    let screen = on_a_terminal(&cluster, "status -w", 120);
    one.has("muxtunnel.muxtunnel.dev/web\n");
    list.has("  2/2    2/2 ");
    screen.has("\x1b[H\x1b[2JNAME ");
    // The API server fails for a while.
    cluster.trouble("muxtunnels", Some(Trouble::Status(503)));
    let refused = cluster.requests().len();
    until("the program has sent a request meanwhile", || {
        cluster.requests().len() > refused + 3
    });
    cluster.trouble("muxtunnels", None);
    ready(1);
    list.has("  1/2    2/2 ");
    screen.has("  1/2    2/2 ");
    assert_eq!(
        list.output().matches("NAME ").count(),
        2,
        "{}",
        list.output()
    );
    cluster.remove("muxtunnels/web@shop");
    let ended = one.program.wait().unwrap();
    assert_eq!(ended.code(), Some(1));
}

//! Output and exit status of the program, for commands that end.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{Gate, Pair};

fn check(file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_muxgate"))
        .args(["check", "--config"])
        .arg(file)
        .output()
        .unwrap()
}

#[test]
fn check_names_the_place_of_an_error_and_its_remedy_and_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("far.yaml");
    let exit = "role: Exit\nlisten: '127.0.0.1:1'\nsecurity: {mode: None}\nallow: [{host: db.internal, port: 5432}]\n";
    std::fs::write(&file, exit).unwrap();
    let checked = check(&file);
    let printed = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.success(), "{printed}");
    assert!(
        printed.contains("far.yaml: valid; exit, protocol Native"),
        "{printed}"
    );
    assert!(printed.contains("allow rules: 1"), "{printed}");

    std::fs::write(&file, format!("{exit}workers: many\n")).unwrap();
    let checked = check(&file);
    let printed = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code(), Some(2), "{printed}");
    assert!(printed.contains("far.yaml:5:10: workers"), "{printed}");
    assert!(printed.contains("\n  fix: "), "{printed}");

    let checked = check(&dir.path().join("missing.yaml"));
    assert_eq!(checked.status.code(), Some(2), "{checked:?}");
}

#[test]
fn a_log_for_programs_is_an_object_a_line_with_the_fields_apart() {
    let port = crate::common::free_port();
    let listen = format!("127.0.0.1:{port}");
    let exit = Gate::with_flags(&[
        "exit",
        "--security",
        "none",
        "--listen",
        &listen,
        "--allow",
        "db.internal:5432",
        "--log-format",
        "json",
    ])
    .until_ready();
    exit.line(&["Listening for carriers"]);
    let log = exit.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let listening = lines
        .iter()
        .find(|line| line["fields"]["message"] == "Listening for carriers");
    let listening = listening.unwrap_or_else(|| panic!("{log}"));
    assert_eq!(listening["level"], "INFO");
    assert_eq!(listening["fields"]["listen"], listen.as_str());
    assert!(listening["timestamp"].is_string() && listening["target"].is_string());
}

fn status(admin: u16, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_muxgate"))
        .args(["status", "--admin", &format!("127.0.0.1:{admin}")])
        .args(more)
        .output()
        .unwrap()
}

/// The cells of the table row that begins with `first`. Cells are separated by at least two spaces.
fn row(printed: &str, first: &str) -> Vec<String> {
    let line = printed.lines().find(|line| line.starts_with(first));
    let line = line.unwrap_or_else(|| panic!("no row {first}: {printed}"));
    let cells = line.split("  ").map(str::trim);
    cells
        .filter(|cell| !cell.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn status_shows_the_streams_carriers_and_bytes_of_a_running_gateway() {
    let (listener, target) = crate::common::target();
    let pair = Pair::to("Native", target);
    let (mut client, mut second) = (pair.connect(), pair.connect());
    client.write_all(&[7; 3000]).unwrap();
    second.write_all(&[8; 72]).unwrap();
    let mut servers = [
        crate::common::accept(&listener),
        crate::common::accept(&listener),
    ];
    for server in &mut servers {
        let mut first = [0];
        server.read_exact(&mut first).unwrap();
        let rest = if first == [7] { 2999 } else { 71 };
        server.read_exact(&mut vec![0; rest]).unwrap();
        server.write_all(&[9; 5]).unwrap();
    }
    for client in [&mut client, &mut second] {
        client.read_exact(&mut [0; 5]).unwrap();
    }
    crate::common::until("the gateways have counted", || {
        let (entry, exit) = (pair.entry.status(), pair.exit.status());
        entry["streams"]["bytesReceived"] == 10
            && entry["carriers"][0]["streams"] == 2
            && exit["streams"]["bytesReceived"] == 3072
    });

    let printed = status(pair.entry.admin, &[]);
    assert!(printed.status.success(), "{printed:?}");
    let printed = String::from_utf8(printed.stdout).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let head = format!("muxgate {version}: entry, protocol Native, up ");
    assert!(printed.starts_with(&head), "{printed}");
    assert_eq!(row(&printed, "Ready:"), ["Ready:", "yes"]);
    assert_eq!(row(&printed, "Streams:")[1], "2 open, 2 opened");
    assert_eq!(row(&printed, "Payload:")[1], "3.0 KiB sent, 10 B received");
    let carrier = row(&printed, "127.0.0.1:");
    assert_eq!((&*carrier[1], &*carrier[4]), ("TCP", "2"), "{printed}");
    assert!(carrier[3].ends_with(" ms"), "{printed}");
    let listen = pair.forward.to_string();
    let forward = printed.lines().position(|line| line.starts_with("FORWARD"));
    let tables = printed.lines().skip(forward.unwrap()).collect::<Vec<_>>();
    let expected = [
        &*listen,
        &listen,
        &target.to_string(),
        "2",
        "2",
        "3.0 KiB",
        "10 B",
    ];
    assert_eq!(row(&tables[1..].join("\n"), &listen), expected);

    let printed = status(pair.exit.admin, &["-o", "json"]);
    let document: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(document["role"], "Exit");
    assert_eq!(document["streams"]["bytesReceived"], 3072);
}

#[test]
fn status_without_a_gateway_fails_and_names_the_flag() {
    let port = crate::common::free_port();
    let refused = status(port, &[]);
    let printed = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{printed}");
    let expected = format!("muxgate: no gateway answers at 127.0.0.1:{port}: Connection refused");
    assert!(printed.starts_with(&expected), "{printed}");
    assert!(
        printed.contains("fix: start the gateway with --admin"),
        "{printed}"
    );

    // The server is not a muxgate.
    let (listener, address) = crate::common::target();
    let server = std::thread::spawn(move || {
        let mut tcp = crate::common::accept(&listener);
        assert!(tcp.read(&mut [0; 1024]).unwrap() > 0);
        tcp.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
    });
    let refused = status(address.port(), &[]);
    server.join().unwrap();
    let printed = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("not as the admin port of a muxgate"),
        "{printed}"
    );
    assert!(printed.contains("404 Not Found"), "{printed}");
}

#[test]
fn sighup_reads_the_file_again_and_sigusr1_does_nothing() {
    let port = crate::common::free_port();
    let exit = Gate::with_file(&format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: '127.0.0.1:{port}'\nadmin: ADMIN\nallow: [{{host: '*'}}]\n"
    ))
    .until_ready();
    exit.signal("USR1");
    exit.signal("HUP");
    exit.line(&["Configuration reloaded", "allow=1"]);
    assert_eq!(exit.get("/readyz").0, 200);
}

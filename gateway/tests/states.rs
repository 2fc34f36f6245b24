//! What `/status` and `/metrics` report about the files that a gateway follows, and about the dials
//! of its forwards.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use crate::common::authority::{Authority, Files};
use crate::common::ends::*;
use crate::common::*;
use serde_json::Value;

/// The error of a file in `/status`; `None`: its newest content is in force.
fn error_of(gate: &Gate, file: &Path) -> Option<String> {
    let status = gate.status();
    let files = status["files"].as_array().unwrap();
    let path = file.to_str().unwrap();
    let file = files.iter().find(|one| one["path"] == path);
    let file = file.unwrap_or_else(|| panic!("{path} has no state: {files:?}"));
    file["error"].as_str().map(str::to_owned)
}

fn rejected(gate: &Gate, file: &Path, purpose: &str) -> u64 {
    let labels = format!("{{file=\"{}\",use=\"{purpose}\"}}", file.display());
    let name = format!("muxgate_file_rejected{labels} ");
    let page = gate.get("/metrics").1;
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap().parse::<f64>().unwrap() as u64
}

fn replace(file: &Path, text: impl AsRef<[u8]>) {
    let staged = file.with_extension("new");
    std::fs::write(&staged, text).unwrap();
    std::fs::rename(staged, file).unwrap();
}

#[test]
fn a_key_that_does_not_fit_its_certificate_is_reported_until_it_fits() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (own, _, ends) = tls(dir.path(), &authority);
    let (listener, target) = target();
    let carrier = carrier_address();
    let exit = exit(&ends.exit, carrier, target).until_ready();
    let (entry, forward) = entry(&ends.entry, "Native", carrier, target);
    let _entry = entry.until_ready();
    let Files {
        certificate,
        key,
        ca,
        ..
    } = &own;
    for file in [certificate, key, ca] {
        assert_eq!(error_of(&exit, file), None);
        assert_eq!(rejected(&exit, file, "Credentials"), 0);
    }
    let before = std::fs::read(key).unwrap();
    let other = tempfile::tempdir().unwrap();
    let foreign = authority.issue(other.path(), "other.example.com", LATER);
    replace(key, std::fs::read(&foreign.key).unwrap());
    until("the key is rejected", || error_of(&exit, key).is_some());
    let error = error_of(&exit, key).unwrap();
    assert!(error.starts_with("MT0231: "), "{error}");
    assert_eq!(rejected(&exit, key, "Credentials"), 1);
    // The other files are in force, and the gateway serves on with the old key.
    assert_eq!(
        (error_of(&exit, certificate), error_of(&exit, ca)),
        (None, None)
    );
    assert_exact(&connect(forward), &listener);
    replace(key, before);
    until("the key is in force", || error_of(&exit, key).is_none());
    assert_eq!(rejected(&exit, key, "Credentials"), 0);
}

#[test]
fn each_file_that_a_gateway_follows_has_a_state() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let users = at("users");
    std::fs::write(&users, "anna:secret-of-anna\n").unwrap();
    let (carrier, listen) = (carrier_address(), free_port());
    let yaml = |more: &str| {
        format!(
            "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: '{carrier}'\nadmin: ADMIN\nproxies:\n\
             - {{name: any, listen: '127.0.0.1:{listen}', protocol: SOCKS5, usersFile: '{}'}}\n{more}",
            users.display()
        )
    };
    let gate = Gate::with_file(&yaml(""));
    let of_use = |purpose: &str| -> Vec<Value> {
        let files = gate.status()["files"].as_array().unwrap().clone();
        files
            .into_iter()
            .filter(|file| file["use"] == purpose)
            .collect()
    };
    until("the users file has a state", || !of_use("Users").is_empty());
    assert_eq!(of_use("Resolver").len(), 2);
    assert_eq!(error_of(&gate, &users), None);
    // No client authenticates.
    replace(&users, "anna\n");
    until("the users are rejected", || {
        error_of(&gate, &users).is_some()
    });
    assert_eq!(rejected(&gate, &users, "Users"), 1);
    replace(&users, "anna:another-secret\n");
    until("the users are in force", || {
        error_of(&gate, &users).is_none()
    });
    // The configuration.
    let configuration = || {
        of_use("Configuration")[0]["error"]
            .as_str()
            .map(str::to_owned)
    };
    assert_eq!(configuration(), None);
    gate.rewrite(&yaml("nonsense: 1\n"));
    until("the configuration is rejected", || {
        configuration().is_some()
    });
    assert!(configuration().unwrap().contains("MT0101"));
    gate.rewrite(&yaml("timeouts: {idleSeconds: 7}\n"));
    until("the configuration is in force", || {
        configuration().is_none()
    });
}

#[test]
fn an_entry_reports_why_it_has_no_carrier() {
    let carrier = carrier_address();
    let (entry, _) = entry("{mode: None}", "Native", carrier, carrier);
    let error = || entry.status()["carrierError"].as_str().map(str::to_owned);
    until("the entry has dialled", || error().is_some());
    let text = error().unwrap();
    assert!(text.contains("refused"), "{text}");
    let _exit = exit("{mode: None}", carrier, carrier).until_ready();
    let entry = entry.until_ready();
    assert_eq!(entry.status()["carrierError"], Value::Null);
}

/// The dials of a forward in `/status`: connected and failed.
fn dials(gate: &Gate, name: &str) -> Option<(u64, u64)> {
    let status = gate.status();
    let forwards = status["forwards"].as_array().unwrap();
    let forward = forwards.iter().find(|one| one["name"] == name)?;
    let dials = &forward["dials"];
    Some((dials["connected"].as_u64()?, dials["failed"].as_u64()?))
}

fn socks5(proxy: SocketAddr, target: SocketAddr) -> u8 {
    let mut tcp = TcpStream::connect(proxy).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut request = b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01".to_vec();
    request.extend(target.port().to_be_bytes());
    tcp.write_all(&request).unwrap();
    let mut answer = [0; 4];
    tcp.read_exact(&mut answer).unwrap();
    answer[3]
}

#[test]
fn dials_count_for_a_fixed_target_and_not_for_one_that_a_client_names() {
    for protocol in ["Native", "JMUX", "HTTP2"] {
        let (listener, good) = target();
        let bad: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let (carrier, ports) = (free_port(), [free_port(), free_port(), free_port()]);
        let exit = Gate::exit(protocol, carrier, &["127.0.0.1"]);
        let [to_good, to_bad, proxy] = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let forward = |name: &str, at: SocketAddr, target: SocketAddr| {
            let port = target.port();
            format!(
                "- {{name: {name}, listen: '{at}', targets: [{{host: 127.0.0.1, port: {port}}}]}}\n"
            )
        };
        let entry = Gate::with_file(&format!(
            "role: Entry\nprotocol: {protocol}\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\n\
             admin: ADMIN\nforwards:\n{}{}proxies:\n- {{name: proxy, listen: '{proxy}', protocol: SOCKS5}}\n",
            forward("good", to_good, good),
            forward("bad", to_bad, bad),
        ))
        .until_ready();
        for _ in 0..3 {
            assert_reset_or_end(&connect(to_bad));
            assert_eq!(socks5(proxy, bad), 5, "{protocol}");
        }
        assert_exact(&connect(to_good), &listener);
        until(&format!("{protocol}: the dials are counted"), || {
            dials(&entry, "bad") == Some((0, 3)) && dials(&entry, "good") == Some((1, 0))
        });
        assert_eq!(dials(&entry, "proxy"), None, "{protocol}");
        drop(exit);
    }
}

#[test]
fn the_dials_of_a_reverse_forward_count_on_both_sides() {
    let bad: SocketAddr = ([127, 0, 0, 1], free_port()).into();
    let (carrier, listen) = (free_port(), free_port());
    let exit = Gate::with_file(&format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\nallowListen: ['{listen}']\n"
    ))
    .until_ready();
    let entry = Gate::with_file(&format!(
        "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\nreverseForwards:\n\
         - {{name: back, listen: '127.0.0.1:{listen}', \
         targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        bad.port()
    ))
    .until_ready();
    entry.until_listening();
    for _ in 0..2 {
        assert_reset_or_end(&connect(([127, 0, 0, 1], listen).into()));
    }
    until("both sides count", || {
        let at_exit = &exit.status()["forwards"][0]["dials"];
        dials(&entry, "back") == Some((0, 2)) && at_exit["failed"] == 2
    });
}

//! Secured carriers: payload, refused peers, and connections that send nothing.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::authority::{Authority, Files};
use crate::common::ends::*;
use crate::common::*;

fn carries_bulk_without_splicing(protocol: &str, ends: &Ends) {
    let (listener, target) = target();
    let carrier = carrier_address();
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: {protocol}\nsecurity: {}\nlisten: '{carrier}'\nadmin: ADMIN\nworkers: 2\nallow: [{target_rule}]\n",
        ends.exit,
        target_rule = crate::common::rule(target)
    ));
    let (entry, forward) = entry(&ends.entry, protocol, carrier, target);
    let entry = entry.until_ready();
    for _ in 0..2 {
        assert_exact(&connect(forward), &listener);
    }
    for gate in [&entry, &exit] {
        let splice = &gate.status()["splice"];
        for what in ["bytesSent", "bytesReceived"] {
            assert_eq!(splice[what], 0, "{splice}");
        }
    }
}

#[test]
fn certificates_of_keygen_and_the_command_lines_that_it_prints_make_a_tunnel() {
    let (listener, target) = target();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("tls");
    let keygen = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muxgate"));
        command.args(["keygen", "--tls"]).arg(&folder).args(more);
        command.output().unwrap()
    };
    let done = keygen(&["--exit", EXIT, "--exit", "192.0.2.1"]);
    assert!(done.status.success(), "{done:?}");
    let (carrier, port) = (carrier_address(), free_port());
    let said = String::from_utf8(done.stdout).unwrap();
    let lines: Vec<_> = said
        .lines()
        .map(|line| {
            let filled = line.replace("0.0.0.0:64000", &carrier.to_string());
            let filled = filled.replace("EXIT:64000", &carrier.to_string());
            let filled = filled.replace("PORT:HOST:PORT", &format!("{port}:{target}"));
            filled.replace("HOST:PORT", &target.to_string())
        })
        .collect();
    let words = |line: usize| lines[line].split(' ').skip(1).collect::<Vec<_>>();
    let exit = Gate::with_flags(&words(0));
    let _entry = Gate::with_flags(&words(1)).until_ready();
    assert_exact(&connect(([127, 0, 0, 1], port).into()), &listener);
    // Without `--force`, existing files are not overwritten.
    let again = keygen(&[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        String::from_utf8(again.stderr)
            .unwrap()
            .contains("without --force")
    );
    assert!(keygen(&["--force"]).status.success());
    drop(exit);
}

#[test]
fn a_rule_for_one_peer_is_for_the_one_whose_certificate_says_so() {
    const OTHER: &str = "other.example.com";
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (own, _, ends) = tls(dir.path(), &authority);
    let both = own.security(&format!("{ENTRY}', '{OTHER}"));
    let other = authority.issue(dir.path(), OTHER, LATER).security(EXIT);
    let (listener, target) = target();
    let carrier = carrier_address();
    let _exit = Gate::with_file(&format!(
        "role: Exit\nsecurity: {both}\nlisten: '{carrier}'\nadmin: ADMIN\nallow: [{}]\n",
        crate::common::rule(format!("{target},peer={ENTRY}"))
    ))
    .until_ready();
    let (named, forward) = entry(&ends.entry, "Native", carrier, target);
    let _named = named.until_ready();
    assert_exact(&connect(forward), &listener);
    let (other, forward) = entry(&other, "Native", carrier, target);
    let other = other.until_ready();
    assert_reset(&connect(forward));
    other.line(&["MT0204"]);
}

#[test]
fn bulk_arrives_exactly_over_tls_with_certificates_and_with_keys() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, tls) = tls(dir.path(), &Authority::new());
    for ends in [tls, by_keys(dir.path())] {
        for protocol in ["Native", "JMUX"] {
            carries_bulk_without_splicing(protocol, &ends);
        }
    }
}

#[test]
fn bulk_arrives_exactly_over_web_sockets_alone_over_tls_and_below_tls_with_keys() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, tls) = tls(dir.path(), &Authority::new());
    let plain = Ends {
        exit: "{mode: None}".to_owned(),
        entry: "{mode: None}".to_owned(),
    };
    for ends in [plain, tls, by_keys(dir.path())] {
        let web_socket = |security: &str| {
            format!("{security}\ntransport: WebSocket\nwebSocket: {{path: /carrier}}")
        };
        let ends = Ends {
            exit: web_socket(&ends.exit),
            entry: web_socket(&ends.entry),
        };
        for protocol in ["Native", "JMUX"] {
            carries_bulk_without_splicing(protocol, &ends);
        }
    }
}

#[test]
fn bulk_arrives_exactly_over_kcp_with_keys_and_with_certificates_of_both_or_one() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (own, _, mutual) = tls(dir.path(), &authority);
    let one = Ends {
        exit: format!(
            "{{mode: ServerTls, certificate: '{}', key: '{}', allowAnonymous: true}}",
            own.certificate.display(),
            own.key.display()
        ),
        entry: format!(
            "{{mode: ServerTls, ca: '{}', serverName: {EXIT}}}",
            own.ca.display()
        ),
    };
    for ends in [&mutual, &by_keys(dir.path()), &one] {
        carries_bulk_without_splicing(OVER_KCP, ends);
    }
}

/// Sends an upgrade request, followed by `frames`. Returns the response.
fn web_socket(carrier: SocketAddr, path: &str, frames: &[u8]) -> Vec<u8> {
    let tcp = connect(carrier);
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: here\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    (&tcp).write_all(request.as_bytes()).unwrap();
    (&tcp).write_all(frames).unwrap();
    read_all(&tcp)
}

#[test]
fn a_web_socket_is_answered_as_the_rfc_says_and_at_its_path_alone() {
    let carrier = carrier_address();
    let exit = exit(
        "{mode: None}\ntransport: WebSocket\nwebSocket: {path: /carrier}",
        carrier,
        carrier,
    );
    // A masked ping, followed by a close frame.
    let frames = b"\x89\x83\x01\x02\x03\x04\x11\x22\x33\x88\x80\0\0\0\0";
    let answer = web_socket(carrier, "/carrier?query", frames);
    let text = String::from_utf8_lossy(&answer);
    assert!(text.starts_with("HTTP/1.1 101 "), "{text}");
    // The example of RFC 6455, section 1.3.
    assert!(text.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
    let pong = b"\x8a\x03\x10\x20\x30";
    assert!(answer.windows(pong.len()).any(|bytes| bytes == pong));
    let answer = web_socket(carrier, "/other", &[]);
    assert!(answer.starts_with(b"HTTP/1.1 404 "));
    exit.line(&["MT0230", "404"]);
    // An unmasked frame, and a frame of unknown type.
    for frames in [&b"\x82\x01a"[..], b"\x83\x81\0\0\0\0a"] {
        let tcp = connect(carrier);
        (&tcp).write_all(frames).unwrap();
        assert!(!web_socket(carrier, "/carrier", frames).ends_with(b"a"));
    }
    exit.line(&["malformed"]);
    exit.line(&["not binary"]);
}

#[test]
fn a_handshake_names_no_authority_and_knows_its_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let (_, good, ends) = tls(dir.path(), &Authority::new());
    let carrier = carrier_address();
    let _exit = exit(&ends.exit, carrier, carrier);
    let shown = |alpn: &[&str]| {
        let mut command = Command::new("openssl");
        command
            .args(["s_client", "-connect", &carrier.to_string()])
            .arg("-cert")
            .arg(&good.certificate)
            .arg("-key")
            .arg(&good.key)
            .arg("-CAfile")
            .arg(&good.ca)
            .args(alpn);
        let done = command.stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    };
    let carriers = shown(&["-alpn", "muxtunnel/1"]);
    assert!(
        carriers.contains("ALPN protocol: muxtunnel/1"),
        "{carriers}"
    );
    assert!(
        carriers.contains("No client certificate CA names sent"),
        "{carriers}"
    );
    // jetsocat offers no ALPN protocol. A browser offers other protocols.
    assert!(shown(&[]).contains("No ALPN negotiated"));
    let browser = shown(&["-alpn", "h2,http/1.1"]);
    assert!(browser.contains("no application protocol"), "{browser}");
}

/// The output of `openssl s_client` on a carrier, after input that is not a hello.
fn s_client(carrier: SocketAddr, files: Option<&Files>) -> (Vec<u8>, String) {
    let mut command = Command::new("openssl");
    command
        .args(["s_client", "-quiet", "-connect", &carrier.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(files) = files {
        command.arg("-cert").arg(&files.certificate);
        command.arg("-key").arg(&files.key);
        command.arg("-CAfile").arg(&files.ca);
        command.args(["-verify_return_error", "-verify_hostname", EXIT]);
    }
    let mut child = command
        .spawn()
        .expect("openssl is needed: apt-get install openssl");
    let mut stdin = child.stdin.take().unwrap();
    let _ = stdin.write_all(&[0xff; 64]);
    let done = child.wait_with_output().unwrap();
    drop(stdin);
    (
        done.stdout,
        String::from_utf8_lossy(&done.stderr).into_owned(),
    )
}

#[test]
fn openssl_gets_through_the_handshake_with_a_good_certificate_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (_, good, ends) = tls(dir.path(), &authority);
    let carrier = carrier_address();
    let exit = exit(&ends.exit, carrier, carrier);
    s_client(carrier, Some(&good));
    // The session has received the input, and rejects it as a hello.
    exit.line(&["these bytes are not the native protocol"]);
    let expired = tempfile::tempdir().unwrap();
    let expired = authority.issue(expired.path(), ENTRY, 2021);
    let wrong = authority.issue(dir.path(), "spiffe://example.com/other", LATER);
    let stranger = tempfile::tempdir().unwrap();
    let stranger = Files {
        ca: good.ca.clone(),
        ..Authority::new().issue(stranger.path(), ENTRY, LATER)
    };
    for (files, reason) in [
        (None, "peer sent no certificates"),
        (Some(&wrong), "NotValidForName"),
        (Some(&expired), "expired"),
        (Some(&stranger), "UnknownIssuer"),
    ] {
        let (answer, log) = s_client(carrier, files);
        assert!(
            answer.is_empty() && log.contains("alert"),
            "{reason}: {log}"
        );
        let line = exit.line(&["MT0230", reason]);
        assert!(!line.contains("hello"), "{line}");
    }
    assert_eq!(
        metric(&exit, "muxgate_opens_refused_total{code=\"MT0230\"}"),
        4
    );
}

#[test]
fn an_entry_refuses_an_exit_that_is_not_the_one_it_was_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let (_, files, ends) = tls(dir.path(), &Authority::new());
    let carrier = carrier_address();
    let _exit = exit(&ends.exit, carrier, carrier);
    let security = files.security("another.example.com");
    let (entry, _) = entry(&security, "Native", carrier, carrier);
    entry.line(&["No carrier", "NotValidForName"]);
    assert_eq!(entry.get("/readyz").0, 503);
}

#[test]
fn changed_certificates_are_for_new_carriers_and_streams_go_on() {
    let (listener, target) = target();
    let dir = tempfile::tempdir().unwrap();
    let (_, _, ends) = tls(dir.path(), &Authority::new());
    let carrier = carrier_address();
    let exit = exit(&ends.exit, carrier, target);
    let (first, forward) = entry(&ends.entry, "Native", carrier, target);
    let first = first.until_ready();
    let client = connect(forward);
    let old = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(dir.path()).unwrap().flatten() {
        std::fs::copy(file.path(), old.path().join(file.file_name())).unwrap();
    }
    std::fs::write(dir.path().join(format!("{EXIT}.key.pem")), "no key").unwrap();
    exit.line(&[
        "MT0231",
        "no private key",
        "previous credentials remain in use",
    ]);
    let shown = exit.status()["certificate"].clone();
    assert_eq!(shown["fingerprint"].as_str().unwrap().len(), 64);
    assert_eq!(shown["notBefore"], "2020-01-01T00:00:00Z");
    tls(dir.path(), &Authority::new());
    exit.line(&["New credentials loaded"]);
    let renewed = exit.status()["certificate"].clone();
    assert_ne!(renewed["fingerprint"], shown["fingerprint"]);
    first.line(&["New credentials loaded"]);
    let (second, second_forward) = entry(&ends.entry, "Native", carrier, target);
    let second = second.until_ready();
    let before = ends
        .entry
        .replace(dir.path().to_str().unwrap(), old.path().to_str().unwrap());
    let (third, _) = entry(&before, "Native", carrier, target);
    third.line(&["No carrier", "UnknownIssuer"]);
    assert_exact(&client, &listener);
    assert_exact(&connect(second_forward), &listener);
    drop((first, second));
}

/// A path that modifies a byte on its way to the exit when requested.
fn tampering_path(exit: SocketAddr) -> (SocketAddr, Arc<AtomicBool>, Arc<AtomicUsize>) {
    let (listener, address) = target();
    let (tamper, carriers) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (told, count) = (Arc::clone(&tamper), Arc::clone(&carriers));
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(exit).unwrap();
            count.fetch_add(1, Ordering::Relaxed);
            for (mut from, mut to, tampers) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap(), true),
                (far, near, false),
            ] {
                let told = Arc::clone(&told);
                std::thread::spawn(move || {
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = from.read(&mut bytes) {
                        if tampers && length > 1000 && told.swap(false, Ordering::Relaxed) {
                            bytes[length / 2] ^= 1;
                        }
                        if to.write_all(&bytes[..length]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                    let _ = from.shutdown(Shutdown::Both);
                });
            }
        }
    });
    (address, tamper, carriers)
}

#[test]
fn a_changed_byte_ends_the_carrier_and_the_streams_go_on_over_another() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, tls) = tls(dir.path(), &Authority::new());
    for ends in [tls, by_keys(dir.path())] {
        let (listener, target) = target();
        let carrier = carrier_address();
        let exit = exit(&ends.exit, carrier, target);
        let (path, tamper, carriers) = tampering_path(carrier);
        let (entry, forward) = entry(&ends.entry, "Native", path, target);
        let _entry = entry.until_ready();
        let client = connect(forward);
        let before = carriers.load(Ordering::Relaxed);
        tamper.store(true, Ordering::Relaxed);
        assert_exact(&client, &listener);
        assert!(!tamper.load(Ordering::Relaxed));
        exit.line(&["modified in transit"]);
        until("another carrier is dialled", || {
            carriers.load(Ordering::Relaxed) > before
        });
    }
}

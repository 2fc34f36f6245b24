//! Tests with a real jetsocat on either end (`make interop`). They fail if jetsocat is not on PATH.
//!
//! The tests do not cover resets, because jetsocat forwards a reset as an end of file.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::*;

const MIB: usize = 1 << 20;

struct Jetsocat(Child);

impl Jetsocat {
    fn start(args: &[&str]) -> Self {
        Self::trusting(Path::new(""), args)
    }

    /// Starts jetsocat. The authorities in `ca` replace the system's authorities.
    fn trusting(ca: &Path, args: &[&str]) -> Self {
        let child = Command::new("jetsocat")
            .arg("jmux-proxy")
            .args(args)
            .env("SSL_CERT_FILE", ca)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(
            child.expect(
                "jetsocat is not on PATH: install it from the Devolutions Gateway releases",
            ),
        )
    }
}

impl Drop for Jetsocat {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tunnels to `target` with jetsocat as one end.
struct Mixed {
    gate: Gate,
    forward: SocketAddr,
    _jetsocat: Jetsocat,
}

/// Our entry listens for clients, and jetsocat dials the target.
fn jetsocat_exit(target: SocketAddr) -> Mixed {
    jetsocat_exit_with(target, 4096, "")
}

/// `scheme` is `ws://` for WebSocket carriers, otherwise empty.
fn jetsocat_exit_with(target: SocketAddr, packet_bytes: u16, scheme: &str) -> Mixed {
    let (carrier, forward) = (free_port(), free_port());
    let listen = match scheme {
        "" => "tcp-listen",
        _ => "ws-listen",
    };
    let jetsocat = Jetsocat::start(&[&format!("{listen}://127.0.0.1:{carrier}"), "--allow-all"]);
    let gate = Gate::with_flags(&[
        "entry",
        "--protocol",
        "jmux",
        "--security",
        "none",
        "--packet-bytes",
        &packet_bytes.to_string(),
        "--connect",
        &format!("{scheme}127.0.0.1:{carrier}"),
        "--forward",
        &format!("{forward}:{target}"),
    ])
    .until_ready();
    Mixed {
        gate,
        forward: ([127, 0, 0, 1], forward).into(),
        _jetsocat: jetsocat,
    }
}

/// jetsocat listens for clients and our exit dials the target.
fn jetsocat_entry(target: SocketAddr) -> Mixed {
    jetsocat_entry_with(target, "", "tcp://")
}

/// `scheme` is the scheme of our carriers. `theirs` is jetsocat's name for the same scheme.
fn jetsocat_entry_with(target: SocketAddr, scheme: &str, theirs: &str) -> Mixed {
    let (carrier, forward) = (free_port(), free_port());
    let gate = Gate::with_flags(&[
        "exit",
        "--protocol",
        "jmux",
        "--security",
        "none",
        "--listen",
        &format!("{scheme}127.0.0.1:{carrier}"),
        "--allow",
        &target.to_string(),
    ]);
    let jetsocat = Jetsocat::start(&[
        &format!("{theirs}127.0.0.1:{carrier}"),
        &format!("tcp-listen://127.0.0.1:{forward}/{target}"),
    ]);
    until("jetsocat has its carrier", || {
        gate.status()["carriers"].as_array().unwrap().len() == 1
    });
    let forward = ([127, 0, 0, 1], forward).into();
    until("jetsocat listens", || TcpStream::connect(forward).is_ok());
    Mixed {
        gate,
        forward,
        _jetsocat: jetsocat,
    }
}

/// Accepts the stream of `client`. Skips streams that only probed whether jetsocat listens.
fn accept_speaking(listener: &TcpListener, mut client: &TcpStream) -> TcpStream {
    client.write_all(b"!").unwrap();
    loop {
        let server = accept(listener);
        let mut first = [0];
        if std::io::Read::read(&mut &server, &mut first).unwrap() == 1 {
            return server;
        }
    }
}

fn both(run: impl Fn(Mixed, TcpListener)) {
    let (listener, address) = target();
    run(jetsocat_exit(address), listener);
    let (listener, address) = target();
    run(jetsocat_entry(address), listener);
}

#[test]
#[ignore = "needs jetsocat on PATH; run by make interop"]
fn bytes_arrive_exactly_in_both_directions_at_once() {
    both(|mixed, listener| both_directions(&mixed, &listener));
}

#[test]
#[ignore = "needs jetsocat on PATH; run by make interop"]
fn packets_of_65535_bytes_are_taken_and_sent() {
    let (listener, address) = target();
    both_directions(&jetsocat_exit_with(address, 65535, ""), &listener);
}

#[test]
#[ignore = "needs jetsocat on PATH; run by make interop"]
fn carriers_may_be_web_sockets() {
    let (listener, address) = target();
    both_directions(&jetsocat_exit_with(address, 4096, "ws://"), &listener);
    let (listener, address) = target();
    both_directions(&jetsocat_entry_with(address, "ws://", "ws://"), &listener);
}

#[test]
#[ignore = "needs jetsocat on PATH; run by make interop"]
fn jetsocat_comes_as_a_secure_web_socket_that_has_no_certificate() {
    let (listener, target) = target();
    let (carrier, forward) = (free_port(), free_port());
    let folder = tempfile::tempdir().unwrap();
    let files = crate::common::authority::Authority::new().issue(folder.path(), "localhost", 2100);
    let gate = Gate::with_file(&format!(
        "role: Exit\nprotocol: JMUX\nsecurity: {{mode: ServerTls, certificate: '{}', key: '{}', \
         allowAnonymous: true}}\ntransport: WebSocket\nwebSocket: {{path: /jet}}\nlisten: 127.0.0.1:{carrier}\nadmin: ADMIN\n\
         allow: [{target_rule}]\n",
        files.certificate.display(),
        files.key.display(),
        target_rule = crate::common::rule(target)
    ));
    let jetsocat = Jetsocat::trusting(
        &files.ca,
        &[
            &format!("wss://localhost:{carrier}/jet"),
            &format!("tcp-listen://127.0.0.1:{forward}/{target}"),
        ],
    );
    let mixed = Mixed {
        gate,
        forward: ([127, 0, 0, 1], forward).into(),
        _jetsocat: jetsocat,
    };
    until("jetsocat listens", || {
        TcpStream::connect(mixed.forward).is_ok()
    });
    both_directions(&mixed, &listener);
}

fn both_directions(mixed: &Mixed, listener: &TcpListener) {
    let client = connect(mixed.forward);
    let server = accept_speaking(listener, &client);
    // A late probe of jetsocat's port may open a stream. That stream ends when its target ends.
    let others = listener.try_clone().unwrap();
    std::thread::spawn(move || others.incoming().for_each(drop));
    assert_bulk(&client, server, 200 * MIB);
    until("the carrier has no streams", || {
        mixed.gate.status()["carriers"][0]["streams"] == 0
    });
}

#[test]
#[ignore = "needs jetsocat on PATH; run by make interop"]
fn either_end_may_finish_first() {
    both(|mixed, listener| {
        let client = connect(mixed.forward);
        let mut server = accept_speaking(&listener, &client);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&server), b"");
        server.write_all(b"answer").unwrap();
        drop(server);
        assert_eq!(read_all(&client), b"answer");

        let mut client = connect(mixed.forward);
        let server = accept_speaking(&listener, &client);
        server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&client), b"");
        client.write_all(b"late").unwrap();
        drop(client);
        assert_eq!(read_all(&server), b"late");
        until("the carrier has no streams", || {
            mixed.gate.status()["carriers"][0]["streams"] == 0
        });
    });
}

#[test]
#[ignore = "needs jetsocat on PATH; run by make interop"]
fn a_stalled_stream_goes_on_where_it_was() {
    both(|mixed, listener| {
        let client = connect(mixed.forward);
        let server = accept_speaking(&listener, &client);
        let flood = pattern(3, 100 * MIB);
        let sender = send_in_background(&client, flood.clone(), true);
        until("payload has been transferred", || {
            let streams = &mixed.gate.status()["streams"];
            streams["bytesSent"].as_u64().unwrap() + streams["bytesReceived"].as_u64().unwrap()
                > MIB as u64
        });
        assert!(read_all(&server) == flood);
        sender.join().unwrap();
    });
}

#[test]
#[ignore = "needs jetsocat on PATH; run by make interop"]
fn a_hundred_streams_share_the_carrier() {
    both(|mixed, listener| {
        let pairs: Vec<_> = (0..100u64)
            .map(|seed| {
                let client = connect(mixed.forward);
                let server = accept_speaking(&listener, &client);
                let sender = send_in_background(&client, pattern(seed, MIB / 2), true);
                (seed, client, server, sender)
            })
            .collect();
        for (seed, _client, server, sender) in pairs {
            assert!(read_all(&server) == pattern(seed, MIB / 2), "stream {seed}");
            sender.join().unwrap();
        }
        assert_eq!(mixed.gate.status()["carriers"].as_array().unwrap().len(), 1);
    });
}

#[test]
#[ignore = "needs jetsocat on PATH; run by make interop"]
fn a_jetsocat_is_told_from_a_peer_of_the_native_protocol() {
    let carrier = free_port();
    let listen = format!("tcp-listen://127.0.0.1:{carrier}");
    let _jetsocat = Jetsocat::start(&[&listen, "--allow-all"]);
    let connect = format!("127.0.0.1:{carrier}");
    let forward = format!("{}:127.0.0.1:1", free_port());
    let flags = ["--security", "none", "--connect", &connect];
    let entry = Gate::with_flags(&[&["entry"], &flags[..], &["--forward", &forward]].concat());
    entry.line(&["before the exit sent its hello", "--protocol JMUX"]);

    let (carrier, forward) = (free_port(), free_port());
    let listen = format!("127.0.0.1:{carrier}");
    let exit = Gate::with_flags(&["exit", "--security", "none", "--listen", &listen]);
    let _jetsocat = Jetsocat::start(&[
        &format!("tcp://127.0.0.1:{carrier}"),
        &format!("tcp-listen://127.0.0.1:{forward}/127.0.0.1:1"),
    ]);
    exit.line(&["before its hello", "--protocol JMUX"]);
}

#[test]
#[ignore = "needs jetsocat on PATH; run by make interop"]
fn a_refused_target_is_told() {
    let (listener, address) = target();
    drop(listener);
    let mixed = jetsocat_exit(address);
    assert_reset(&connect(mixed.forward));
    until("the refusal is counted", || {
        mixed.gate.status()["streams"]["refused"]["MT0205"] == 1
    });
}

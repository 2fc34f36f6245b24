//! WebSocket carriers with a third-party client: tungstenite.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use crate::common::authority::Authority;
use crate::common::peer::hello;
use crate::common::*;
use muxtunnel_proto::native::codec::{self, Decoded, Frame};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tungstenite::client::IntoClientRequest;
use tungstenite::protocol::frame::Frame as Piece;
use tungstenite::protocol::frame::coding::{Data, OpCode};
use tungstenite::{Error, Message, WebSocket};

const NAME: &str = "exit.example.com";

/// An exit at `ws://` or `wss://`, and its port.
fn exit(scheme: &str, more: &[&str]) -> (Gate, u16) {
    let port = free_port();
    let listen = format!("{scheme}://127.0.0.1:{port}/carrier");
    let args = ["exit", "--listen", &listen, "--allow", "192.0.2.1:80"];
    let gate = Gate::with_flags(&[&args[..], more].concat());
    (gate.until_ready(), port)
}

fn plain() -> (Gate, WebSocket<TcpStream>) {
    let (exit, port) = exit("ws", &["--security", "none"]);
    let tcp = connect(([127, 0, 0, 1], port).into());
    let url = format!("ws://127.0.0.1:{port}/carrier");
    let (client, answer) = tungstenite::client(url, tcp).unwrap();
    assert_eq!(answer.status(), 101);
    (exit, client)
}

/// The exit's answer to a hello, which may span several messages.
fn answer<S: Read + Write>(client: &mut WebSocket<S>) -> Frame {
    let mut bytes = Vec::new();
    loop {
        match codec::decode(&bytes) {
            Ok(Decoded::Frame { frame, .. }) => return frame,
            Ok(Decoded::Incomplete { .. }) => bytes.extend(client.read().unwrap().into_data()),
            other => panic!("{other:?}"),
        }
    }
}

fn hello_bytes() -> Vec<u8> {
    codec::encode(&hello(0, [0; 16], [0; 32]))
}

#[test]
fn a_session_begins_with_a_hello_in_one_message() {
    let (_exit, mut client) = plain();
    client.send(Message::binary(hello_bytes())).unwrap();
    assert!(matches!(answer(&mut client), Frame::HelloAck(_)));
}

#[test]
fn a_hello_in_pieces_with_a_ping_between_them_is_the_same() {
    let (_exit, mut client) = plain();
    let hello = hello_bytes();
    let piece = |bytes: &[u8], kind, is_final| {
        Message::Frame(Piece::message(bytes.to_vec(), OpCode::Data(kind), is_final))
    };
    client
        .send(piece(&hello[..1], Data::Binary, false))
        .unwrap();
    client
        .send(Message::Ping(b"still there?".as_slice().into()))
        .unwrap();
    client
        .send(piece(&hello[1..9], Data::Continue, false))
        .unwrap();
    client.send(piece(&[], Data::Continue, false)).unwrap();
    let pong = client.read().unwrap();
    assert_eq!(pong, Message::Pong(b"still there?".as_slice().into()));
    client
        .send(piece(&hello[9..], Data::Continue, true))
        .unwrap();
    assert!(matches!(answer(&mut client), Frame::HelloAck(_)));
}

#[test]
fn a_close_is_answered_by_a_close_and_ends_the_connection() {
    let (exit, mut client) = plain();
    client.send(Message::binary(hello_bytes())).unwrap();
    assert!(matches!(answer(&mut client), Frame::HelloAck(_)));
    client.close(None).unwrap();
    let end = loop {
        match client.read() {
            Ok(Message::Close(_)) => {}
            Ok(Message::Binary(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, Error::ConnectionClosed), "{end:?}");
    exit.line(&["Carrier ended", "closed the carrier"]);
}

/// The exit's log line about a client that sends `bytes` after its upgrade.
fn refused(bytes: &[u8]) -> String {
    let (exit, mut client) = plain();
    client.get_mut().write_all(bytes).unwrap();
    let mut rest = Vec::new();
    // The connection may also end by a reset.
    let _ = client.get_mut().read_to_end(&mut rest);
    exit.line(&["Carrier ended"])
}

#[test]
fn what_breaks_the_protocol_ends_the_connection() {
    let text = refused(b"\x81\x80\0\0\0\0");
    assert!(text.contains("a WebSocket message is not binary"), "{text}");
    for (what, bytes) in [
        ("a ping of 126 bytes", &b"\x89\xfe\x00\x7e\0\0\0\0"[..]),
        (
            "a length with its highest bit set",
            b"\x82\xff\x80\0\0\0\0\0\0\0\0\0\0\0",
        ),
        ("a frame without a mask", b"\x82\x01a"),
        ("an extension that nobody agreed on", b"\xc2\x80\0\0\0\0"),
        ("a ping in pieces", b"\x09\x80\0\0\0\0"),
    ] {
        let said = refused(bytes);
        assert!(
            said.contains("a frame of a WebSocket is malformed"),
            "{what}: {said}"
        );
    }
}

#[test]
fn a_request_for_another_path_is_answered_by_404() {
    let (_exit, port) = exit("ws", &["--security", "none"]);
    let tcp = connect(([127, 0, 0, 1], port).into());
    let end = tungstenite::client(format!("ws://127.0.0.1:{port}/other"), tcp);
    let Err(tungstenite::HandshakeError::Failure(Error::Http(answer))) = end else {
        panic!("{end:?}");
    };
    assert_eq!(answer.status(), 404);
}

/// The status with which an exit with the flags `more` answers a request from a page of `origins`.
fn status_for(origins: &[&str], more: &[&str]) -> u16 {
    let (_exit, port) = exit("ws", &[&["--security", "none"], more].concat());
    let mut request = format!("ws://127.0.0.1:{port}/carrier")
        .into_client_request()
        .unwrap();
    for origin in origins {
        request
            .headers_mut()
            .append("Origin", origin.parse().unwrap());
    }
    let tcp = connect(([127, 0, 0, 1], port).into());
    match tungstenite::client(request, tcp) {
        Ok((_, answer)) => answer.status().as_u16(),
        Err(tungstenite::HandshakeError::Failure(Error::Http(answer))) => answer.status().as_u16(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_web_page_opens_no_carrier_unless_its_origin_is_configured() {
    let (page, other) = ("https://app.example.com", "https://other.example.com");
    for origin in [page, "null", "http://127.0.0.1"] {
        assert_eq!(status_for(&[origin], &[]), 403, "{origin}");
    }
    let permitted = ["--allow-origin", page];
    assert_eq!(status_for(&[page], &permitted), 101);
    assert_eq!(status_for(&[], &permitted), 101, "a gateway");
    assert_eq!(status_for(&[other], &permitted), 403);
    assert_eq!(status_for(&[page, other], &permitted), 403);
}

/// An exit at `wss://`, and its answer to a client without a certificate.
fn secured(more: &[&str], ca: &std::path::Path) -> (Gate, std::io::Result<Frame>) {
    let (exit, port) = exit("wss", more);
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(ca).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(NAME).unwrap();
    let tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = connect(([127, 0, 0, 1], port).into());
    let url = format!("wss://{NAME}:{port}/carrier");
    let end = match tungstenite::client(url, StreamOwned::new(tls, tcp)) {
        Ok((mut client, _)) => {
            client.send(Message::binary(hello_bytes())).unwrap();
            Ok(answer(&mut client))
        }
        Err(error) => Err(std::io::Error::other(error.to_string())),
    };
    (exit, end)
}

#[test]
fn a_client_without_a_certificate_is_taken_where_the_exit_says_so_and_only_there() {
    let folder = tempfile::tempdir().unwrap();
    let files = Authority::new().issue(folder.path(), NAME, 2100);
    let path = |file: &std::path::Path| file.to_str().unwrap().to_owned();
    let (certificate, key, ca) = (path(&files.certificate), path(&files.key), path(&files.ca));
    let own = ["--tls-certificate", &certificate, "--tls-key", &key];
    let anyone = [&own[..], &["--security", "tls", "--allow-anonymous"]].concat();
    let (_exit, end) = secured(&anyone, &files.ca);
    assert!(matches!(end.unwrap(), Frame::HelloAck(_)));
    let known = [
        "--security",
        "certificates",
        "--tls-ca",
        &ca,
        "--peer",
        "entry.example.com",
    ];
    let (exit, end) = secured(&[&own[..], &known].concat(), &files.ca);
    assert!(end.is_err(), "{end:?}");
    exit.line(&["MT0230", "peer sent no certificates"]);
}

#[test]
fn an_entry_without_a_certificate_has_its_exit_prove_its_name() {
    let (listener, target) = target();
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let files = authority.issue(folder.path(), NAME, 2100);
    let path = |file: &std::path::Path| file.to_str().unwrap().to_owned();
    let (certificate, key, ca) = (path(&files.certificate), path(&files.key), path(&files.ca));
    let port = free_port();
    let listen = format!("wss://127.0.0.1:{port}/carrier");
    let allowed = target.to_string();
    let for_one = format!("{},peer={NAME}", "192.0.2.1:80");
    let exit = Gate::with_flags(&[
        "exit",
        "--listen",
        &listen,
        "--allow",
        &allowed,
        "--allow",
        &for_one,
        "--security",
        "tls",
        "--tls-certificate",
        &certificate,
        "--tls-key",
        &key,
        "--allow-anonymous",
    ]);
    let entry = |name: &[&str]| {
        let (local, closed) = (free_port(), free_port());
        let (forward, other) = (
            format!("{local}:{target}"),
            format!("{closed}:192.0.2.1:80"),
        );
        let args = [
            "entry",
            "--connect",
            &listen,
            "--security",
            "tls",
            "--tls-ca",
            &ca,
            "--forward",
            &forward,
            "--forward",
            &other,
        ];
        (Gate::with_flags(&[&args[..], name].concat()), local, closed)
    };
    let (right, local, closed) = entry(&["--tls-server-name", NAME]);
    let _right = right.until_ready();
    let mut client = connect(([127, 0, 0, 1], local).into());
    client.write_all(b"hello").unwrap();
    let mut bytes = [0; 5];
    accept(&listener).read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    // A rule for one peer does not permit an unauthenticated entry, regardless of the entry's
    // server name.
    assert_reset(&connect(([127, 0, 0, 1], closed).into()));
    exit.line(&["MT0204"]);
    // By default, the name is the dialled host, which is not in the certificate.
    for name in [&[][..], &["--tls-server-name", "other.example.com"]] {
        let (wrong, ..) = entry(name);
        wrong.line(&[
            "No carrier",
            "invalid peer certificate",
            "not valid for name",
        ]);
    }
    exit.line(&["MT0230", "Carrier refused"]);
}

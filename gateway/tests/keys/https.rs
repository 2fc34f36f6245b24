//! Carriers over WebSocket through a proxy that ends TLS (`connect[].webSocket.scheme: HTTPS`).

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use super::*;
use crate::common::authority::{Authority, Files};

/// A proxy with the certificate of `files`, which ends TLS and passes the bytes on to `to`. Returns its
/// port.
fn proxy(files: &Files, to: SocketAddr) -> u16 {
    let certificate = CertificateDer::from_pem_file(&files.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for outside in listener.incoming() {
            let tls = Arc::new(Mutex::new(
                ServerConnection::new(Arc::clone(&config)).unwrap(),
            ));
            let (outside, inside) = (outside.unwrap(), connect(to));
            let back = (
                Arc::clone(&tls),
                outside.try_clone().unwrap(),
                inside.try_clone().unwrap(),
            );
            std::thread::spawn(move || {
                let _ = inwards(&tls, &outside, &inside);
                let _ = inside.shutdown(std::net::Shutdown::Both);
            });
            std::thread::spawn(move || {
                let (tls, outside, inside) = back;
                let _ = outwards(&tls, &outside, &inside);
                let _ = outside.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    port
}

type Tls = Mutex<ServerConnection>;

fn flush(tls: &mut ServerConnection, mut outside: &TcpStream) -> std::io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(&mut outside)?;
    }
    Ok(())
}

fn inwards(tls: &Tls, mut outside: &TcpStream, mut inside: &TcpStream) -> std::io::Result<()> {
    let (mut sealed, mut plain) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let length = outside.read(&mut sealed)?;
        if length == 0 {
            return Ok(());
        }
        let mut rest = &sealed[..length];
        while !rest.is_empty() {
            let mut opened = Vec::new();
            {
                let mut tls = tls.lock().unwrap();
                tls.read_tls(&mut rest)?;
                tls.process_new_packets().map_err(std::io::Error::other)?;
                flush(&mut tls, outside)?;
                loop {
                    match tls.reader().read(&mut plain) {
                        Ok(0) => break,
                        Ok(length) => opened.extend_from_slice(&plain[..length]),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error),
                    }
                }
            }
            inside.write_all(&opened)?;
        }
    }
}

fn outwards(tls: &Tls, outside: &TcpStream, mut inside: &TcpStream) -> std::io::Result<()> {
    let mut plain = vec![0; 1 << 14];
    loop {
        let length = inside.read(&mut plain)?;
        if length == 0 {
            return Ok(());
        }
        let mut tls = tls.lock().unwrap();
        tls.writer().write_all(&plain[..length])?;
        flush(&mut tls, outside)?;
    }
}

#[test]
fn pinned_tls_runs_inside_the_tls_of_a_proxy_that_the_system_verifies() {
    let (dir, [exit_key, entry_key, _]) = keys();
    let (listener, target) = target();
    let carrier = carrier_address();
    let way = (
        "Native",
        "transport: WebSocket\nwebSocket: {path: /carrier}\n",
    );
    let security = exit_key.accepts(&[&entry_key.entry]);
    let exit = Gate::with_file(&exit_file(way, &security, carrier, target)).until_ready();
    let authority = Authority::new();
    let port = proxy(&authority.issue(dir.path(), "localhost", 2100), carrier);
    let other = tempfile::tempdir().unwrap();
    let others = Authority::new().issue(other.path(), "localhost", 2100);
    let entry = |roots: &Path, forward: u16| {
        let own = entry_key.file.to_str().unwrap();
        let at = format!("wss://localhost:{port}/carrier");
        let forward = format!("127.0.0.1:{forward}:{target}");
        let args: [&str; 9] = [
            "entry",
            "--key",
            own,
            "--peer",
            &exit_key.exit,
            "--connect",
            &at,
            "--forward",
            &forward,
        ];
        Gate::with_environment(&args, &[("SSL_CERT_FILE", roots.to_str().unwrap())])
    };
    let forward = free_port();
    let entry_gate = entry(&dir.path().join("localhost.ca.pem"), forward).until_ready();
    for _ in 0..2 {
        let client = connect(([127, 0, 0, 1], forward).into());
        assert_bulk(&client, accept(&listener), MIB);
    }
    // The exit knows the entry by its key, and not by the TLS of the proxy.
    assert!(exit.status()["peers"][0]["carriers"].as_u64() > Some(0));
    assert_eq!(entry_gate.status()["carriers"][0]["transport"], "WebSocket");
    drop(entry_gate);

    // Without the authority of the proxy, the entry does not even send its request.
    let refused = entry(&others.ca, free_port());
    refused.line(&["TLS to the proxy localhost", "webSocket.scheme HTTPS"]);
    until("the exit has no carrier", || {
        exit.status()["peers"][0]["carriers"] == 0
    });
}

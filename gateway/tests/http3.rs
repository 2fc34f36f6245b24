//! HTTP/3 with aioquic, and with peers that abuse the protocol.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use crate::common::aioquic::Aioquic;
use crate::common::http3::*;
use crate::common::interop::*;
use crate::common::*;

/// A stream from an aioquic client to our exit, with certificates on both sides.
fn from_aioquic(tls: &Tls, listener: &TcpListener) -> Ends {
    let target = listener.local_addr().unwrap();
    let (gate, carrier) = exit("HTTP3", Some(tls), target);
    let aioquic = Aioquic::entry(carrier, target, &tls.entry, EXIT);
    let client = connect(aioquic.address);
    Ends {
        server: accept(listener),
        client,
        gate,
        peer: Box::new(aioquic),
    }
}

/// Our entry to a server, such as aioquic's, that requests no client certificate.
fn entry_of_aioquic(
    tls: &Tls,
    aioquic: &Aioquic,
    target: std::net::SocketAddr,
) -> (Gate, std::net::SocketAddr) {
    let forward = crate::common::aioquic::loopback();
    let gate = Gate::with_file(&format!(
        "role: Entry\nprotocol: HTTP3\nsecurity: {{mode: ServerTls, ca: '{}', serverName: {EXIT}}}\n\
         connect:\n- name: far\n  address: '{}'\nadmin: ADMIN\nforwards:\n\
         - {{name: a, listen: '{forward}', targets: [{{host: {}, port: {}}}]}}\n",
        tls.entry.ca.display(),
        aioquic.address,
        target.ip(),
        target.port()
    ));
    (gate.until_ready(), forward)
}

/// A stream from our entry to an aioquic server.
fn to_aioquic(tls: &Tls, listener: &TcpListener) -> Ends {
    let target = listener.local_addr().unwrap();
    let aioquic = Aioquic::exit(&tls.exit, false);
    let (gate, forward) = entry_of_aioquic(tls, &aioquic, target);
    let client = connect(forward);
    Ends {
        server: accept(listener),
        client,
        gate,
        peer: Box::new(aioquic),
    }
}

#[test]
fn an_aioquic_client_reaches_targets_through_an_exit() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    assert_interoperates(None, &|listener| from_aioquic(&tls, listener));
}

#[test]
fn an_entry_reaches_targets_through_an_aioquic_server() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    assert_interoperates(None, &|listener| to_aioquic(&tls, listener));
}

#[test]
fn an_aioquic_client_is_told_what_the_policy_denies_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    let (_listener, allowed) = target();
    let (_other, denied) = target();
    let (gate, carrier) = exit("HTTP3", Some(&tls), allowed);
    let aioquic = Aioquic::entry(carrier, denied, &tls.entry, EXIT);
    for _ in 0..2 {
        assert_reset(&connect(aioquic.address));
        let words = aioquic.says("refused 403");
        assert!(
            words.contains("muxgate;error=http_request_denied;details="),
            "{words}"
        );
    }
    assert_eq!(gate.status()["streams"]["refused"]["MT0204"], 2);
}

#[test]
fn refusals_of_an_aioquic_server_reach_the_client() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    let (_listener, target) = target();
    let aioquic = Aioquic::exit(&tls.exit, true);
    let (gate, forward) = entry_of_aioquic(&tls, &aioquic, target);
    assert_reset(&connect(forward));
    gate.line(&["WARN", "Connection refused", "403"]);
}

#[test]
fn an_aioquic_client_that_proves_nothing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    let (_listener, target) = target();
    let (gate, carrier) = exit("HTTP3", Some(&tls), target);
    let others = tempfile::tempdir().unwrap();
    let stranger = Tls::new(others.path()).entry;
    let stranger = crate::common::authority::Files {
        ca: tls.entry.ca.clone(),
        ..stranger
    };
    let aioquic = Aioquic::entry_that_may_fail(carrier, target, &stranger, EXIT);
    aioquic.ends();
    assert_eq!(gate.status()["carriers"].as_array().unwrap().len(), 0);
}

/// Each kind of abuse uses its own connections. The exit uses less than 64 MiB, and serves other
/// peers.
#[test]
fn peers_that_abuse_the_protocol_cost_no_memory_and_hold_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    let (listener, target) = target();
    let (gate, carrier) = exit("HTTP3", Some(&tls), target);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let within = Duration::from_secs(60);
        for abuse in Abuse::ALL {
            let peer = Peer::new(carrier, &tls.entry, EXIT).await;
            let end = tokio::time::timeout(within, peer.abuse(abuse, target)).await;
            let code = end.unwrap_or_else(|_| panic!("{abuse:?} was not stopped"));
            assert_eq!(code, abuse.code(), "{abuse:?}");
        }
    });
    assert_small(&gate);
    let (_entry, forward) = entry("HTTP3", Some(&tls), carrier, target);
    let client = connect(forward);
    (&client).write_all(b"hello").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    // Skips connections of the abusers, which may precede this connection in the backlog.
    let mut servers = std::iter::repeat_with(|| accept(&listener)).take(200);
    assert!(servers.any(|server| said(server) == b"hello"));
}

/// The exit accepts 64 streams at once. The entry learns this limit only from the stream credit
/// that the exit grants.
#[test]
fn streams_beyond_what_a_server_takes_at_once_go_over_another_connection() {
    let dir = tempfile::tempdir().unwrap();
    let tls = Tls::new(dir.path());
    let (listener, target) = target();
    let (_exit, carrier) = exit("HTTP3", Some(&tls), target);
    let (entry, forward) = entry("HTTP3", Some(&tls), carrier, target);
    let streams: Vec<_> = (0..90)
        .map(|_| (connect(forward), accept(&listener)))
        .collect();
    for (mut client, mut server) in streams.iter().map(|(client, server)| (client, server)) {
        client.write_all(b"?").unwrap();
        std::io::Read::read_exact(&mut server, &mut [0]).unwrap();
    }
    assert_eq!(entry.status()["carriers"].as_array().unwrap().len(), 2);
    drop(streams);
    // The streams have ended, so the entry needs only one connection again.
    until("the idle connection is closed", || {
        entry.status()["carriers"].as_array().unwrap().len() == 1
    });
}

/// Reads all data up to an end or a reset.
fn said(mut server: std::net::TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    let _ = std::io::Read::read_to_end(&mut server, &mut said);
    said
}

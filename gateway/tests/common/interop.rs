//! Checks of both ends of HTTP/2, for third-party programs as well as gateways of this project.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use crate::common::authority::{Authority, Files};
use crate::common::*;

pub const MIB: usize = 1 << 20;
pub const EXIT: &str = "exit.example.com";
pub const ENTRY: &str = "spiffe://cluster.local/ns/default/sa/entry";
/// Year until which certificates are valid.
pub const LATER: i32 = 2100;

/// The ends of a tunnel, one of which is a program of another project.
pub struct Ends {
    /// The third-party program, which must run as long as the stream is open.
    pub peer: Box<dyn std::any::Any>,
    pub gate: Gate,
    pub client: TcpStream,
    pub server: TcpStream,
}

/// The files of exit and entry, with TLS.
pub struct Tls {
    pub exit: Files,
    pub entry: Files,
}

impl Tls {
    pub fn new(dir: &Path) -> Self {
        let authority = Authority::new();
        Self {
            exit: authority.issue(dir, EXIT, LATER),
            entry: authority.issue(dir, ENTRY, LATER),
        }
    }
}

fn security(files: Option<(&Files, &str)>) -> String {
    files.map_or("{mode: None}".to_owned(), |(files, peer)| {
        files.security(peer)
    })
}

/// Our exit, which may dial `target`.
pub fn exit(protocol: &str, tls: Option<&Tls>, target: SocketAddr) -> (Gate, SocketAddr) {
    let carrier = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let security = security(tls.map(|tls| (&tls.exit, ENTRY)));
    let gate = Gate::with_file(&format!(
        "role: Exit\nprotocol: {protocol}\nsecurity: {security}\nlisten: '{carrier}'\nadmin: ADMIN\n\
         workers: 1\nallow: [{target_rule}]\nmemory: {{receive: 16Mi}}\nlimits: {{streams: 64}}\n",
        target_rule = crate::common::rule(target)
    ));
    (gate.until_ready(), carrier)
}

/// Our entry. Returns the address of its forward to `target`.
pub fn entry(
    protocol: &str,
    tls: Option<&Tls>,
    exit: SocketAddr,
    target: SocketAddr,
) -> (Gate, SocketAddr) {
    let forward = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let security = security(tls.map(|tls| (&tls.entry, EXIT)));
    let gate = Gate::with_file(&format!(
        "role: Entry\nprotocol: {protocol}\nsecurity: {security}\nconnect:\n- name: far\n  address: '{exit}'\nadmin: ADMIN\n\
         workers: 1\nforwards:\n\
         - {{name: a, listen: '{forward}', targets: [{{host: {}, port: {}}}]}}\n",
        target.ip(),
        target.port()
    ));
    (gate.until_ready(), forward)
}

/// Transfers bulk data over streams. The function `stream` creates each stream. The directions
/// follow one another, because some peers end a stream when the target ends first. Asserts that
/// resets arrive as resets. A reset on the side `knows_none` may also arrive as an end of file,
/// because the third-party program does not forward it.
pub fn assert_interoperates(knows_none: Option<Side>, stream: &dyn Fn(&TcpListener) -> Ends) {
    let (listener, _) = target();
    let mut ends = stream(&listener);
    let (up, down) = (pattern(1, 16 * MIB), pattern(2, 16 * MIB));
    let sends = send_in_background(&ends.client, up.clone(), true);
    assert!(read_all(&ends.server) == up);
    sends.join().unwrap();
    ends.server.write_all(&[7]).unwrap();
    ends.client.read_exact(&mut [0]).unwrap();
    let sends = send_in_background(&ends.server, down.clone(), true);
    assert!(read_all(&ends.client) == down);
    sends.join().unwrap();
    until("the stream is completed", || {
        ends.gate.status()["streams"]["closed"]["completed"] == 1
    });
    drop(ends);

    for resets in [Side::Entry, Side::Exit] {
        let (other, _stays) = reset_one(stream(&listener), resets);
        if knows_none == Some(resets) {
            assert_reset_or_end(&other);
        } else {
            assert_reset(&other);
        }
    }
}

/// Sends a byte, and resets the connection of one side. Returns the connection of the other side,
/// and objects that the caller must keep while it uses that connection.
pub fn reset_one(ends: Ends, resets: Side) -> (TcpStream, impl Sized) {
    let Ends {
        peer,
        gate,
        mut client,
        mut server,
    } = ends;
    client.write_all(b"1").unwrap();
    server.read_exact(&mut [0]).unwrap();
    let (cut, other) = match resets {
        Side::Entry => (client, server),
        Side::Exit => (server, client),
    };
    reset(cut);
    (other, (peer, gate))
}

/// A side of the tunnel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Entry,
    Exit,
}

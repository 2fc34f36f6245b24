//! Two ends with secured carriers, and checks of the transferred data.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by tests"
)]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use crate::authority::{Authority, Files};
use crate::common::*;

pub const MIB: usize = 1 << 20;
pub const EXIT: &str = "exit.example.com";
pub const ENTRY: &str = "spiffe://example.com/entry";
/// Year until which certificates are valid.
pub const LATER: i32 = 2100;

/// The `security` of an exit and of its entry.
pub struct Ends {
    pub exit: String,
    pub entry: String,
}

pub fn tls(dir: &Path, authority: &Authority) -> (Files, Files, Ends) {
    let exit = authority.issue(dir, EXIT, LATER);
    let entry = authority.issue(dir, ENTRY, LATER);
    let ends = Ends {
        exit: exit.security(ENTRY),
        entry: entry.security(EXIT),
    };
    (exit, entry, ends)
}

/// Writes a private key for Noise. Returns the public key.
pub fn keygen(file: &Path) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_muxgate"))
        .args(["keygen", "--noise"])
        .arg(file)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Writes the private key of a gateway. Returns its public key as that of an entry and of an exit.
pub fn gateway_key(file: &Path) -> [String; 2] {
    let done = Command::new(env!("CARGO_BIN_EXE_muxgate"))
        .args(["keygen", "--force"])
        .arg(file)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8(done.stdout).unwrap();
    let lines: Vec<_> = said.lines().map(str::to_owned).collect();
    lines.try_into().unwrap()
}

/// The `security` of a gateway with the private key `key` and these peers.
pub fn public_keys(key: &Path, peers: &[&str]) -> String {
    let (key, peers) = (key.display(), peers.join(", "));
    format!("{{mode: PublicKeys, privateKeyFiles: ['{key}'], peers: [{peers}]}}")
}

/// Creates the keys of both ends. With `more_peers`, the entry accepts several peers, so it uses
/// pattern XX.
pub fn noise(dir: &Path, psk: bool, more_peers: bool) -> Ends {
    let (exit, entry) = (dir.join("exit.key"), dir.join("entry.key"));
    let (exit_public, entry_public) = (keygen(&exit), keygen(&entry));
    let mut secret = String::new();
    if psk {
        keygen(&dir.join("psk"));
        secret = format!(", psk: '{}'", dir.join("psk").display());
    }
    let more = if more_peers {
        format!(", '{entry_public}'")
    } else {
        String::new()
    };
    let security = |key: &Path, peers: String| {
        let key = key.display();
        format!("{{mode: Noise, privateKey: '{key}', peers: [{peers}]{secret}}}")
    };
    Ends {
        exit: security(&exit, format!("'{entry_public}'")),
        entry: security(&entry, format!("'{exit_public}'{more}")),
    }
}

pub fn exit(security: &str, carrier: SocketAddr, allow: SocketAddr) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\nsecurity: {security}\nlisten: '{carrier}'\nadmin: ADMIN\nworkers: 2\nallow: ['{allow}']\n"
    ))
    .until_ready()
}

pub fn entry(
    security: &str,
    protocol: &str,
    connect: SocketAddr,
    to: SocketAddr,
) -> (Gate, SocketAddr) {
    let forward = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let gate = Gate::with_file(&format!(
        "role: Entry\nprotocol: {protocol}\nsecurity: {security}\nconnect: '{connect}'\nadmin: ADMIN\nforwards:\n\
         - {{name: a, listen: '{forward}', target: {{host: 127.0.0.1, port: {}}}}}\n",
        to.port()
    ));
    (gate, forward)
}

pub fn carrier_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

/// Sends bulk data in both directions at once over one stream.
pub fn assert_exact(client: &TcpStream, listener: &TcpListener) {
    assert_bulk(client, accept(listener), 16 * MIB);
}

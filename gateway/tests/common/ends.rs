//! Two ends with secured carriers, and checks of the transferred data.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use crate::common::authority::{Authority, Files};
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

/// Writes the private key of a gateway. Returns its public key as that of an entry and of an exit.
pub fn gateway_key(file: &Path) -> [String; 2] {
    let [entry, exit, _] = keys_of_all_roles(file);
    [entry, exit]
}

/// Writes the private key of a gateway. Returns its public key as that of an entry, of an exit and of
/// a rendezvous.
pub fn keys_of_all_roles(file: &Path) -> [String; 3] {
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

/// Creates the keys of both ends.
pub fn by_keys(dir: &Path) -> Ends {
    let (exit, entry) = (dir.join("exit.key"), dir.join("entry.key"));
    let ([_, exit_public], [entry_public, _]) = (gateway_key(&exit), gateway_key(&entry));
    Ends {
        exit: public_keys(&exit, &[&entry_public]),
        entry: public_keys(&entry, &[&exit_public]),
    }
}

pub fn exit(security: &str, carrier: SocketAddr, allow: SocketAddr) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\nsecurity: {security}\nlisten: '{carrier}'\nadmin: ADMIN\nworkers: 2\nallow: [{allow_rule}]\n", allow_rule = crate::common::rule(allow)
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
        "role: Entry\nprotocol: {protocol}\nsecurity: {security}\nconnect:\n- name: far\n  address: '{connect}'\nadmin: ADMIN\nforwards:\n\
         - {{name: a, listen: '{forward}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
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

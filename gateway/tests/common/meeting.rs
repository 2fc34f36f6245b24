//! A rendezvous, and the leaves that meet there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::common::ends::keys_of_all_roles;
use crate::common::*;

pub fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// The keys of all gateways, and the port of the rendezvous.
pub struct Place {
    pub port: u16,
    dir: tempfile::TempDir,
    keys: BTreeMap<&'static str, [String; 3]>,
}

impl Place {
    /// The members are `exit`, `entry` and `member`, which is an entry. The exit accepts `entry`
    /// alone. Nobody knows `stranger`.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let names = ["rendezvous", "exit", "entry", "member", "stranger"];
        let keys = names.map(|name| (name, keys_of_all_roles(&dir.path().join(name))));
        let place = Self {
            port: free_port(),
            dir,
            keys: keys.into(),
        };
        let [near, db] = place.lines();
        let member = place.key("member", 0);
        place.replace_members(&format!("{near}{db}{member} other\n"));
        place
    }

    /// The public key of a gateway as that of an entry (0), an exit (1) or a rendezvous (2).
    pub fn key(&self, name: &str, role: usize) -> String {
        self.keys[name][role].clone()
    }

    /// The lines of the entry and of the exit in the file of members.
    pub fn lines(&self) -> [String; 2] {
        let (near, db) = (self.key("entry", 0), self.key("exit", 1));
        [format!("{near} near\n"), format!("{db} db\n")]
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces the file atomically, so that no reader sees an incomplete file.
    pub fn replace_members(&self, text: &str) {
        let (file, staged) = (self.file("members"), self.file("members.new"));
        std::fs::write(&staged, text).unwrap();
        std::fs::rename(staged, file).unwrap();
    }

    pub fn rendezvous(&self) -> Gate {
        self.rendezvous_with(&[])
    }

    pub fn rendezvous_with(&self, more: &[&str]) -> Gate {
        let listen = loopback(self.port).to_string();
        let [key, members] = ["rendezvous", "members"].map(|name| self.file(name));
        let flags = [
            &["rendezvous", "--listen", &listen][..],
            &["--key", key.to_str().unwrap()],
            &["--members", members.to_str().unwrap()],
            more,
        ];
        Gate::with_flags(&flags.concat()).until_ready()
    }

    /// An exit with the private key `name`.
    pub fn exit(&self, name: &str, target: SocketAddr) -> Gate {
        Gate::with_file(&self.exit_file(name, target))
    }

    pub fn exit_file(&self, name: &str, target: SocketAddr) -> String {
        self.exit_file_at(name, target, loopback(self.port))
    }

    pub fn exit_file_at(&self, name: &str, target: SocketAddr, at: SocketAddr) -> String {
        // A gateway does not accept its own key.
        let peer = match name {
            "entry" => "member",
            _ => "entry",
        };
        format!(
            "role: Exit\nsecurity: {{mode: PublicKeys, privateKeyFiles: ['{key}'], peers: [{peer}]}}\nadmin: ADMIN\n\
             workers: 2\nrendezvous: [{{name: meet, address: '{at}', publicKeys: [{meet}]}}]\nallow: [{rule}]\n",
            key = self.file(name).display(),
            peer = self.key(peer, 0),
            meet = self.key("rendezvous", 2),
            rule = rule(target)
        )
    }

    /// An entry with the private key `name`.
    pub fn entry(&self, name: &str, forward: SocketAddr, target: SocketAddr) -> Gate {
        // A gateway does not accept its own key.
        let exit = match name {
            "exit" => "stranger",
            _ => "exit",
        };
        Gate::with_file(&format!(
            "role: Entry\nsecurity: {{mode: PublicKeys, privateKeyFiles: ['{key}']}}\nadmin: ADMIN\nconnect:\n\
             - {{name: far, rendezvous: {{address: 'localhost:{port}', publicKeys: [{meet}]}}, publicKeys: [{exit}]}}\n\
             pool: {{min: 3, max: 3}}\nforwards:\n\
             - {{name: a, listen: '{forward}', targets: [{{host: 127.0.0.1, port: {to}}}]}}\n",
            key = self.file(name).display(),
            port = self.port,
            meet = self.key("rendezvous", 2),
            exit = self.key(exit, 1),
            to = target.port()
        ))
    }
}

//! The entry of a link. Pure.

use std::collections::BTreeSet;

use kube::{Resource, ResourceExt};
use muxtunnel_crds::MuxTunnel;
use serde_json::{Value, json};

use super::exit::Reach;
use super::service::Target;
use crate::object::{self, Gateways};
use crate::target::authority;

/// Fields of `carrier` that both ends must have in common.
const COMMON: [&str; 3] = ["protocol", "transport", "webSocket"];
/// Maximum length of the name of an exit in `connect`.
const CONNECT_NAME_MAX: usize = 15;

/// The entry to create.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    /// The host of the target.
    pub(super) host: &'a str,
    pub(super) target: &'a Target,
    /// The listening port. `None`: the port of the target.
    pub(super) port: Option<u16>,
}

impl Wanted<'_> {
    /// The forward of an existing entry with this target and port.
    fn forward<'t>(&self, entry: &'t Gateways) -> Option<&'t Value> {
        let target = json!({"host": self.host, "port": self.target.port});
        let mut forwards = entry.spec["forwards"].as_array()?.iter();
        forwards.find(|forward| {
            let targets = forward["targets"].as_array();
            let port = forward["port"].as_u64();
            targets.is_some_and(|targets| targets.contains(&target))
                && self.port.is_none_or(|asked| port == Some(asked.into()))
        })
    }

    /// Why the link cannot use an existing entry.
    pub(super) fn problem_of(&self, entry: &Gateways) -> Option<String> {
        let problem = if connects(entry).is_empty() {
            "has exits of its own (no spec.connect)".to_owned()
        } else if self.forward(entry).is_none() {
            let port = self
                .port
                .map_or_else(String::new, |port| format!(" from port {port}"));
            format!("has no forward{port} to {}:{}", self.host, self.target.port)
        } else {
            return None;
        };
        Some(format!(
            "the MuxTunnel {}/{} exists, and {problem}: choose another name with --name",
            self.namespace, self.name
        ))
    }

    /// The manifest. The existing forward keeps its name and its port, and the existing connection
    /// to the address of the exit keeps its name.
    pub(super) fn manifest(
        &self,
        existing: Option<&Gateways>,
        exit: &Gateways,
        reach: &Reach,
    ) -> Value {
        let Reach { host, port, .. } = reach;
        let mut connects = existing.into_iter().flat_map(connects);
        let connect = connects.find(|one| one["host"] == **host && one["port"] == *port);
        let exit_name = exit.name_any();
        let connect_name = match connect.and_then(|one| one["name"].as_str()) {
            Some(name) => name,
            None if exit_name.len() <= CONNECT_NAME_MAX => &exit_name,
            None => "exit",
        };
        let forward = existing.and_then(|entry| self.forward(entry));
        let name = forward.and_then(|forward| forward["name"].as_str().map(str::to_owned));
        let mut spec = json!({
            "connect": [{
                "name": connect_name, "host": host, "port": port, "publicKeys": reach.public_keys,
            }],
            "forwards": [{
                "name": name.unwrap_or_else(|| self.target.forward()),
                "port": existing.map_or(self.port(), |entry| self.listen_port(entry)),
                "targets": [{"host": self.host, "port": self.target.port}],
            }],
        });
        for field in COMMON {
            if let Some(value) = exit.spec["carrier"].get(field) {
                spec["carrier"][field] = value.clone();
            }
        }
        json!({
            "apiVersion": MuxTunnel::api_version(&()), "kind": MuxTunnel::kind(&()),
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": spec,
        })
    }

    fn port(&self) -> u16 {
        self.port.unwrap_or(self.target.port)
    }

    /// `HOST:PORT` at which clients connect to the entry.
    pub(super) fn clients(&self, entry: &Gateways) -> String {
        let forward = self.forward(entry);
        let listener = forward.and_then(|forward| object::listener(entry, forward));
        let (host, port) =
            listener.unwrap_or_else(|| (self.name.to_owned(), self.listen_port(entry)));
        authority(&host, port)
    }

    fn listen_port(&self, entry: &Gateways) -> u16 {
        let port = self.forward(entry).and_then(|one| one["port"].as_u64());
        let port = port.and_then(|port| u16::try_from(port).ok());
        port.unwrap_or(self.port())
    }
}

/// The exits that an entry dials.
fn connects(entry: &Gateways) -> &[Value] {
    entry.spec["connect"].as_array().map_or(&[], Vec::as_slice)
}

/// Whether an entry already dials the address of the exit with its keys.
pub(super) fn dials(entry: &Gateways, reach: &Reach) -> bool {
    let wanted: BTreeSet<_> = reach.public_keys.iter().map(String::as_str).collect();
    connects(entry).iter().any(|one| {
        let keys = one["publicKeys"].as_array().into_iter().flatten();
        let keys: BTreeSet<_> = keys.filter_map(Value::as_str).collect();
        one["host"] == *reach.host && one["port"] == reach.port && keys == wanted
    })
}

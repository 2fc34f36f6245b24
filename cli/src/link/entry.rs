//! The entry of a link. Pure.

use serde_json::{Value, json};

use super::exit::Reach;
use super::service::Target;
use crate::object::{self, Tunnel};

/// Fields of `carrier` that both ends must have in common.
const COMMON: [&str; 4] = ["protocol", "transport", "webSocket", "resume"];

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
    fn forward<'t>(&self, entry: &'t Tunnel) -> Option<&'t Value> {
        let mut forwards = entry.spec["forwards"].as_array()?.iter();
        forwards.find(|forward| {
            let address = &forward["target"]["address"];
            let port = forward["listen"]["port"].as_u64();
            address["host"] == self.host
                && address["port"] == self.target.port
                && self.port.is_none_or(|asked| port == Some(asked.into()))
        })
    }

    /// Why the link cannot use an existing entry.
    pub(super) fn problem_of(&self, entry: &Tunnel) -> Option<String> {
        let problem = if object::side(entry) != "Entry" {
            format!("is of side {}, not Entry", object::side(entry))
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

    /// The manifest. The existing forward keeps its name and its port.
    pub(super) fn manifest(
        &self,
        existing: Option<&Tunnel>,
        exit: &Tunnel,
        reach: &Reach,
    ) -> Value {
        let mut carrier = json!({"address": reach.address, "publicKeys": reach.public_keys});
        for field in COMMON {
            let value = &exit.spec["carrier"][field];
            if !value.is_null() {
                carrier[field] = value.clone();
            }
        }
        let forward = existing.and_then(|entry| self.forward(entry));
        let name = forward.and_then(|forward| forward["name"].as_str().map(str::to_owned));
        json!({
            "apiVersion": "muxtunnel.dev/v1alpha1", "kind": "MuxTunnel",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "side": "Entry",
                "carrier": carrier,
                "forwards": [{
                    "name": name.unwrap_or_else(|| self.target.forward()),
                    "listen": {"port": existing.map_or(self.port(), |entry| self.listen_port(entry))},
                    "target": {"address": {"host": self.host, "port": self.target.port}},
                }],
            },
        })
    }

    fn port(&self) -> u16 {
        self.port.unwrap_or(self.target.port)
    }

    /// The port at which clients connect to the entry.
    pub(super) fn listen_port(&self, entry: &Tunnel) -> u16 {
        let port = self
            .forward(entry)
            .and_then(|forward| forward["listen"]["port"].as_u64());
        port.and_then(|port| u16::try_from(port).ok())
            .unwrap_or(self.port())
    }
}

/// Whether an entry already has the address and the keys of the exit.
pub(super) fn dials(entry: &Tunnel, reach: &Reach) -> bool {
    let carrier = &entry.spec["carrier"];
    let keys = carrier["publicKeys"].as_array().into_iter().flatten();
    let mut keys: Vec<_> = keys.filter_map(Value::as_str).collect();
    let mut wanted: Vec<_> = reach.public_keys.iter().map(String::as_str).collect();
    keys.sort_unstable();
    wanted.sort_unstable();
    carrier["address"] == reach.address.as_str() && keys == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target {
            service: "web".into(),
            namespace: "backend".into(),
            port: 80,
            port_name: Some("http".into()),
        }
    }

    fn tunnel(spec: Value) -> Tunnel {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap()
    }

    fn wanted(target: &Target, port: Option<u16>) -> Wanted<'_> {
        Wanted {
            name: "web",
            namespace: "shop",
            host: "web.backend.svc",
            target,
            port,
        }
    }

    #[test]
    fn an_entry_dials_its_exit_in_the_exits_protocol() {
        let (target, reach) = (
            target(),
            Reach {
                address: "far:64000".into(),
                public_keys: vec!["mtx1a".into()],
            },
        );
        let exit = tunnel(json!({"carrier": {"transport": "KCP", "address": "far"}}));
        let made = wanted(&target, Some(8080)).manifest(None, &exit, &reach);
        assert_eq!(
            made["spec"],
            json!({
                "side": "Entry",
                "carrier": {"address": "far:64000", "publicKeys": ["mtx1a"], "transport": "KCP"},
                "forwards": [{
                    "name": "http", "listen": {"port": 8080},
                    "target": {"address": {"host": "web.backend.svc", "port": 80}},
                }],
            })
        );
        // The entry that was made is used again, and follows the keys of the exit.
        let made = tunnel(made["spec"].clone());
        assert_eq!(wanted(&target, None).problem_of(&made), None);
        assert_eq!(wanted(&target, None).listen_port(&made), 8080);
        assert!(dials(&made, &reach));
        let rotated = Reach {
            public_keys: vec!["mtx1b".into(), "mtx1a".into()],
            ..reach
        };
        assert!(!dials(&made, &rotated));
        let again = wanted(&target, None).manifest(Some(&made), &exit, &rotated);
        assert_eq!(again["spec"]["forwards"], made.spec["forwards"]);
        assert_eq!(
            again["spec"]["carrier"]["publicKeys"],
            json!(["mtx1b", "mtx1a"])
        );
    }

    #[test]
    fn another_tunnel_of_the_name_is_not_changed() {
        let target = target();
        let forward = json!([{
            "name": "x", "listen": {"port": 80}, "target": {"address": {"host": "db", "port": 80}},
        }]);
        for (spec, said) in [
            (json!({"side": "Both"}), "is of side Both"),
            (
                json!({"side": "Entry", "forwards": forward}),
                "no forward to web.backend.svc:80",
            ),
        ] {
            let problem = wanted(&target, None).problem_of(&tunnel(spec)).unwrap();
            assert!(
                problem.contains(said) && problem.contains("--name"),
                "{problem}"
            );
        }
    }
}

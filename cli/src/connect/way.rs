//! The way to an exit: the arguments of `muxgate entry`. Pure.

use std::ffi::OsString;
use std::path::Path;

use crate::args::ConnectArgs;
use crate::link::is_internal;
use crate::object::Tunnel;
use crate::peer::{reverse_ports, reverse_ports_text};

/// The way to an exit.
#[derive(Debug)]
pub(super) struct Way {
    /// The arguments without the key's file.
    arguments: Vec<String>,
    /// The names of the exit's ports that this host serves.
    pub(super) reverse_ports: Vec<String>,
}

impl Way {
    /// # Errors
    /// Why this host cannot connect to the exit, and what to do.
    pub(super) fn new(exit: &Tunnel, args: &ConnectArgs) -> Result<Self, String> {
        let status = exit.status.as_ref();
        let carrier = &exit.spec["carrier"];
        if carrier.get("rendezvous").is_some() {
            return Err(
                "meets its entries at a rendezvous: use a MuxTunnel of side Entry, or an exit with an address"
                    .to_owned(),
            );
        }
        let keys = status.map_or(&[][..], |status| &status.public_keys[..]);
        if keys.is_empty() {
            return Err("has no public key in its status: `muxtunnel status` shows why".to_owned());
        }
        let address = status.and_then(|status| status.exit.as_ref()?.address.clone());
        let address = match (&args.address, address) {
            (Some(given), _) => given.clone(),
            (None, Some(address)) if !is_internal(&address) => address,
            (None, Some(address)) => {
                return Err(format!(
                    "has the address {address}, which is only valid inside of its cluster: give --address, or expose \
                     the exit with spec.exit.service.type LoadBalancer"
                ));
            }
            (None, None) => {
                return Err(
                    "has no address in its status: give --address, or wait for its load balancer"
                        .to_owned(),
                );
            }
        };
        let address = match carrier["webSocket"]["path"].as_str() {
            Some(path) => format!("ws://{address}{path}"),
            None => address,
        };
        let mut arguments = vec!["entry".to_owned(), "--connect".to_owned(), address];
        let mut flag = |name: &str, value: &str| {
            arguments.extend([name.to_owned(), value.to_owned()]);
        };
        for key in keys {
            flag("--peer", key);
        }
        let protocol = carrier["protocol"].as_str().unwrap_or("Native");
        match protocol {
            "Native" => {}
            "Jmux" => flag("--protocol", "jmux"),
            "HTTP2" => flag("--protocol", "http2"),
            "Auto" => flag("--transport", "auto"),
            other => {
                return Err(format!(
                    "has the protocol {other}, which connect does not support"
                ));
            }
        }
        if carrier["transport"] == "KCP" {
            flag("--transport", "kcp");
        }
        for forward in &args.forward {
            flag("--forward", &forward.text);
        }
        for listen in &args.dynamic {
            flag("--auto", listen);
        }
        let ports = reverse_ports(exit);
        let mut names = Vec::new();
        for reverse in &args.reverse {
            let mut ports = ports.iter();
            let found = ports.find(|(_, port)| *port == u64::from(reverse.port));
            let (name, port) = found.ok_or_else(|| {
                format!(
                    "has no reverse port {}: {}",
                    reverse.port,
                    reverse_ports_text(exit)
                )
            })?;
            names.push((*name).to_owned());
            // Exits listen for their forwards on all addresses.
            flag("--reverse", &format!("[::]:{port}:{}", reverse.target));
        }
        if carrier["resume"] == false {
            arguments.push("--no-resume".to_owned());
        }
        Ok(Self {
            arguments,
            reverse_ports: names,
        })
    }

    /// The arguments of `muxgate`.
    pub(super) fn arguments(&self, key: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = self.arguments.iter().map(OsString::from).collect();
        arguments.extend([OsString::from("--key"), key.into()]);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;
    use crate::args::{Cli, Command};

    fn args(line: &str) -> ConnectArgs {
        let words = format!("muxtunnel connect web {line}");
        match Cli::parse_from(words.split_whitespace()).command {
            Command::Connect(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn exit(carrier: Value, address: &str) -> Tunnel {
        let mut spec = json!({"side": "Exit", "forwards": [
            {"name": "back", "direction": "ExitToEntry", "listen": {"port": 9000}},
            {"name": "http", "listen": {"port": 80}},
        ]});
        if !carrier.is_null() {
            spec["carrier"] = carrier;
        }
        serde_json::from_value(json!({
            "metadata": {"name": "web"}, "spec": spec,
            "status": {"publicKeys": ["mtx1b", "mtx1a"], "exit": {"address": address}},
        }))
        .unwrap()
    }

    #[test]
    fn muxgate_gets_the_way_to_the_exit_and_the_listeners() {
        let line = "-L 8080:db:5432 -D 1080 -R 9000:localhost:3000";
        let way = Way::new(&exit(Value::Null, "far:64000"), &args(line)).unwrap();
        assert_eq!(
            way.arguments(Path::new("/k")).join(&OsString::from(" ")),
            "entry --connect far:64000 --peer mtx1b --peer mtx1a --forward 8080:db:5432 --auto 1080 \
             --reverse [::]:9000:localhost:3000 --key /k"
        );
        assert_eq!(way.reverse_ports, ["back"]);
        let carrier = json!({"protocol": "Auto", "webSocket": {"path": "/mux"}, "resume": false});
        let way = Way::new(&exit(carrier, "far:80"), &args("-D 1080")).unwrap();
        let text = way.arguments.join(" ");
        assert!(
            text.starts_with("entry --connect ws://far:80/mux "),
            "{text}"
        );
        assert!(
            text.contains("--transport auto ") && text.ends_with(" --no-resume"),
            "{text}"
        );
    }

    #[test]
    fn an_exit_that_cannot_be_reached_is_an_error_with_a_remedy() {
        let inside = "web-exit.backend.svc:64000";
        for (exit, line, said) in [
            (
                exit(json!({"rendezvous": {}}), "a:1"),
                "-D 1080",
                "rendezvous",
            ),
            (exit(Value::Null, inside), "-D 1080", "give --address"),
            (
                exit(json!({"protocol": "QUIC"}), "a:1"),
                "-D 1080",
                "protocol QUIC",
            ),
            (
                exit(Value::Null, "a:1"),
                "-R 80:localhost:1",
                "back (port 9000)",
            ),
        ] {
            let error = Way::new(&exit, &args(line)).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let given = args("-D 1080 --address far:1");
        assert!(Way::new(&exit(Value::Null, inside), &given).is_ok());
    }
}

//! The way to an exit: the arguments of `muxgate entry`. Pure.

use std::ffi::OsString;
use std::path::Path;

use kube::ResourceExt;

use crate::args::ConnectArgs;
use crate::link::{PORT, is_internal};
use crate::object::{self, Gateways};
use crate::peer::{reverse_ports, reverse_ports_text};
use crate::target::authority;

/// The protocols of carriers that this host can have.
const PROTOCOLS: [&str; 3] = ["Native", "JMUX", "HTTP2"];

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
    pub(super) fn new(exit: &Gateways, args: &ConnectArgs) -> Result<Self, String> {
        let carrier = &exit.spec["carrier"];
        if exit.spec.get("rendezvous").is_some() {
            return Err(
                "meets its entries at a rendezvous: use a MuxTunnel with spec.connect, or an exit with a Service"
                    .to_owned(),
            );
        }
        let keys = object::public_keys(exit);
        if keys.is_empty() {
            let name = exit.name_any();
            return Err(format!(
                "has no public key in its status: `muxtunnel status exit/{name}` shows why"
            ));
        }
        let endpoints = object::endpoints(exit);
        let outside = endpoints.iter().find(|one| !is_internal(&one.host));
        let address = match (&args.address, outside, endpoints.first()) {
            (Some(given), _, _) => authority(&given.host, given.port.unwrap_or(PORT)),
            (None, Some(one), _) => authority(&one.host, one.port),
            (None, None, Some(one)) => {
                return Err(format!(
                    "has the address {}, which is only valid inside of its cluster: give --address, or expose the \
                     exit with spec.service.type LoadBalancer",
                    authority(&one.host, one.port)
                ));
            }
            (None, None, None) => {
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
        // `muxgate` has the words of the API.
        if let Some(protocol) = carrier["protocol"].as_str() {
            if !PROTOCOLS.contains(&protocol) {
                return Err(format!(
                    "has the protocol {protocol}, which connect does not support"
                ));
            }
            flag("--protocol", protocol);
        }
        if let Some(transport) = carrier["transport"].as_str() {
            flag("--transport", transport);
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
            // Exits listen for reverse ports on all addresses.
            flag("--reverse", &format!("[::]:{port}:{}", reverse.target));
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

    fn exit(mut spec: Value, host: &str) -> Gateways {
        spec["reversePorts"] = json!([{"name": "back", "port": 9000}]);
        serde_json::from_value(json!({
            "metadata": {"name": "web"}, "spec": spec,
            "status": {
                "publicKeys": ["mtx1b", "mtx1a"],
                "endpoints": [{"host": host, "port": 443, "protocol": "TCP"}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn muxgate_gets_the_way_to_the_exit_and_the_listeners() {
        let line = "-L 8080:db:5432 -D 1080 -R 9000:localhost:3000";
        let way = Way::new(&exit(json!({}), "2001:db8::1"), &args(line)).unwrap();
        assert_eq!(
            way.arguments(Path::new("/k")).join(&OsString::from(" ")),
            "entry --connect [2001:db8::1]:443 --peer mtx1b --peer mtx1a --forward 8080:db:5432 --auto 1080 \
             --reverse [::]:9000:localhost:3000 --key /k"
        );
        assert_eq!(way.reverse_ports, ["back"]);
        let carrier = json!({"transport": "Auto", "webSocket": {"path": "/mux"}});
        let way = Way::new(&exit(json!({"carrier": carrier}), "far"), &args("-D 1080")).unwrap();
        let text = way.arguments.join(" ");
        assert!(
            text.starts_with("entry --connect ws://far:443/mux ")
                && text.contains(" --transport Auto "),
            "{text}"
        );
    }

    #[test]
    fn an_exit_that_cannot_be_reached_is_an_error_with_a_remedy() {
        let (inside, proxy) = ("web-exit.backend.svc", "-D 1080");
        for (spec, host, line, said) in [
            (json!({"rendezvous": []}), "a", proxy, "rendezvous"),
            (json!({}), inside, proxy, "give --address"),
            (
                json!({"carrier": {"protocol": "QUIC"}}),
                "a",
                proxy,
                "protocol QUIC",
            ),
            (json!({}), "a", "-R 80:localhost:1", "back (port 9000)"),
        ] {
            let error = Way::new(&exit(spec, host), &args(line)).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let given = args("-D 1080 --address far:1");
        assert!(Way::new(&exit(json!({}), inside), &given).is_ok());
    }
}

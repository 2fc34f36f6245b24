//! rathole: its server runs at the entry, where clients connect. Its client runs at the exit, where
//! the targets are. Transport and services use plain TCP with `nodelay`, as rathole's configuration
//! reference advises for latency. With Noise, rathole uses the pattern of the reference (NK: the
//! client knows the server's key) and a cipher for which processors have instructions. rathole has
//! no mux: each stream has its own connection, which comes from a pool.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use super::{CARRIER_PORT, Launch, Service, Setup, entry_at, target_at};
use crate::{
    process::find,
    topology::{Place, at},
};

const PATTERN: &str = "Noise_NK_25519_AESGCM_BLAKE2s";

pub(super) fn launches(setup: &Setup<'_>, noise: bool) -> Result<Vec<Launch>> {
    let addresses = &setup.addresses;
    let carrier = at(addresses.carrier_entry, CARRIER_PORT);
    let services = |side: &str, key: &str, address: &dyn Fn(Service) -> String| {
        Service::ALL
            .map(|service| {
                let (name, address) = (service.name(), address(service));
                format!("[{side}.services.{name}]\nnodelay = true\n{key} = \"{address}\"\n")
            })
            .concat()
    };
    let keys = if noise { Some(keys()?) } else { None };
    let transport = |side: &str, key: Option<String>| {
        let kind = if noise { "noise" } else { "tcp" };
        let key =
            key.map(|key| format!("[{side}.transport.noise]\npattern = \"{PATTERN}\"\n{key}\n"));
        format!(
            "default_token = \"lab\"\n[{side}.transport]\ntype = \"{kind}\"\n\
             [{side}.transport.tcp]\nnodelay = true\n{}",
            key.unwrap_or_default()
        )
    };
    let [server_key, client_key] = match keys {
        Some(Keys { private, public }) => [
            Some(format!("local_private_key = \"{private}\"")),
            Some(format!("remote_public_key = \"{public}\"")),
        ],
        None => [None, None],
    };
    let server = format!(
        "[server]\nbind_addr = \"{carrier}\"\n{}{}",
        transport("server", server_key),
        services("server", "bind_addr", &|service| entry_at(
            addresses.entry,
            service
        ))
    );
    let client = format!(
        "[client]\nremote_addr = \"{carrier}\"\n{}{}",
        transport("client", client_key),
        services("client", "local_addr", &|service| target_at(
            addresses.target,
            service
        ))
    );
    let server = setup.file("rathole-server.toml", &server)?;
    let client = setup.file("rathole-client.toml", &client)?;
    Ok(vec![
        Launch::new(Place::Entry, &format!("rathole --server {server}")).listening(CARRIER_PORT),
        Launch::new(Place::Exit, &format!("rathole --client {client}")),
    ])
}

/// The keys of the server, in base64.
#[derive(Debug, PartialEq, Eq)]
struct Keys {
    private: String,
    public: String,
}

/// Creates the keys with `rathole --genkey`.
fn keys() -> Result<Keys> {
    let rathole = find(Path::new("rathole"))?;
    let output = Command::new(rathole).arg("--genkey").output();
    let output = output.context("cannot start rathole")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "rathole --genkey: {}", said.trim());
    let said = String::from_utf8_lossy(&output.stdout);
    parse(&said).with_context(|| format!("rathole --genkey printed {said:?}"))
}

/// Each key is on the line below its name.
fn parse(said: &str) -> Option<Keys> {
    let below = |name: &str| {
        let mut lines = said.lines().skip_while(|line| !line.starts_with(name));
        Some(lines.nth(1)?.trim().to_owned())
    };
    Some(Keys {
        private: below("Private")?,
        public: below("Public")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_read_below_their_names() {
        let keys = parse("Private Key:\nprivate=\n\nPublic Key:\npublic=\n");
        let (private, public) = ("private=".to_owned(), "public=".to_owned());
        assert_eq!(keys, Some(Keys { private, public }));
        assert_eq!(parse("error"), None);
    }
}

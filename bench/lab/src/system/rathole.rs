//! rathole: its server stands at the entry, where visitors come, its client at the exit, where the
//! targets are. Plain TCP with `nodelay` for transport and services, as its configuration reference
//! advises for latency. It has no mux: a connection a stream, out of a pool.

use anyhow::Result;

use super::{CARRIER_PORT, Launch, Service, Setup, entry_at, target_at};
use crate::topology::{Place, at};

const TRANSPORT: &str = "default_token = \"lab\"\n[SIDE.transport]\ntype = \"tcp\"\n\
                         [SIDE.transport.tcp]\nnodelay = true\n";

pub(super) fn launches(setup: &Setup<'_>) -> Result<Vec<Launch>> {
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
    let server = format!(
        "[server]\nbind_addr = \"{carrier}\"\n{}{}",
        TRANSPORT.replace("SIDE", "server"),
        services("server", "bind_addr", &|service| entry_at(
            addresses.entry,
            service
        ))
    );
    let client = format!(
        "[client]\nremote_addr = \"{carrier}\"\n{}{}",
        TRANSPORT.replace("SIDE", "client"),
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

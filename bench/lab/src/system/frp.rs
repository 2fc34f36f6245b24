//! frp: `frps` stands at the entry, where visitors come, `frpc` at the exit, where the targets are.
//!
//! Settings by its documentation: no TLS, which is on by default; `tcpMux` left on, its default, for a mux
//! is what is compared here.

use anyhow::Result;

use super::{CARRIER_PORT, Launch, Service, Setup};
use crate::topology::Place;

pub(super) fn launches(setup: &Setup<'_>) -> Result<Vec<Launch>> {
    let addresses = &setup.addresses;
    let server = format!(
        "bindAddr = \"{}\"\nbindPort = {CARRIER_PORT}\nproxyBindAddr = \"{}\"\n",
        addresses.carrier_entry, addresses.entry
    );
    let proxies = Service::ALL.map(|service| {
        format!(
            "[[proxies]]\nname = \"{}\"\ntype = \"tcp\"\nlocalIP = \"{}\"\nlocalPort = {}\n\
             remotePort = {}\n",
            service.name(),
            addresses.target,
            service.port(),
            service.entry_port()
        )
    });
    let client = format!(
        "serverAddr = \"{}\"\nserverPort = {CARRIER_PORT}\ntransport.tls.enable = false\n{}",
        addresses.carrier_entry,
        proxies.concat()
    );
    let server = setup.file("frps.toml", &server)?;
    let client = setup.file("frpc.toml", &client)?;
    Ok(vec![
        Launch::new(Place::Entry, &format!("frps -c {server}")).listening(CARRIER_PORT),
        Launch::new(Place::Exit, &format!("frpc -c {client}")),
    ])
}

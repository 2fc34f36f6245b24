//! frp: `frps` runs at the entry, where clients connect, and `frpc` at the exit, where the targets
//! are. With `stcp`, a second `frpc` at the entry accepts the clients as a visitor, and `frps` only
//! relays between the two `frpc`.
//!
//! The settings follow frp's documentation. TLS is on by default in frp. Here TLS is on only if a
//! row needs it. `tcpMux` has its default, on, because the lab compares muxes. With
//! `transport.useEncryption`, `stcp` encrypts the payload so that `frps` cannot read it.

use anyhow::Result;

use super::{CARRIER_PORT, Launch, Service, Setup};
use crate::topology::Place;

/// `tls`: whether frps and frpc use TLS, with frp's default settings.
pub(super) fn launches(setup: &Setup<'_>, tls: bool) -> Result<Vec<Launch>> {
    let proxies = Service::ALL.map(|service| {
        format!(
            "[[proxies]]\nname = \"{}\"\ntype = \"tcp\"\nlocalIP = \"{}\"\nlocalPort = {}\n\
             remotePort = {}\n",
            service.name(),
            setup.addresses.target,
            service.port(),
            service.entry_port()
        )
    });
    Ok(vec![
        server(setup)?,
        client(setup, Place::Exit, "frpc", tls, &proxies.concat())?,
    ])
}

/// The processes of `stcp`. `encrypted`: whether the payload is encrypted, so that frps cannot read
/// it.
pub(super) fn visitor_launches(setup: &Setup<'_>, encrypted: bool) -> Result<Vec<Launch>> {
    let of_both = |service: Service, table: &str| {
        format!(
            "[[{table}]]\nname = \"{}-{table}\"\ntype = \"stcp\"\nsecretKey = \"lab\"\n\
             transport.useEncryption = {encrypted}\n",
            service.name()
        )
    };
    let proxies = Service::ALL.map(|service| {
        format!(
            "{}localIP = \"{}\"\nlocalPort = {}\n",
            of_both(service, "proxies"),
            setup.addresses.target,
            service.port()
        )
    });
    let visitors = Service::ALL.map(|service| {
        format!(
            "{}serverName = \"{}-proxies\"\nbindAddr = \"{}\"\nbindPort = {}\n",
            of_both(service, "visitors"),
            service.name(),
            setup.addresses.entry,
            service.entry_port()
        )
    });
    Ok(vec![
        server(setup)?,
        client(setup, Place::Exit, "frpc", false, &proxies.concat())?,
        client(setup, Place::Entry, "visitor", false, &visitors.concat())?,
    ])
}

fn server(setup: &Setup<'_>) -> Result<Launch> {
    let addresses = &setup.addresses;
    let config = format!(
        "bindAddr = \"{}\"\nbindPort = {CARRIER_PORT}\nproxyBindAddr = \"{}\"\n",
        addresses.carrier_entry, addresses.entry
    );
    let config = setup.file("frps.toml", &config)?;
    let launch = Launch::new(Place::Entry, &format!("frps -c {config}"));
    Ok(launch.called("frps").listening(CARRIER_PORT))
}

/// `tables`: the proxies that the client offers, or the visitors that it runs.
fn client(
    setup: &Setup<'_>,
    place: Place,
    name: &'static str,
    tls: bool,
    tables: &str,
) -> Result<Launch> {
    let config = format!(
        "serverAddr = \"{}\"\nserverPort = {CARRIER_PORT}\ntransport.tls.enable = {tls}\n{tables}",
        setup.addresses.carrier_entry
    );
    let config = setup.file(&format!("{name}.toml"), &config)?;
    Ok(Launch::new(place, &format!("frpc -c {config}")).called(name))
}

//! frp: `frps` stands at the entry, where visitors come, `frpc` at the exit, where the targets are. With
//! `stcp` there is a second `frpc` at the entry, that of the visitor, and `frps` only stands between them.
//!
//! Settings by its documentation: TLS, which is on by default, only where it is asked for; `tcpMux` left on, its
//! default, for a mux is what is compared here. What `stcp` encrypts (`transport.useEncryption`) frps cannot
//! read.

use anyhow::Result;

use super::{CARRIER_PORT, Launch, Service, Setup};
use crate::topology::Place;

/// `tls`: between frps and frpc, as it comes.
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

/// `stcp`; `encrypted`: past frps too.
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

/// `tables`: what it offers or visits.
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

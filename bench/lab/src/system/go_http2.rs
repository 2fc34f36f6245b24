//! Two programs that use Go's net/http (`bench/lab/peers/go-http2`): TCP in HTTP/2 CONNECT.

use anyhow::Result;

use super::muxgate::{Certified, certificates};
use super::{CARRIER_PORT, Launch, Service, Setup, entry_at, target_at};
use crate::topology::{Place, at};

/// `tls`: whether the programs use mutual TLS.
pub(super) fn launches(setup: &Setup<'_>, tls: bool) -> Result<Vec<Launch>> {
    let addresses = &setup.addresses;
    let (mut accepts, mut dials) = (String::new(), String::new());
    if tls {
        let keys = certificates(setup.folder)?;
        (accepts, dials) = (flags(&keys.accepts), flags(&keys.dials));
    }
    let carrier = at(addresses.carrier_exit, CARRIER_PORT);
    let forwards = Service::ALL.map(|service| {
        let listen = entry_at(addresses.entry, service);
        format!("{listen}={}", target_at(addresses.target, service))
    });
    let forwards = forwards.join(" ");
    let exit = Launch::new(Place::Exit, &format!("go-http2 {accepts}exit {carrier}"));
    let entry = format!("go-http2 {dials}entry {carrier} {forwards}");
    let entry = Launch::new(Place::Entry, &entry);
    Ok(vec![
        exit.listening(CARRIER_PORT),
        entry.listening(Service::Iperf3.entry_port()),
    ])
}

fn flags(own: &Certified) -> String {
    format!(
        "-certificate {} -key {} -ca {} -name {} ",
        own.certificate.display(),
        own.key.display(),
        own.ca.display(),
        own.peer
    )
}

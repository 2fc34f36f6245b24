//! chisel: a server at the exit, a client at the entry, and one connection of SSH over HTTP between
//! them. chisel always encrypts and has no settings of its data path.

use super::{CARRIER_PORT, Launch, Service, Setup, entry_at, target_at};
use crate::topology::Place;

pub(super) fn launches(setup: &Setup<'_>) -> Vec<Launch> {
    let addresses = &setup.addresses;
    let host = addresses.carrier_exit;
    let forwards = Service::ALL.map(|service| {
        let (entry, target) = (
            entry_at(addresses.entry, service),
            target_at(addresses.target, service),
        );
        format!(" {entry}:{target}")
    });
    let exit = format!("chisel server --host {host} --port {CARRIER_PORT}");
    let entry = format!(
        "chisel client http://{host}:{CARRIER_PORT}{}",
        forwards.concat()
    );
    vec![
        Launch::new(Place::Exit, &exit).listening(CARRIER_PORT),
        Launch::new(Place::Entry, &entry),
    ]
}

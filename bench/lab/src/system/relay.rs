//! Two of our own relays in a row, without a mux. Their rate is the limit of the machine. See
//! [`crate::relay`].

use std::env;

use anyhow::Result;

use super::{Launch, Service, Setup, entry_at, target_at};
use crate::topology::{Place, at};

/// The exit's relays listen on the entry's ports plus this offset.
const EXIT_OFFSET: u16 = 1000;

/// `mode`: `copy` or `splice`.
pub(super) fn launches(setup: &Setup<'_>, mode: &str) -> Result<Vec<Launch>> {
    let program = env::current_exe()?.display().to_string();
    let addresses = &setup.addresses;
    let middle = |service: Service| at(addresses.carrier_exit, service.entry_port() + EXIT_OFFSET);
    let hop = |place, forward: &dyn Fn(Service) -> String| {
        let forwards = Service::ALL.map(|service| format!(" --forward {}", forward(service)));
        Launch::new(
            place,
            &format!("{program} relay --mode {mode}{}", forwards.concat()),
        )
    };
    let exit = hop(Place::Exit, &|service| {
        format!(
            "{}={}",
            middle(service),
            target_at(addresses.target, service)
        )
    });
    let entry = hop(Place::Entry, &|service| {
        format!("{}={}", entry_at(addresses.entry, service), middle(service))
    });
    let last = Service::Iperf3.entry_port();
    Ok(vec![
        exit.listening(last + EXIT_OFFSET),
        entry.listening(last),
    ])
}

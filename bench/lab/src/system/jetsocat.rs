//! Two jetsocat processes with the command lines that users of jetsocat know. jetsocat has no
//! settings of its data path.

use super::{CARRIER_PORT, Launch, Service, Setup, entry_at, target_at};
use crate::topology::{Place, at};

pub(super) fn launches(setup: &Setup<'_>) -> Vec<Launch> {
    let addresses = &setup.addresses;
    let carrier = at(addresses.carrier_exit, CARRIER_PORT);
    let forwards = Service::ALL.map(|service| {
        let (entry, target) = (
            entry_at(addresses.entry, service),
            target_at(addresses.target, service),
        );
        format!(" tcp-listen://{entry}/{target}")
    });
    let exit = format!("jetsocat jmux-proxy tcp-listen://{carrier} --allow-all --log-term");
    let entry = format!(
        "jetsocat jmux-proxy tcp://{carrier}{} --log-term",
        forwards.concat()
    );
    vec![
        Launch::new(Place::Exit, &exit).listening(CARRIER_PORT),
        Launch::new(Place::Entry, &entry),
    ]
}

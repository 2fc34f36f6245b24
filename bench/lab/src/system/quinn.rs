//! Bare quinn: bulk between the places of the gateways, without client connections. See
//! [`crate::bare_quinn`].

use std::env;

use anyhow::Result;

use super::{CARRIER_PORT, Launch, Service, Setup, entry_at, muxgate};
use crate::topology::{Place, at};

pub(super) fn launches(setup: &Setup<'_>) -> Result<Vec<Launch>> {
    let program = env::current_exe()?.display().to_string();
    let certificates = muxgate::certificates(setup.folder)?;
    let (own, peer) = (certificates.accepts, certificates.dials);
    let carrier = at(setup.addresses.carrier_exit, CARRIER_PORT);
    let receiver = format!(
        "{program} quinn receive --listen {carrier} --certificate {} --key {}",
        own.certificate.display(),
        own.key.display()
    );
    let orders = entry_at(setup.addresses.entry, Service::Load);
    let sender = format!(
        "{program} quinn send --listen {orders} --to {carrier} --ca {} --name {}",
        peer.ca.display(),
        peer.peer
    );
    Ok(vec![
        Launch::new(Place::Exit, &receiver).listening(CARRIER_PORT),
        Launch::new(Place::Entry, &sender).listening(Service::Load.entry_port()),
    ])
}

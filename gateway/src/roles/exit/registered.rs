//! An exit that uses rendezvous: the exit registers at each rendezvous, and opens one connection for
//! each visitor.
//!
//! The first worker registers and dials for all workers, and distributes the carriers as if it had
//! accepted them. Bounds: at most `limits.carriers` visitors in progress, in addition to the
//! carriers. The handshake limiter bounds the visitors that have not authenticated yet.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::MeetingPlace;
use muxtunnel_proto::rendezvous::Ticket;
use tokio::sync::OwnedSemaphorePermit;

use super::{Exit, greet};
use crate::io::key_refusal::KeyRefusal;
use crate::net::egress::Address;
use crate::roles::entry::pause;
use crate::roles::rendezvous::leaf::{Place, ticket};
use crate::roles::worker::{Phase, wait_for};

/// A registration that lasted this long resets the number of failures to 0.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Keeps the exit registered at `places`, until the exit accepts no further sessions. Then ends the
/// registrations, so that visitors reach other exits with this key. Never returns.
pub(super) async fn keep(exit: &Rc<Exit>, places: &[MeetingPlace]) {
    let worker = &exit.worker;
    if worker.index > 0 {
        worker.telemetry.set_listening(worker.index, true);
        return std::future::pending().await;
    }
    let registered = Cell::new(0);
    let keep = |place| keep_at(exit, place, &registered);
    tokio::select! {
        biased;
        () = wait_for(worker.phase.clone(), Phase::Closed) => {}
        _ = join_all(places.iter().map(keep)) => {}
    }
    std::future::pending::<()>().await;
}

/// Keeps the exit registered at one place. `registered` is the number of places where the exit is
/// registered. Never returns.
async fn keep_at(exit: &Rc<Exit>, configured: &MeetingPlace, registered: &Cell<usize>) {
    let mut failures = 0;
    loop {
        let mut since = None;
        let error = match register(exit, configured, (registered, &mut since)).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        if since.is_some() {
            registered.update(|count| count - 1);
            report(exit, registered);
        }
        let code = KeyRefusal::code_of(&error).unwrap_or(Code::CarrierConnecting);
        tracing::warn!(%code, rendezvous = %configured.address, %error, "Cannot register at the rendezvous");
        let stable = since.is_some_and(|since: Instant| since.elapsed() >= STABLE_AFTER);
        failures = if stable { 1 } else { failures + 1 };
        pause(failures).await;
    }
}

/// The exit accepts carriers while it is registered at a place.
fn report(exit: &Exit, registered: &Cell<usize>) {
    let worker = &exit.worker;
    worker
        .telemetry
        .set_listening(worker.index, registered.get() > 0);
}

/// Registers, and then dials for visitors. Sets `since` after a successful registration.
async fn register(
    exit: &Rc<Exit>,
    configured: &MeetingPlace,
    (registered, since): (&Cell<usize>, &mut Option<Instant>),
) -> std::io::Result<Infallible> {
    let address = Address::unresolved(&configured.address);
    let place = Place {
        name: &configured.name,
        address: &address,
        egress: &exit.worker.egress,
    };
    let credentials = Arc::clone(&exit.worker.credentials.borrow());
    let control = place.register(&credentials).await?;
    registered.update(|count| count + 1);
    *since = Some(Instant::now());
    report(exit, registered);
    tracing::info!(rendezvous = %address.name(), "Registered");
    loop {
        let ticket = ticket(&*control).await?;
        match exit.handover.meet() {
            Ok(permit) => {
                let attend = attend(Rc::clone(exit), configured.clone(), ticket, permit);
                drop(tokio::task::spawn_local(attend));
            }
            Err(too_many) => exit.too_many(None, &too_many),
        }
    }
}

/// Connects to one visitor. Holds `permit` until the exit is connected.
async fn attend(
    exit: Rc<Exit>,
    configured: MeetingPlace,
    ticket: Ticket,
    permit: OwnedSemaphorePermit,
) {
    let address = Address::unresolved(&configured.address);
    let place = Place {
        name: &configured.name,
        address: &address,
        egress: &exit.worker.egress,
    };
    let opened = place.open(ticket).await;
    drop(permit);
    match opened {
        Ok(carrier) => {
            let begins = exit.begins();
            greet(exit, carrier, None, begins).await;
        }
        Err(error) => {
            tracing::info!(code = %Code::MeetingRefused, rendezvous = %address.name(), %error, "Cannot connect to a visitor");
        }
    }
}

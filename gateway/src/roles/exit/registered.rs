//! An exit that uses a rendezvous: the exit registers at the rendezvous, and dials one more
//! connection for each visitor.
//!
//! The first worker registers and dials for all workers, and distributes the carriers as if it had
//! accepted them. Bounds: at most `limits.carriers` visitors in progress, in addition to the
//! carriers. The handshake limiter bounds the visitors that have not authenticated yet.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_proto::patience;
use muxtunnel_proto::rendezvous::Ticket;
use tokio::sync::OwnedSemaphorePermit;

use super::{Exit, greet};
use crate::net::egress::{Address, Step};
use crate::roles::entry::pause;
use crate::roles::rendezvous::leaf::{Leaf, MEET_MAX, invitation};

/// A registration that lasted this long resets the number of failures to 0.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Keeps the exit registered at the rendezvous `address`. Never returns.
pub(super) async fn keep(exit: &Rc<Exit>, address: &str) {
    let worker = &exit.worker;
    let Some(leaf) = worker
        .rendezvous_role
        .leaf
        .clone()
        .filter(|_| worker.index == 0)
    else {
        worker.telemetry.set_listening(worker.index, true);
        return std::future::pending().await;
    };
    let mut failures = 0;
    loop {
        let mut since = None;
        let error = match register(exit, address, &leaf, &mut since).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        worker.telemetry.set_listening(worker.index, false);
        tracing::warn!(code = %Code::CarrierConnecting, rendezvous = %address, %error, "Cannot register at the rendezvous");
        let stable = since.is_some_and(|since: Instant| since.elapsed() >= STABLE_AFTER);
        failures = if stable { 1 } else { failures + 1 };
        pause(failures).await;
    }
}

/// Registers, and then dials for visitors. Sets `since` after a successful registration.
async fn register(
    exit: &Rc<Exit>,
    address: &str,
    leaf: &Leaf,
    since: &mut Option<Instant>,
) -> std::io::Result<Infallible> {
    let meeting = Address::unresolved(address);
    let egress = &exit.worker.egress;
    let begun = Instant::now();
    let mut tcp = egress.tcp(&meeting).await?;
    let least = patience(MEET_MAX, begun.elapsed());
    let register = async |limit| leaf.register(&mut tcp, limit).await;
    egress
        .waits
        .within((Step::Meet, address), least, register)
        .await?;
    crate::io::socket::prepare_relayed(&tcp);
    exit.worker
        .telemetry
        .set_listening(exit.worker.index, !exit.is_closed());
    tracing::info!(rendezvous = %address, "Registered");
    *since = Some(Instant::now());
    loop {
        let ticket = invitation(&mut tcp).await?;
        match exit.handover.meet() {
            Ok(place) => {
                let attend = attend(
                    Rc::clone(exit),
                    address.to_owned(),
                    leaf.clone(),
                    ticket,
                    place,
                );
                drop(tokio::task::spawn_local(attend));
            }
            Err(_) => exit.too_many(),
        }
    }
}

/// Dials for one visitor. Holds `place` until the visitor is connected.
async fn attend(
    exit: Rc<Exit>,
    address: String,
    leaf: Leaf,
    ticket: Ticket,
    place: OwnedSemaphorePermit,
) {
    let meeting = Address::unresolved(&address);
    let meet = async {
        let begun = Instant::now();
        let mut tcp = exit.worker.egress.tcp(&meeting).await?;
        let limit = patience(MEET_MAX, begun.elapsed());
        leaf.attend(&mut tcp, ticket, limit).await?;
        std::io::Result::Ok(exit.worker.egress.carried(tcp, &meeting))
    };
    let met = meet.await;
    drop(place);
    match met {
        Ok(carrier) => {
            let begins = exit.begins();
            greet(exit, carrier, None, begins).await;
        }
        Err(error) => {
            tracing::info!(code = %Code::MeetingRefused, rendezvous = %address, %error, "Cannot connect to a visitor");
        }
    }
}

//! An exit that is visited at a rendezvous: it registers there, and dials one more connection for each visit.
//!
//! The first worker does so for all, as the worker that accepts a carrier does. Bounds: visitors that are
//! being met, `limits.carriers` beside the carriers; those that have to prove who they are, the limiter's.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_proto::rendezvous::Ticket;
use tokio::sync::OwnedSemaphorePermit;

use super::{Exit, greet};
use crate::net::egress::Address;
use crate::roles::entry::pause;
use crate::roles::rendezvous::leaf::{Leaf, invitation};

/// A registration that lasted this long ends the row of failures.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Is registered at the rendezvous of `address` for as long as it can be; never ends.
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
        tracing::warn!(code = %Code::CarrierConnecting, rendezvous = %address, %error, "Not registered");
        let stable = since.is_some_and(|since: Instant| since.elapsed() >= STABLE_AFTER);
        failures = if stable { 1 } else { failures + 1 };
        pause(failures).await;
    }
}

/// Registers, and meets visitors from `since` on.
async fn register(
    exit: &Rc<Exit>,
    address: &str,
    leaf: &Leaf,
    since: &mut Option<Instant>,
) -> std::io::Result<Infallible> {
    let meeting = Address::unresolved(address);
    let mut tcp = exit.worker.egress.tcp(&meeting).await?;
    leaf.register(&mut tcp).await?;
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

/// Dials for one visitor, in `place` until it is there.
async fn attend(
    exit: Rc<Exit>,
    address: String,
    leaf: Leaf,
    ticket: Ticket,
    place: OwnedSemaphorePermit,
) {
    let meeting = Address::unresolved(&address);
    let meet = async {
        let mut tcp = exit.worker.egress.tcp(&meeting).await?;
        leaf.attend(&mut tcp, ticket).await?;
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
            tracing::info!(code = %Code::MeetingRefused, rendezvous = %address, %error, "Visitor was not met");
        }
    }
}

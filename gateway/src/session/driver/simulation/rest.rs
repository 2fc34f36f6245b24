//! Invariants that hold once nothing moves.

use std::rc::Rc;

use super::seen::Seen;
use super::stage::Stage;
use crate::session::driver::Driver;
use crate::session::driver::incoming::Incoming;
use crate::stream::buffers::Pool;

/// What a running session still holds although no stream is open; `None`: it holds nothing.
pub(super) fn left_over(driver: &Driver, pool: &Rc<Pool>) -> Option<String> {
    let session = driver.engine.session.view();
    let queued = |carrier: &Rc<crate::session::driver::Carrier>| !carrier.queue.borrow().is_empty();
    // Without buffers in use, the pool has two references: one of the world, one of the driver's
    // share.
    let held = Rc::strong_count(pool) - 2;
    let counts = [
        ("streams", driver.streams.all().len()),
        (
            "streams that are dialled",
            driver.engine.incoming.borrow().len(),
        ),
        ("streams of the session", session.stream_count()),
        (
            "bytes of receive memory",
            session.receive_budget_used() as usize,
        ),
        ("bytes retained", session.retained_bytes() as usize),
        ("batches retained", driver.engine.retention.len()),
        ("buffers in its share", driver.share.lent()),
        ("buffers", held),
        ("pipes", pipes(pool)),
        ("words unsettled", usize::from(!session.is_settled())),
        (
            "queues",
            driver
                .carriers
                .view()
                .values()
                .filter(|carrier| queued(carrier))
                .count(),
        ),
    ];
    let left: Vec<_> = counts.iter().filter(|(_, count)| *count > 0).collect();
    (!left.is_empty()).then(|| format!("{left:?}"))
}

/// What an ended session still holds; `None`: it holds nothing.
pub(super) fn remains(driver: &Rc<Driver>, pool: &Rc<Pool>) -> Option<String> {
    let counts = [
        ("streams", driver.streams.all().len()),
        (
            "streams that are dialled",
            driver.engine.incoming.borrow().len(),
        ),
        ("carriers", driver.carriers.view().len()),
        ("batches retained", driver.engine.retention.len()),
        // Without tasks and buffers, only the world refers to the driver, and only the world and
        // the driver's share refer to the pool.
        ("tasks", Rc::strong_count(driver) - 1),
        ("buffers", Rc::strong_count(pool) - 2),
        ("pipes", pipes(pool)),
    ];
    let left: Vec<_> = counts.iter().filter(|(_, count)| *count > 0).collect();
    (!left.is_empty()).then(|| format!("{left:?}"))
}

/// The number of pipes that are in use.
fn pipes(pool: &Pool) -> usize {
    Rc::strong_count(&pool.source_pipes) + Rc::strong_count(&pool.sink_pipes) - 2
}

/// Records which of the expected cases a side covers at the moment.
pub(super) fn check(stage: &Stage, driver: &Driver) {
    for io in driver.streams.all() {
        let (inbox, gap) = io.holds();
        if inbox && io.is_open() {
            stage.see(Seen::InboxHeld);
        }
        if gap {
            stage.see(Seen::OutOfOrder);
        }
    }
    if driver
        .engine
        .incoming
        .borrow()
        .values()
        .any(Incoming::holds)
    {
        stage.see(Seen::HeldWhileDialling);
    }
    let carriers = driver.carriers.view();
    let up = carriers.values().filter(|carrier| carrier.is_up()).count();
    if up > 1 {
        stage.see(Seen::SeveralCarriers);
    }
    if carriers.is_empty() && driver.carriers.has_begun() && !driver.has_ended() {
        stage.see(Seen::WithoutCarrier);
    }
    if carriers
        .values()
        .any(|carrier| carrier.id.number() > 0 && carrier.is_up())
    {
        stage.see(Seen::CarrierJoined);
    }
    let telemetry = &driver.telemetry;
    let resumes = telemetry.resumes.status();
    let splices = telemetry.splices.status();
    let seen = [
        (resumes.carriers_survived > 0, Seen::Resumed),
        (resumes.bytes_sent_again > 0, Seen::SentAgain),
        (telemetry.carriers_retired() > 0, Seen::CarrierRetired),
        (splices.bytes_sent > 0, Seen::SplicedOut),
        (splices.bytes_received > 0, Seen::SplicedIn),
        (telemetry.credit.status().waits > 0, Seen::CreditExhausted),
    ];
    for (is, seen) in seen {
        if is {
            stage.see(seen);
        }
    }
}

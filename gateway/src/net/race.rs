//! Connects to the first of several addresses that answers (RFC 8305, sections 4 and 5).
//!
//! The race starts an attempt for the first address. Each time [`ATTEMPT_DELAY`] passes without a
//! result, and whenever an attempt fails, the race starts the attempt for the next address. The
//! first attempt that succeeds wins. The race drops the other attempts, which closes their sockets.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::Display;
use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// After this time without a result, the next address is also dialled (section 5, "Connection
/// Attempt Delay").
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Maximum number of attempts at the same time. A further attempt ends the oldest one, so that a
/// name with many addresses does not use many files.
const RUNNING_MAX: usize = 16;

/// Why no attempt succeeded.
#[derive(Debug)]
pub(crate) enum Lost<A> {
    /// There is no address.
    NoAddress,
    /// All attempts failed. The last attempt failed at this address.
    Failed(A, Error),
    /// The time is over.
    TimedOut,
}

impl<A: Display> From<Lost<A>> for Error {
    fn from(lost: Lost<A>) -> Self {
        match lost {
            Lost::NoAddress => Self::new(ErrorKind::NotFound, "the name has no address"),
            Lost::Failed(address, error) => Self::new(error.kind(), format!("{address}: {error}")),
            Lost::TimedOut => Self::new(ErrorKind::TimedOut, "no address answered in time"),
        }
    }
}

/// How an attempt reports that its address answered, before the attempt succeeds. The race then
/// drops the other attempts, and starts no further attempt, unless this attempt fails.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reached(Option<(Rc<State>, usize)>);

#[derive(Debug, Default)]
struct State {
    /// The number of the attempt whose address answered first.
    by: Cell<Option<usize>>,
    changed: Notify,
}

impl Reached {
    /// Reports that the attempt's address answered.
    pub(crate) fn report(&self) {
        if let Some((state, number)) = &self.0
            && state.by.get().is_none()
        {
            state.by.set(Some(*number));
            state.changed.notify_one();
        }
    }
}

/// Orders `addresses` so that the two kinds take turns, beginning with the kind of the first
/// address (section 4). The order within a kind remains. Section 4 applies to the families of IP
/// addresses.
pub(crate) fn alternate<A>(addresses: Vec<A>, kind: impl Fn(&A) -> bool) -> Vec<A> {
    let Some(first) = addresses.first().map(&kind) else {
        return addresses;
    };
    let (same, other) = addresses
        .into_iter()
        .partition::<Vec<_>, _>(|a| kind(a) == first);
    zip(same, other).collect()
}

/// Orders IP addresses as [`alternate`].
pub(crate) fn by_family(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    alternate(addresses, SocketAddr::is_ipv4)
}

/// Takes an item of each, in turn, and then the rest of the longer one.
fn zip<A>(
    one: impl IntoIterator<Item = A>,
    other: impl IntoIterator<Item = A>,
) -> impl Iterator<Item = A> {
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut next_is_other = true;
    std::iter::from_fn(move || {
        next_is_other = !next_is_other;
        match next_is_other {
            true => other.next().or_else(|| one.next()),
            false => one.next().or_else(|| other.next()),
        }
    })
}

struct Attempt<A, F> {
    number: usize,
    address: A,
    future: Pin<Box<F>>,
}

/// Dials `addresses` in their order, until the time `until`. `late` returns further addresses, which
/// are of the other family. `attempt` dials one address.
///
/// # Errors
/// No attempt succeeded.
pub(crate) async fn race<A: Clone, T, F: Future<Output = Result<T>>>(
    addresses: Vec<A>,
    late: impl Future<Output = Vec<A>>,
    until: Instant,
    attempt: impl Fn(A, Reached) -> F,
) -> std::result::Result<(A, T), Lost<A>> {
    let state = Rc::new(State::default());
    let mut waiting = VecDeque::from(addresses);
    let mut running: Vec<Attempt<A, F>> = Vec::new();
    let (mut begun, mut last, mut is_late) = (0, Lost::NoAddress, true);
    let mut late = pin!(late);
    let mut next = pin!(sleep_until(Instant::now()));
    let mut end = pin!(sleep_until(until));
    loop {
        let is_reached = state.by.get().is_some();
        let is_next = !is_reached && (running.is_empty() || next.is_elapsed());
        if is_next && let Some(address) = waiting.pop_front() {
            if running.len() >= RUNNING_MAX {
                running.sort_by_key(|attempt| attempt.number);
                drop(running.remove(0));
            }
            let reached = Reached(Some((Rc::clone(&state), begun)));
            let future = Box::pin(attempt(address.clone(), reached));
            running.push(Attempt {
                number: begun,
                address,
                future,
            });
            begun += 1;
            next.as_mut().reset(Instant::now() + ATTEMPT_DELAY);
        }
        if running.is_empty() && waiting.is_empty() && !is_late {
            return Err(last);
        }
        let is_running = !running.is_empty();
        let ended = poll_fn(|context| {
            for (at, attempt) in running.iter_mut().enumerate() {
                if let Poll::Ready(result) = attempt.future.as_mut().poll(context) {
                    return Poll::Ready((at, result));
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            (at, result) = ended, if is_running => {
                let Attempt { number, address, .. } = running.swap_remove(at);
                match result {
                    Ok(connected) => return Ok((address, connected)),
                    Err(error) => last = Lost::Failed(address, error),
                }
                if state.by.get() == Some(number) {
                    state.by.set(None);
                }
                next.as_mut().reset(Instant::now());
            }
            () = state.changed.notified() => {
                let by = state.by.get();
                running.sort_by_key(|attempt| attempt.number);
                let (reached, others) = running
                    .into_iter()
                    .partition::<Vec<_>, _>(|attempt| by.is_none_or(|by| attempt.number == by));
                running = reached;
                for attempt in others.into_iter().rev() {
                    waiting.push_front(attempt.address);
                }
            }
            more = &mut late, if is_late => {
                is_late = false;
                waiting = zip(more, waiting).collect();
            }
            () = &mut end => return Err(Lost::TimedOut),
            () = &mut next, if !is_reached && is_running && !waiting.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests;

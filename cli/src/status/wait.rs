//! `--wait`: reading a tunnel until a condition holds of its newest spec.

use std::time::Duration;

use muxtunnel_crds::tunnel_condition;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::args::WaitFor;
use crate::cluster::{Cluster, in_words, is_passing, refusal};
use crate::end::Failure;
use crate::object::{self, Tunnel};

/// How often a tunnel is read again: `get` is all the right that it takes.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reads a tunnel; where something is waited for, until it is so.
///
/// # Errors
/// If it cannot be read, or the time is over. While it waits, an API server that is away may come back; one that
/// refuses is believed.
pub(super) async fn read(
    cluster: &Cluster,
    name: &str,
    wanted: WaitFor,
    timeout: muxtunnel_crds::Duration,
) -> Result<Tunnel, Failure> {
    let namespace = cluster.namespace.as_str();
    let api = object::api(&cluster.client, Some(namespace));
    let not_read = |error| Failure::Failed(object::not_read(namespace, name, error));
    let type_ = match wanted {
        WaitFor::Ready => tunnel_condition::READY,
        WaitFor::Available => tunnel_condition::AVAILABLE,
        WaitFor::None => return api.get(name).await.map_err(not_read),
    };
    let deadline = Instant::now() + timeout.as_std();
    let mut last = None;
    let mut said = String::new();
    loop {
        let began = Instant::now();
        // The last look begins when the time is over, and is short.
        let until = deadline.max(began + INTERVAL);
        let state = match timeout_at(until, api.get(name)).await {
            Ok(Ok(tunnel)) if holds(&tunnel, type_) => return Ok(tunnel),
            Ok(Ok(tunnel)) => {
                let state = state(&tunnel, type_);
                last = Some(tunnel);
                state
            }
            Ok(Err(error)) if refusal(&error).is_some_and(|status| !is_passing(status)) => {
                return Err(not_read(error));
            }
            Ok(Err(error)) => in_words(&error),
            Err(_) if said.is_empty() => "the API server has not answered".to_owned(),
            // What was known last.
            Err(_) => said.clone(),
        };
        let Some(next) = next_poll(began, Instant::now(), deadline) else {
            let event = last_event(cluster, last.as_ref()).await;
            return Err(Failure::TimedOut(format!(
                "not within {timeout}: {namespace}/{name} is {type_}; {state}{event}"
            )));
        };
        if state != said {
            eprintln!("waiting for {namespace}/{name}: {state}");
            said = state;
        }
        sleep_until(next).await;
    }
}

/// When to look again after a look that `began` then; none where that was the last one.
fn next_poll(began: Instant, now: Instant, deadline: Instant) -> Option<Instant> {
    (began < deadline).then(|| deadline.min(now + INTERVAL))
}

/// Whether the condition is true of the spec as it stands now.
fn holds(tunnel: &Tunnel, type_: &str) -> bool {
    object::condition(tunnel, type_)
        .is_some_and(|one| one.status == "True" && object::is_current(tunnel, one))
}

/// Why it does not hold.
fn state(tunnel: &Tunnel, type_: &str) -> String {
    match object::condition(tunnel, type_) {
        Some(one) if object::is_current(tunnel, one) => {
            let code = object::code(one).map_or(String::new(), |code| format!("{code} "));
            let (status, reason, message) = (&one.status, &one.reason, object::message(one));
            format!("{type_}={status}: {code}{reason}: {message}")
        }
        Some(_) => format!(
            "the operator has not reported on the newest spec; its last {type_} is of an older one"
        ),
        None => "the operator has not reported on it".to_owned(),
    }
}

/// The last Event, for the message of a time-out; what cannot be read is left out of it.
async fn last_event(cluster: &Cluster, tunnel: Option<&Tunnel>) -> String {
    let Some(tunnel) = tunnel else {
        return String::new();
    };
    let events = timeout_at(
        Instant::now() + INTERVAL * 5,
        object::events(&cluster.client, tunnel),
    )
    .await;
    match events {
        Ok(Ok(events)) => events.last().map_or_else(String::new, |event| {
            format!("\nlast Event: {}", object::in_a_line(event))
        }),
        Ok(Err(error)) => format!("\nits Events cannot be read: {}", in_words(&error)),
        Err(_) => "\nits Events were not answered".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_look_is_when_the_time_is_over_and_not_before() {
        let deadline = Instant::now() + INTERVAL * 5;
        let second = |number| deadline - INTERVAL * 5 + INTERVAL * number;
        assert_eq!(next_poll(second(0), second(0), deadline), Some(second(1)));
        let late = second(4) + INTERVAL / 2;
        assert_eq!(next_poll(late, late, deadline), Some(deadline));
        // Its answer took until after the end.
        assert_eq!(next_poll(late, second(6), deadline), Some(deadline));
        assert_eq!(next_poll(deadline, deadline, deadline), None);
    }
}

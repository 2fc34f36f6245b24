//! `--wait`: reads a tunnel until a condition is true for its current spec, and then connects to the
//! tunnel.

use std::time::Duration;

use muxtunnel_crds::tunnel_condition;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::connect::connect;
use crate::args::WaitFor;
use crate::cluster::{Cluster, in_words, is_passing, refusal};
use crate::end::Failure;
use crate::object::{self, Tunnel};

/// Interval between two reads. The program does not watch, because reads need only the right `get`,
/// and a watch needs more rights.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reads a tunnel, until the condition of `--wait` is true and this host can connect to its entry.
///
/// # Errors
/// If the tunnel cannot be read, or after the time-out. With `--wait`, the function retries if the
/// API server does not answer, is overloaded or is broken. After another refusal it does not retry.
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
        // The last read begins at the deadline and takes at most one interval.
        let until = deadline.max(began + INTERVAL);
        let state = match timeout_at(until, api.get(name)).await {
            Ok(Ok(tunnel)) if holds(&tunnel, type_) => {
                connect(&tunnel, deadline).await?;
                return Ok(tunnel);
            }
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
            // Without an answer at the last read, reports the state at the last answer.
            Err(_) => said.clone(),
        };
        let Some(next) = next_poll(began, Instant::now(), deadline) else {
            let event = last_event(cluster, last.as_ref()).await;
            return Err(Failure::TimedOut(format!(
                "{namespace}/{name} is not {type_} after {timeout}: {state}{event}"
            )));
        };
        if state != said {
            eprintln!("waiting for {namespace}/{name}: {state}");
            said = state;
        }
        sleep_until(next).await;
    }
}

/// The time of the next read, after a read that began at `began`. `None` after the final read.
fn next_poll(began: Instant, now: Instant, deadline: Instant) -> Option<Instant> {
    (began < deadline).then(|| deadline.min(now + INTERVAL))
}

/// Whether the condition is true for the current spec.
fn holds(tunnel: &Tunnel, type_: &str) -> bool {
    object::condition(tunnel, type_)
        .is_some_and(|one| one.status == "True" && object::is_current(tunnel, one))
}

/// Why the condition is not true.
fn state(tunnel: &Tunnel, type_: &str) -> String {
    match object::condition(tunnel, type_) {
        Some(one) if object::is_current(tunnel, one) => {
            let code = object::code(one).map_or(String::new(), |code| format!("{code} "));
            let (status, reason, message) = (&one.status, &one.reason, object::message(one));
            format!("{type_}={status}: {code}{reason}: {message}")
        }
        Some(_) => format!(
            "the operator has not processed the current spec; its last condition {type_} describes an older spec"
        ),
        None => "the operator has not reported a status".to_owned(),
    }
}

/// The last Event, for the message of a time-out.
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
        Ok(Err(error)) => format!("\nthe tunnel's Events cannot be read: {}", in_words(&error)),
        Err(_) => {
            "\nthe tunnel's Events cannot be read: the API server has not answered".to_owned()
        }
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
        // The answer arrived after the deadline.
        assert_eq!(next_poll(late, second(6), deadline), Some(deadline));
        assert_eq!(next_poll(deadline, deadline, deadline), None);
    }
}

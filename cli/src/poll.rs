//! Reads an object until it has the wanted state.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::cluster::{in_words, is_passing, refusal};

/// Interval between two reads. The program does not watch, because reads need only the right `get`,
/// and a watch needs more rights.
const INTERVAL: Duration = Duration::from_secs(1);

/// The end of a wait.
pub(crate) enum Waited<T> {
    /// The object has the wanted state.
    Done(T),
    /// The last state before the time-out.
    TimedOut(String),
}

/// Reads until `judge` accepts the answer. `judge` returns the state of an object that it does not
/// accept. Prints each new state of `subject` to standard error.
///
/// # Errors
/// A refusal of the API server that is not temporary. The function retries if the API server does
/// not answer, is overloaded or is broken.
pub(crate) async fn until<T, R>(
    subject: &str,
    deadline: Instant,
    mut read: impl AsyncFnMut() -> kube::Result<T>,
    mut judge: impl FnMut(T) -> Result<R, String>,
) -> kube::Result<Waited<R>> {
    let mut said = String::new();
    loop {
        let began = Instant::now();
        // The last read begins at the deadline and takes at most one interval.
        let until = deadline.max(began + INTERVAL);
        let state = match timeout_at(until, read()).await {
            Ok(Ok(answer)) => match judge(answer) {
                Ok(done) => return Ok(Waited::Done(done)),
                Err(state) => state,
            },
            Ok(Err(error)) if refusal(&error).is_some_and(|status| !is_passing(status)) => {
                return Err(error);
            }
            Ok(Err(error)) => in_words(&error),
            Err(_) if said.is_empty() => "the API server has not answered".to_owned(),
            // Without an answer at the last read, reports the state at the last answer.
            Err(_) => said.clone(),
        };
        let Some(next) = next_poll(began, Instant::now(), deadline) else {
            return Ok(Waited::TimedOut(state));
        };
        if state != said {
            eprintln!("waiting for {subject}: {state}");
            said = state;
        }
        sleep_until(next).await;
    }
}

/// The time of the next read, after a read that began at `began`. `None` after the final read.
fn next_poll(began: Instant, now: Instant, deadline: Instant) -> Option<Instant> {
    (began < deadline).then(|| deadline.min(now + INTERVAL))
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

//! The bottleneck of an object. The status shows a verdict only after gateways have reported it
//! repeatedly.
//!
//! The verdict for a direction comes mainly from the sending gateway. A lack of memory or CPU time
//! at the receiver appears at the sender as a full window. In this case the receiving gateway
//! reports which of the two is short.

use std::collections::BTreeMap;
use std::time::Duration;

use muxtunnel_crds::{Bottleneck, Direction};
use muxtunnel_gateway_config::status::{Carrier, Limit};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::tunnel_controller::end::End;
use crate::tunnel_controller::observe::Seen;

/// Longest message that the schema permits, in bytes.
const MESSAGE_LENGTH_MAX: usize = 1024;
/// The status switches to the other direction only if that direction moves more than this many
/// times the bytes of the shown direction. Without this factor, the directions would alternate if
/// requests and answers have about the same size.
const MORE: f64 = 1.25;
/// Minimum time between two observations. Gateways sample once per second.
const HELD_MIN: Duration = Duration::from_secs(1);
/// Longest time between two consecutive observations.
const HELD_MAX: Duration = Duration::from_mins(2);

/// The current verdict of the gateways. `shown` is the direction in the status. Returns `None` if
/// the gateways that answer give no verdict.
pub fn bottleneck(seen: &Seen, shown: Option<Direction>) -> Option<Bottleneck> {
    let shown = shown.unwrap_or(Direction::EntryToExit);
    let other = opposite(shown);
    let switches = moved(seen, other) > moved(seen, shown) * MORE;
    let direction = if switches { other } else { shown };
    let (from, to) = ends(direction);
    let (sender, receiver) = (busiest(seen, from, sent), busiest(seen, to, received));
    let limit = |carrier: Option<&Carrier>| carrier.and_then(|carrier| carrier.limit);
    let (direction, end, carrier) = match (limit(sender), limit(receiver)) {
        // Both directions are idle, so the choice of the direction does not matter.
        (Some(Limit::Idle), _) => (Direction::EntryToExit, from, sender),
        (None, Some(Limit::Idle)) => (Direction::EntryToExit, to, receiver),
        (Some(Limit::Cpu), _) => (direction, from, sender),
        (_, Some(Limit::Cpu | Limit::Memory)) => (direction, to, receiver),
        // `memory.receive` of the sender bounds data of the opposite direction.
        (Some(Limit::Memory), _) => (opposite(direction), from, sender),
        (_, _) => (direction, from, sender),
    };
    let carrier = carrier?;
    let advice = carrier.limit_advice.as_deref().unwrap_or_default();
    let mut message = format!("{}: {advice}", end.component());
    message.truncate(message.floor_char_boundary(MESSAGE_LENGTH_MAX));
    Some(Bottleneck {
        direction,
        reason: carrier.limit.unwrap_or(Limit::Other).as_str().to_owned(),
        message,
    })
}

const fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::EntryToExit => Direction::ExitToEntry,
        Direction::ExitToEntry => Direction::EntryToExit,
    }
}

/// The sending and the receiving end.
const fn ends(direction: Direction) -> (End, End) {
    match direction {
        Direction::EntryToExit => (End::Entry, End::Exit),
        Direction::ExitToEntry => (End::Exit, End::Entry),
    }
}

fn sent(carrier: &Carrier) -> u64 {
    carrier.sent_bytes_per_second
}

fn received(carrier: &Carrier) -> u64 {
    carrier.received_bytes_per_second
}

fn carriers(seen: &Seen, end: End) -> impl Iterator<Item = &Carrier> {
    let all = seen.answers(end).flat_map(|(_, status)| &status.carriers);
    all.filter(|carrier| carrier.limit.is_some())
}

/// Bytes per second in this direction: the greater of the rates that the sending and the receiving
/// gateways report. A gateway that does not answer counts as 0.
fn moved(seen: &Seen, direction: Direction) -> f64 {
    let (from, to) = ends(direction);
    let sum = |end, rate: fn(&Carrier) -> u64| carriers(seen, end).map(|c| rate(c) as f64).sum();
    let sent: f64 = sum(from, sent);
    let received: f64 = sum(to, received);
    sent.max(received)
}

fn busiest(seen: &Seen, end: End, rate: fn(&Carrier) -> u64) -> Option<&Carrier> {
    carriers(seen, end).max_by_key(|carrier| rate(carrier))
}

/// The last verdict of each tunnel's gateways, if it differs from the status. Contains the tunnels
/// that changed in the last [`HELD_MAX`].
#[derive(Debug, Default)]
pub struct BottleneckHold(Mutex<BTreeMap<String, (Option<Bottleneck>, Instant)>>);

impl BottleneckHold {
    /// The verdict to write at `now`: `old`, unless the gateways have reported `new` at least twice
    /// in a row.
    pub fn settle(
        &self,
        uid: &str,
        old: Option<Bottleneck>,
        new: Option<Bottleneck>,
        now: Instant,
    ) -> Option<Bottleneck> {
        let mut said = self.0.lock();
        said.retain(|_, (_, since)| now.saturating_duration_since(*since) <= HELD_MAX);
        if new == old {
            said.remove(uid);
            return old;
        }
        match said.get(uid) {
            Some((before, since)) if *before == new => {
                if now.saturating_duration_since(*since) < HELD_MIN {
                    return old;
                }
                said.remove(uid);
                new
            }
            _ => {
                said.insert(uid.to_owned(), (new, now));
                old
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(reason: &str) -> Option<Bottleneck> {
        Some(Bottleneck {
            direction: Direction::EntryToExit,
            reason: reason.to_owned(),
            message: String::new(),
        })
    }

    /// Settles verdicts at these seconds after the start. Returns the status after each verdict.
    fn settled(said: &[(f64, &str)]) -> Vec<Option<Bottleneck>> {
        let (hold, start) = (BottleneckHold::default(), Instant::now());
        let mut status = verdict("Idle");
        let settle = |(seconds, reason): &(f64, &str)| {
            let now = start + Duration::from_secs_f64(*seconds);
            status = hold.settle("a", status.clone(), verdict(reason), now);
            status.clone()
        };
        said.iter().map(settle).collect()
    }

    #[test]
    fn a_verdict_is_written_once_it_has_held_for_two_observations() {
        let said = [(0.0, "CPU"), (30.0, "CPU"), (60.0, "CPU")];
        let stands = [verdict("Idle"), verdict("CPU"), verdict("CPU")];
        assert_eq!(settled(&said), stands);
    }

    #[test]
    fn verdicts_that_take_turns_change_nothing() {
        let said = [
            (0.0, "CPU"),
            (30.0, "Idle"),
            (60.0, "CPU"),
            (90.0, "Memory"),
        ];
        assert!(
            settled(&said)
                .iter()
                .all(|stands| *stands == verdict("Idle"))
        );
    }

    #[test]
    fn two_looks_at_one_second_of_a_gateway_are_one_observation() {
        let said = [(0.0, "CPU"), (0.9, "CPU"), (1.0, "CPU")];
        let stands = [verdict("Idle"), verdict("Idle"), verdict("CPU")];
        assert_eq!(settled(&said), stands);
    }

    #[test]
    fn observations_that_are_far_apart_do_not_follow_each_other() {
        let said = [(0.0, "CPU"), (121.0, "CPU"), (123.0, "CPU")];
        let stands = [verdict("Idle"), verdict("Idle"), verdict("CPU")];
        assert_eq!(settled(&said), stands);
    }

    #[test]
    fn tunnels_do_not_speak_for_each_other_and_silence_is_a_verdict_too() {
        let (hold, now) = (BottleneckHold::default(), Instant::now());
        let later = now + Duration::from_secs(2);
        assert_eq!(hold.settle("a", None, verdict("CPU"), now), None);
        assert_eq!(hold.settle("b", None, verdict("CPU"), later), None);
        assert_eq!(
            hold.settle("a", None, verdict("CPU"), later),
            verdict("CPU")
        );
        let silence = |at| hold.settle("a", verdict("CPU"), None, at);
        assert_eq!(silence(now), verdict("CPU"));
        assert_eq!(silence(later), None);
    }
}

//! Chooses the link for a stream, and computes how many links the streams need. A stream that finds
//! all links full waits for room on any link.

use std::rc::Rc;

use muxtunnel_proto::{OpenError, Priority};
use tokio::sync::Mutex;

use super::Bridge;
use super::link::{Link, NoStream, Opening};
use super::links::Member;
use super::room::Taken;
use crate::session::mux::Progress;
use crate::session::shell::member::State;

/// An open that has been sent.
pub(super) struct Begun<L: Link> {
    pub(super) link: u64,
    pub(super) taken: Taken,
    pub(super) open: Opening<L>,
}

impl<L: Link> Bridge<L> {
    /// Opens a stream to `target`: on the link of the target's listener if there is one, otherwise
    /// on the link that has room and the fewest streams. `None`: a link may have room later.
    ///
    /// # Errors
    /// No link can take the stream.
    pub(super) fn begin(
        &self,
        target: &str,
        priority: Priority,
    ) -> Result<Option<Begun<L>>, OpenError> {
        let links = match self.link_of_listener(target) {
            Some(member) => vec![member],
            None => self.links_with_room()?,
        };
        for member in links {
            if let Some(open) = member.link.open(target, priority) {
                return Ok(Some(Begun {
                    link: member.number,
                    taken: member.room.take(),
                    open,
                }));
            }
            member.room.note_full();
        }
        self.count_up();
        Ok(None)
    }

    /// The links that may take a stream, best first. The list is empty if all links are full for
    /// now.
    ///
    /// # Errors
    /// No link will have room. The error contains the number of streams that the peer permits on
    /// all links together.
    fn links_with_room(&self) -> Result<Vec<Rc<Member<L>>>, OpenError> {
        let up = self.carriers.up();
        let has_room = |member: &&Rc<Member<L>>| {
            !member.link.is_full() && member.room.taken() < member.link.streams_max()
        };
        let mut best: Vec<_> = up.iter().filter(has_room).cloned().collect();
        if best.is_empty() && !up.iter().any(|member| member.link.is_full()) {
            let allowed = up.iter().map(|member| member.link.streams_max());
            let allowed = allowed.fold(0, usize::saturating_add);
            return Err(OpenError::PeerStreamLimit {
                streams_max: allowed as u64,
            });
        }
        best.sort_by_key(|member| member.room.taken());
        Ok(best)
    }

    /// The queue in which opens to `target` wait for room.
    fn turns(&self, target: &str) -> Rc<Mutex<()>> {
        match self.link_of_listener(target) {
            Some(member) => Rc::clone(&member.turns),
            None => Rc::clone(&self.engine.turns),
        }
    }

    /// Whether opens to `target` already wait for room.
    pub(super) fn is_waited_for(&self, target: &str) -> bool {
        self.turns(target).try_lock().is_err()
    }

    /// Waits until a link has room, then opens the stream. Opens wait in a queue, and only the
    /// first open in the queue tries to begin.
    ///
    /// # Errors
    /// The session takes no further streams.
    pub(super) async fn begin_later(
        &self,
        target: &str,
        priority: Priority,
    ) -> Result<Begun<L>, NoStream> {
        tokio::select! {
            biased;
            () = self.ending.begun() => Err(NoStream::NotTaken),
            () = self.reached(Progress::GoingAway) => Err(NoStream::NotTaken),
            begun = self.begin_in_turn(target, priority) => Ok(begun),
        }
    }

    async fn begin_in_turn(&self, target: &str, priority: Priority) -> Begun<L> {
        let turns = self.turns(target);
        let _turn = turns.lock().await;
        loop {
            let woken = self.engine.room_wake.notified();
            if let Ok(Some(begun)) = self.begin(target, priority) {
                return begun;
            }
            woken.await;
        }
    }

    /// Wakes the opens that wait for room on a link.
    pub(super) fn has_room(&self) {
        self.count_up();
        self.engine.room_wake.notify_waiters();
    }

    /// Publishes the number of links that are up and the number that the streams need.
    pub(super) fn count_up(&self) {
        let links = self.carriers.view();
        let counts = links
            .values()
            .filter(|member| matches!(member.state(), State::Up | State::Leaving))
            .filter(|member| !member.retired.get());
        let up = counts.clone().count();
        let met = counts.clone().filter_map(|member| member.room.met());
        // For a link that was never full, the limit of the other links is used.
        let met = met.max().unwrap_or(usize::MAX);
        let room = counts.clone().map(|member| {
            let met = member.room.met().unwrap_or(met);
            member.link.streams_max().min(met)
        });
        let room = room.fold(0, usize::saturating_add);
        let outdated = counts.filter(|member| member.outdated.get()).count();
        let sends = links_wanted(self.stream_count(), room, up);
        self.carriers.numbers.send_if_modified(|numbers| {
            let before = *numbers;
            (numbers.up, numbers.outdated, numbers.sends) = (up, outdated, sends);
            *numbers != before
        });
    }
}

/// How many links `streams` need, if `up` links have room for `room` streams in total. One more
/// link is needed once less than a quarter of the room is free. One link fewer is needed once `up -
/// 1` links would have more than twice the room that the streams use.
fn links_wanted(streams: usize, room: usize, up: usize) -> usize {
    let each = room / up.max(1);
    let wanted = if streams > room / 4 * 3 {
        up + 1
    } else if up > 1 && streams < each.saturating_mul(up - 1) / 2 {
        up - 1
    } else {
        up
    };
    wanted.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_more_is_wanted_before_the_last_place_is_taken_and_fewer_once_most_are_free() {
        assert_eq!(links_wanted(0, 0, 0), 1);
        assert_eq!(links_wanted(0, 100, 1), 1);
        assert_eq!(links_wanted(75, 100, 1), 1);
        assert_eq!(links_wanted(76, 100, 1), 2);
        assert_eq!(links_wanted(76, 200, 2), 2);
        assert_eq!(links_wanted(50, 200, 2), 2);
        assert_eq!(links_wanted(49, 200, 2), 1);
        assert_eq!(links_wanted(10, usize::MAX, 1), 1);
    }
}

//! The fair end of a run: no more faults occur, all readers read, and all streams must end.

use std::time::{Duration, Instant};

use muxtunnel_proto::StreamId;

use super::link::Link;
use super::world::World;

/// A run fails after this many rounds without progress.
const IDLE_ROUNDS_MAX: usize = 8;
/// Longest delay of an acknowledgement.
const ACK_DELAY: Duration = Duration::from_millis(25);

impl World {
    /// Lets all streams and sessions end, and then checks the run.
    pub fn finish_fairly(&mut self) {
        self.end_faults();
        let mut idle = 0;
        while !self.is_over() {
            let moved = self.reconnect() || self.fair_round();
            self.check();
            idle = if moved
                || self.wait_for_arrival()
                || self.wait_for_ack()
                || self.wait_for_timeout()
            {
                0
            } else {
                idle + 1
            };
            assert!(idle < IDLE_ROUNDS_MAX, "no end: {}", self.stuck());
        }
        self.settle();
        for (side, state) in self.sides.iter().enumerate() {
            assert_eq!(
                state.session.stream_count(),
                0,
                "side {side} still has streams"
            );
            assert_eq!(
                state.session.receive_budget_used(),
                0,
                "side {side} still holds memory"
            );
        }
        self.check_listens();
        self.model.judge();
        assert!(
            self.model.lost != [false; 2] || self.heard == self.asked,
            "the exit last requested {} carriers, the entry last received a request for {}",
            self.asked,
            self.heard
        );
        if self.model.lost == [false; 2] {
            self.wire.judge();
        }
    }

    fn wants_transmit(&self, side: usize) -> bool {
        let mut open = self.links.iter().filter(|link| !link.gone[side]);
        open.any(|link| {
            let id = link.ids[side].expect("the carrier is not gone");
            self.sides[side].wants_transmit(id)
        })
    }

    /// Lets the entry dial if it has no carrier. Returns whether the entry dialled.
    fn reconnect(&mut self) -> bool {
        self.alive() == 0 && self.dial()
    }

    /// Advances the clock to the next acknowledgement, the only frame that depends only on time.
    fn wait_for_ack(&mut self) -> bool {
        let open = (0..2).filter(|side| !self.model.lost[*side]);
        let due = open
            .filter_map(|side| self.sides[side].session.poll_timeout())
            .min();
        let Some(due) = due.filter(|due| *due <= self.now + ACK_DELAY && self.alive() > 0) else {
            return false;
        };
        self.advance_to(due.max(self.now));
        true
    }

    /// Handles the case that only one side's session is over. The other session must end by its
    /// timeout.
    fn wait_for_timeout(&mut self) -> bool {
        let over = self.model.lost;
        let alone = (0..2).find(|side| over[1 - side] && !over[*side]);
        let Some(timeout) = alone.and_then(|side| self.sides[side].session.poll_timeout()) else {
            return false;
        };
        self.advance_to(timeout.max(self.now));
        true
    }

    fn is_over(&self) -> bool {
        let quiet = |side: usize| {
            let state = &self.sides[side];
            state.sockets.is_empty() && !self.wants_transmit(side)
        };
        match self.model.lost {
            [true, true] => true,
            [false, false] => {
                quiet(0) && quiet(1) && self.alive() > 0 && self.links.iter().all(Link::is_empty)
            }
            _ => false,
        }
    }

    /// Lets both sides act once. Returns whether any progress was made.
    pub fn fair_round(&mut self) -> bool {
        let mut moved = false;
        for side in 0..2 {
            let ids: Vec<StreamId> = self.sides[side].sockets.keys().copied().collect();
            for &id in &ids {
                moved |= self.sink(side, id, u64::MAX) > 0;
            }
            for &id in &ids {
                let open = self.sides[side]
                    .sockets
                    .get(&id)
                    .is_some_and(|socket| !socket.ended);
                moved |= open && self.source(side, id, usize::MAX);
            }
            self.drain_events(side);
            moved |= self.transmit(side, usize::MAX);
            moved |= self.receive(1 - side, usize::MAX);
        }
        moved
    }

    /// Advances the clock to the next arrival. Returns whether anything is in flight.
    fn wait_for_arrival(&mut self) -> bool {
        let arrival: Option<Instant> = self.links.iter().filter_map(Link::next_arrival).min();
        let Some(arrival) = arrival.filter(|arrival| *arrival > self.now) else {
            return false;
        };
        self.advance_to(arrival);
        true
    }

    /// Empties the carrier, so that nothing is in flight.
    pub fn settle(&mut self) {
        loop {
            let mut moved = false;
            for side in 0..2 {
                moved |= self.transmit(side, usize::MAX);
                moved |= self.receive(1 - side, usize::MAX);
            }
            if !moved && !self.wait_for_arrival() && !self.wait_for_ack() {
                return;
            }
        }
    }

    fn stuck(&self) -> String {
        let sockets = self.sides.iter().enumerate().flat_map(|(side, state)| {
            state.sockets.iter().map(move |(id, socket)| {
                format!("\n{side} {id:?} {socket:?} {:?}", state.session.credit(*id))
            })
        });
        let mut text: String = sockets.take(12).collect();
        for side in 0..2 {
            text.push_str(&format!(
                "\n{side}: ready {}, wants to transmit {}, {} bytes in its pipe",
                self.sides[side].session.is_ready(),
                self.wants_transmit(side),
                self.links
                    .iter()
                    .map(|link| link.pipes[side].flying_bytes())
                    .sum::<usize>()
            ));
        }
        text
    }
}

//! The faults that the profile of the run permits.

use super::seen::Seen;
use super::socket::Phase;
use super::world::World;

impl World {
    pub fn draw_fault(&mut self, side: usize) {
        let faults = self.profile.faults.clone();
        match self.choices.below(16) {
            0..=4 if faults.slow_accepts => self.draw_answer(side),
            5..=7 if faults.stalls => self.draw_stall(side),
            8..=10 if faults.aborts => self.draw_abort(side),
            11..=12 if faults.carrier_stalls => {
                let link = self.choices.below(self.links.len());
                let pipe = &mut self.links[link].pipes[side];
                pipe.stalled = !pipe.stalled;
            }
            13 if faults.go_away => self.go_away(side),
            14 if faults.cuts && self.choices.one_in(4) => self.draw_cut(),
            15 if faults.forgeries && self.choices.one_in(8) => self.forge(),
            15 if self.choices.one_in(4) => self.ask_for_carriers(),
            15 if self.choices.one_in(2) => self.draw_listen(side),
            _ if self.alive() > 1 && self.choices.one_in(6) => drop(self.retire()),
            _ => {
                if self.alive() < self.profile.carriers_max {
                    self.dial();
                }
            }
        }
    }

    fn draw_answer(&mut self, side: usize) {
        let dialling = self.sides[side]
            .sockets
            .iter()
            .find(|(_, socket)| socket.phase == Phase::Dialling);
        if let Some((&id, _)) = dialling {
            self.answer(side, id);
        }
    }

    fn draw_stall(&mut self, side: usize) {
        let count = self.sides[side].sockets.len();
        if count > 0 {
            let nth = self.choices.below(count);
            let socket = self.sides[side].sockets.values_mut().nth(nth);
            socket.expect("the index is below the count").stalled ^= true;
        }
    }

    fn draw_abort(&mut self, side: usize) {
        let count = self.sides[side].sockets.len();
        if count == 0 {
            return;
        }
        let nth = self.choices.below(count);
        let sockets = &self.sides[side].sockets;
        let (&id, socket) = sockets
            .iter()
            .nth(nth)
            .expect("the index is below the count");
        // The dial of a target that has not answered is refused, not cut.
        if socket.phase != Phase::Dialling {
            let code = self.draw_code();
            self.give_up(side, id, code);
        }
    }

    pub fn go_away(&mut self, side: usize) {
        self.trace.note(format_args!("{side} goes away"));
        self.model.went_away[side] = true;
        self.sides[side].session.go_away();
    }

    /// Ends all faults, so that each side receives the answers for which it waits.
    pub fn end_faults(&mut self) {
        self.profile.faults = super::profile::Faults::default();
        self.fair_since = Some(self.now);
        for side in 0..2 {
            for link in &mut self.links {
                link.pipes[side].stalled = false;
            }
            self.sides[side]
                .sockets
                .values_mut()
                .for_each(|socket| socket.stalled = false);
            self.answer_all(side, true);
        }
        self.answer_all_listens();
        if self.model.lost == [false; 2] {
            self.see(Seen::CarrierKept);
        }
    }

    /// Ends every dial of `side`, with success if `well`.
    pub fn answer_all(&mut self, side: usize, well: bool) {
        let dialling: Vec<_> = self.sides[side]
            .sockets
            .iter()
            .filter(|(_, socket)| socket.phase == Phase::Dialling)
            .map(|(id, _)| *id)
            .collect();
        for id in dialling {
            if well {
                self.accept(side, id);
            } else {
                self.refuse(side, id);
            }
        }
    }
}

//! The actions on the pool: the request and the retirement of carriers.

use muxtunnel_proto::CarrierId;

use super::carrier::{ACK, PONG, RETIRE};
use super::seen::Seen;
use super::world::{ENTRY, EXIT, World};

/// Frame type: the first byte of a CARRIERS frame.
const CARRIERS: u8 = 0x22;

impl World {
    /// Lets the entry begin to retire one of its carriers. Returns whether the session permits it.
    pub fn retire(&mut self) -> bool {
        let link = self.choices.below(self.links.len());
        let Some(id) = self.links[link].ids[ENTRY].filter(|_| self.links[link].is_alive()) else {
            return false;
        };
        let begins = self.sides[ENTRY].session.retire_carrier(id);
        self.trace
            .note(format_args!("carrier {id:?} is to be retired: {begins}"));
        begins
    }

    /// Lets the exit request a random number of carriers.
    pub fn ask_for_carriers(&mut self) {
        let count = self.choices.below(20) as u32;
        if !self.model.lost[EXIT] && self.sides[EXIT].session.is_ready() && self.profile.resume() {
            self.sides[EXIT].session.want_carriers(count);
            self.asked = count;
        }
    }

    /// Checks that every frame of a carrier that was retired in order has been handled.
    pub fn carrier_retired(&mut self, side: usize, id: CarrierId) {
        let mut links = self.links.iter();
        let link = links.position(|link| link.ids[side] == Some(id));
        let link = link.expect("the carrier is unknown");
        let state = &mut self.links[link];
        assert!(state.retired[side], "{id:?} was retired without RETIRE");
        let unheard = |bytes: &Vec<u8>| ![ACK, PONG, CARRIERS, RETIRE].contains(&bytes[0]);
        let unheard = state.unheard[side].iter().find(|bytes| unheard(bytes));
        assert_eq!(unheard, None, "retired with frames in flight");
        state.ending[side] = true;
        self.see(if side == ENTRY {
            Seen::CarrierRetiredByItsPeer
        } else {
            Seen::CarrierRetired
        });
        self.close_if_ended(side, link, id);
    }
}

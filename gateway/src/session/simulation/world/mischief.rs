//! The faults that a world injects.

use std::rc::Rc;
use std::time::Duration;

use super::{Cable, ENTRY, World};
use crate::session::mux::Progress;
use crate::session::simulation::seen::Seen;

/// Maximum number of events for which a fault waits, not counting [`HELLO_ACTIVITY`].
const ACTIVITY_MAX: usize = 1000;
/// Number of events of a session's hello and of its first streams. Most faults wait for this number
/// of further events.
const HELLO_ACTIVITY: u64 = 40;

#[derive(Debug, Clone, Copy)]
pub(super) enum Mischief {
    CutOne,
    CutHalf,
    CutAll,
    Retire,
    GoAway,
    ShutDown(usize),
    GiveUp,
}

impl Mischief {
    const fn is_cut(self) -> bool {
        matches!(self, Self::CutOne | Self::CutHalf | Self::CutAll)
    }
}

impl World {
    pub(super) fn plan_mischief(self: &Rc<Self>) {
        let profile = &self.stage.profile;
        let mut plan = Vec::new();
        let mut choices = self.choices.borrow_mut();
        for _ in 0..profile.cuts {
            plan.push(choices.of(&[Mischief::CutOne, Mischief::CutHalf, Mischief::CutAll]));
        }
        if profile.retires {
            plan.extend([Mischief::Retire; 2]);
        }
        if profile.go_away {
            plan.push(Mischief::GoAway);
        }
        plan.extend(profile.shut_down.map(Mischief::ShutDown));
        if profile.give_up {
            plan.push(Mischief::GiveUp);
        }
        for mischief in plan {
            if choices.one_in(2) {
                let after = choices.length(ACTIVITY_MAX) as u64;
                let in_hello = choices.one_in(8);
                let after = after + if in_hello { 0 } else { HELLO_ACTIVITY };
                self.plan.borrow_mut().push((after, mischief));
                continue;
            }
            let most = profile.fair_after.as_millis() as usize;
            let after = Duration::from_millis(choices.length(most) as u64);
            let world = self.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(after).await;
                if !world.stopped.get() {
                    world.make(mischief);
                }
            });
        }
    }

    fn is_busy(&self) -> bool {
        self.cables.borrow().iter().any(Cable::is_busy)
    }

    pub(super) fn make_due(&self) {
        let activity = self.stage.activity();
        if self.stopped.get() {
            return;
        }
        loop {
            let mut plan = self.plan.borrow_mut();
            // A cut waits until bytes are in flight.
            let is_due = |(after, mischief): &(u64, Mischief)| {
                *after <= activity && (self.is_busy() || !mischief.is_cut())
            };
            let Some(due) = plan.iter().position(is_due) else {
                return;
            };
            let (_, mischief) = plan.swap_remove(due);
            drop(plan);
            self.make(mischief);
        }
    }

    fn make(&self, mischief: Mischief) {
        let [entry, exit] = &self.sides;
        self.stage.say(&format!("{mischief:?}"));
        self.stage.moved();
        match mischief {
            Mischief::CutOne | Mischief::CutHalf | Mischief::CutAll => self.cut(mischief),
            Mischief::Retire => {
                self.pool(ENTRY).retire_one();
            }
            Mischief::GoAway => {
                self.goes_away.set(true);
                exit.go_away();
            }
            Mischief::ShutDown(side) => {
                self.stage.see(Seen::ShutDown);
                self.excuse("the session is shut down");
                // A side without a carrier has no session yet.
                if self.runs[side].get() {
                    self.sides[side].shut_down();
                } else {
                    entry.shut_down();
                }
            }
            Mischief::GiveUp => {
                self.stage.see(Seen::GivenUp);
                self.excuse("the session is given up");
                entry.give_up("drawn".to_owned());
            }
        }
    }

    fn cut(&self, mischief: Mischief) {
        let mut choices = self.choices.borrow_mut();
        let mut cables = self.cables.borrow_mut();
        cables.retain(Cable::is_whole);
        if cables.is_empty() {
            return;
        }
        let is_new = self
            .sides
            .iter()
            .any(|side| side.progress() == Progress::Hello);
        // The gateways alone decide whether a new session outlives its carrier, so the world
        // permits both.
        let may_go_on = is_new && self.stage.profile.resume;
        self.may_go_on.set(self.may_go_on.get() || may_go_on);
        if is_new || !self.stage.profile.resume {
            if self
                .records
                .borrow()
                .iter()
                .any(|record| !record.borrow().is_over())
            {
                self.stage.see(Seen::SessionLost);
            }
            self.excuse("the session's carrier is cut");
        }
        let chosen = choices.below(cables.len());
        for (index, cable) in cables.iter().enumerate() {
            if index != chosen && !matches!(mischief, Mischief::CutAll) {
                continue;
            }
            let side = choices.below(2);
            match (cable, mischief) {
                (Cable::Kernel(cable), _) => cable.cut(&self.stage, side),
                (Cable::Wire(cable), Mischief::CutHalf) => cable.cut_half(&self.stage, side),
                (Cable::Wire(cable), _) => cable.cut(),
            }
        }
    }
}

//! Decides which objects of a class may take the class's revision now. Pure.

use std::collections::BTreeMap;

use muxtunnel_crds::OnFailure;

use super::{Gateways, Member, Turn};
use crate::watches::ObjectId;

/// The settings of a roll-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Maximum number of objects that roll at the same time.
    pub max_concurrent: usize,
    /// What happens after a failure.
    pub on_failure: OnFailure,
}

/// The state of a permission that an object has not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// The object may still use the permission, so it occupies a place.
    Open,
    /// The object did not use its permission, and gets no other one yet.
    Unused,
}

/// The state of a roll-out, and its next steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The objects that may take the revision now, in addition to those with a permission.
    pub next: Vec<ObjectId>,
    /// Number of objects of the class.
    pub total: usize,
    /// Number of objects whose gateways all run the revision.
    pub current: usize,
    /// Number of objects that occupy a place.
    pub rolling: usize,
    /// The objects whose gateways did not become ready with the revision.
    pub failed: Vec<ObjectId>,
    /// The objects that run an earlier revision, and do not wait for a place: the operator does not
    /// apply their specs.
    pub held: Vec<ObjectId>,
    /// Whether no further object rolls, because of a failure.
    pub is_paused: bool,
}

/// The plan for all objects of a class. `permits`: the permissions that are not used yet.
pub fn plan(
    members: &BTreeMap<ObjectId, Member>,
    policy: Policy,
    permits: &BTreeMap<ObjectId, Permit>,
) -> Plan {
    let mut plan = Plan {
        total: members.len(),
        ..Plan::default()
    };
    let mut waiting = Vec::new();
    for (id, member) in members {
        let permit = permits.get(id).filter(|_| !member.is_current);
        if member.is_current && !member.is_failed() && !member.occupies() {
            plan.current += 1;
        }
        if member.is_held {
            plan.held.extend((!member.is_current).then(|| id.clone()));
            continue;
        }
        plan.failed.extend(member.is_failed().then(|| id.clone()));
        plan.rolling += usize::from(member.occupies() || permit == Some(&Permit::Open));
        if !member.is_current && permit.is_none() {
            waiting.push((member.rank(), id, member));
        }
    }
    plan.is_paused = policy.on_failure == OnFailure::Pause && !plan.failed.is_empty();
    if plan.is_paused {
        return plan;
    }
    waiting.sort_by_key(|(rank, id, _)| (*rank, *id));
    let mut free = policy.max_concurrent.saturating_sub(plan.rolling);
    for (_, id, member) in waiting {
        if !member.occupies() {
            if free == 0 {
                continue;
            }
            free -= 1;
            plan.rolling += 1;
        }
        plan.next.push(id.clone());
    }
    plan
}

impl Member {
    /// Whether the object rolls by a turn. A change of the object alone takes no place.
    fn occupies(&self) -> bool {
        !self.is_held && self.turn.is_some() && self.gateways == Gateways::Rolling
    }

    /// Whether the object was whole before its turn, and did not become ready since.
    fn is_failed(&self) -> bool {
        let is_stuck = match self.turn {
            Some(Turn::Failed) => self.gateways != Gateways::Complete || self.is_stalled,
            Some(Turn::Whole) => self.gateways == Gateways::Stuck || self.is_stalled,
            Some(Turn::Broken) | None => false,
        };
        self.is_current && !self.is_held && is_stuck
    }

    /// The place in the queue. An object whose roll-out to another revision has not ended goes first,
    /// because the revision may repair it. An object that is not ready goes last: a failure shows only
    /// on the others.
    const fn rank(&self) -> u8 {
        match (self.turn, self.gateways) {
            (Some(_), _) => 0,
            (None, Gateways::Complete) if !self.is_stalled => 1,
            (None, _) => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAUSE: Policy = Policy {
        max_concurrent: 3,
        on_failure: OnFailure::Pause,
    };
    const CONTINUE: Policy = Policy {
        on_failure: OnFailure::Continue,
        ..PAUSE
    };
    /// An object that waits.
    const WAITS: Member = Member {
        is_current: false,
        turn: None,
        gateways: Gateways::Complete,
        is_held: false,
        is_stalled: false,
    };
    /// An object that rolls by a turn.
    const ROLLS: Member = Member {
        is_current: true,
        turn: Some(Turn::Whole),
        gateways: Gateways::Rolling,
        ..WAITS
    };
    /// An object that has rolled.
    const DONE: Member = Member {
        is_current: true,
        ..WAITS
    };
    /// An object that did not become ready.
    const FAILS: Member = Member {
        gateways: Gateways::Stuck,
        ..ROLLS
    };

    fn id(number: usize) -> ObjectId {
        ObjectId {
            namespace: "site".to_owned(),
            kind: "MuxTunnel".to_owned(),
            name: format!("t{number:03}"),
        }
    }

    fn members(members: &[Member]) -> BTreeMap<ObjectId, Member> {
        let numbered = members.iter().enumerate();
        numbered.map(|(number, one)| (id(number), *one)).collect()
    }

    fn next(all: &[Member], policy: Policy, permits: &[(usize, Permit)]) -> Vec<usize> {
        let permits = permits
            .iter()
            .map(|(number, permit)| (id(*number), *permit));
        let plan = plan(&members(all), policy, &permits.collect());
        let known = (0..all.len()).map(id).collect::<Vec<_>>();
        let place = |id: &ObjectId| known.iter().position(|known| known == id).unwrap();
        plan.next.iter().map(place).collect()
    }

    #[test]
    fn the_first_objects_by_name_get_the_free_places() {
        assert_eq!(next(&[WAITS; 5], PAUSE, &[]), [0, 1, 2]);
        assert_eq!(next(&[ROLLS, WAITS, WAITS, WAITS], PAUSE, &[]), [1, 2]);
        assert_eq!(next(&[ROLLS, ROLLS, ROLLS, WAITS], PAUSE, &[]), [0; 0]);
        assert_eq!(next(&[DONE, DONE, DONE, WAITS], PAUSE, &[]), [3]);
    }

    #[test]
    fn an_unused_permission_occupies_a_place_for_a_time_and_never_the_head_of_the_queue() {
        let open = [(0, Permit::Open), (1, Permit::Open)];
        assert_eq!(next(&[WAITS; 5], PAUSE, &open), [2]);
        let unused = [(0, Permit::Unused), (1, Permit::Open)];
        assert_eq!(next(&[WAITS; 5], PAUSE, &unused), [2, 3]);
        // The permission was used.
        assert_eq!(next(&[DONE, WAITS], PAUSE, &[(0, Permit::Open)]), [1]);
    }

    #[test]
    fn a_failure_pauses_or_frees_its_place_until_the_object_is_ready() {
        let all = [FAILS, ROLLS, WAITS, WAITS, WAITS];
        assert_eq!(next(&all, PAUSE, &[]), [0; 0]);
        assert_eq!(next(&all, CONTINUE, &[]), [2, 3]);
        let told = plan(&members(&all), PAUSE, &BTreeMap::new());
        assert!(told.is_paused);
        assert_eq!(
            (told.failed, told.current, told.rolling),
            (vec![id(0)], 0, 1)
        );
        // The owner repairs the object, whose new pods start: the roll-out waits until they are ready.
        let repaired = Member {
            turn: Some(Turn::Failed),
            ..ROLLS
        };
        assert_eq!(next(&[repaired, WAITS], PAUSE, &[]), [0; 0]);
        let ready = Member {
            gateways: Gateways::Complete,
            ..repaired
        };
        assert_eq!(next(&[ready, WAITS], PAUSE, &[]), [1]);
        // The class changes: the object has another revision than the class, and goes first.
        let behind = Member {
            is_current: false,
            ..FAILS
        };
        assert_eq!(next(&[WAITS, WAITS, WAITS, behind], PAUSE, &[]), [3, 0, 1]);
    }

    #[test]
    fn an_object_that_rolls_takes_a_newer_revision_in_its_own_place() {
        let behind = Member {
            is_current: false,
            ..ROLLS
        };
        let all = [WAITS, behind, behind, behind];
        assert_eq!(next(&all, PAUSE, &[]), [1, 2, 3]);
        let told = plan(&members(&all), PAUSE, &BTreeMap::new());
        assert_eq!(told.rolling, 3);
    }

    #[test]
    fn an_object_that_was_not_ready_goes_last_and_never_pauses() {
        let broken = Member {
            gateways: Gateways::Stuck,
            ..WAITS
        };
        assert_eq!(next(&[broken, WAITS, WAITS, WAITS], PAUSE, &[]), [1, 2, 3]);
        assert_eq!(next(&[broken, WAITS], PAUSE, &[]), [1, 0]);
        let taken = Member {
            turn: Some(Turn::Broken),
            ..FAILS
        };
        let all = [taken, WAITS];
        assert_eq!(next(&all, PAUSE, &[]), [1]);
        let told = plan(&members(&all), PAUSE, &BTreeMap::new());
        assert_eq!((told.failed, told.current), (vec![], 1));
        // It rolls, so it has a place.
        let rolls = Member {
            turn: Some(Turn::Broken),
            ..ROLLS
        };
        assert_eq!(next(&[rolls, rolls, rolls, WAITS], PAUSE, &[]), [0; 0]);
    }

    #[test]
    fn an_object_that_is_paused_or_refused_neither_waits_nor_fails() {
        let held = |member: Member| Member {
            is_held: true,
            ..member
        };
        let all = [held(WAITS), held(ROLLS), held(FAILS), WAITS];
        assert_eq!(next(&all, PAUSE, &[(0, Permit::Open)]), [3]);
        let told = plan(&members(&all), PAUSE, &BTreeMap::new());
        assert_eq!((told.held, told.failed), (vec![id(0)], vec![]));
        assert_eq!((told.total, told.current), (4, 2));
    }

    /// For example, no node accepts the sysctls of the class: the earlier pods remain.
    #[test]
    fn an_object_that_stalls_in_its_turn_fails_and_one_that_was_stalled_goes_last() {
        let stalled = |member: Member| Member {
            is_stalled: true,
            ..member
        };
        let back = Member {
            gateways: Gateways::Complete,
            ..stalled(ROLLS)
        };
        for turn in [Turn::Whole, Turn::Failed] {
            let all = [
                Member {
                    turn: Some(turn),
                    ..back
                },
                WAITS,
            ];
            assert_eq!(next(&all, PAUSE, &[]), [0; 0], "{turn:?}");
        }
        let places = Policy {
            max_concurrent: 1,
            ..PAUSE
        };
        assert_eq!(next(&[stalled(WAITS), WAITS], places, &[]), [1]);
        assert_eq!(next(&[stalled(DONE), WAITS], places, &[]), [1]);
    }

    #[test]
    fn a_change_of_an_object_alone_takes_no_place() {
        let own = Member {
            turn: None,
            ..ROLLS
        };
        assert_eq!(next(&[own, own, own, WAITS], PAUSE, &[]), [3]);
        let fails = Member {
            turn: None,
            ..FAILS
        };
        assert_eq!(next(&[fails, WAITS], PAUSE, &[]), [1]);
    }

    fn any_member() -> impl Strategy<Value = Member> {
        let turns = vec![
            None,
            Some(Turn::Whole),
            Some(Turn::Broken),
            Some(Turn::Failed),
        ];
        let gateways = vec![Gateways::Complete, Gateways::Rolling, Gateways::Stuck];
        let parts = (
            any::<bool>(),
            proptest::sample::select(turns),
            proptest::sample::select(gateways),
            any::<(bool, bool)>(),
        );
        parts.prop_map(
            |(is_current, turn, gateways, (is_held, is_stalled))| Member {
                is_current,
                turn,
                gateways,
                is_held,
                is_stalled,
            },
        )
    }

    proptest! {
        #[test]
        fn no_plan_exceeds_the_places(
            all in proptest::collection::vec(any_member(), 0..20),
            max_concurrent in 1_usize..6,
            on_failure in proptest::sample::select(&[OnFailure::Pause, OnFailure::Continue][..]),
        ) {
            let policy = Policy { max_concurrent, on_failure };
            let all = members(&all);
            let before = plan(&all, Policy { max_concurrent: 0, ..policy }, &BTreeMap::new());
            let told = plan(&all, policy, &BTreeMap::new());
            prop_assert!(told.rolling <= max_concurrent.max(before.rolling));
            prop_assert!(told.next.iter().all(|id| !all[id].is_current && !all[id].is_held));
            prop_assert!(!told.is_paused || told.next.is_empty());
        }

        /// Each object takes its turn, and becomes ready or does not.
        #[test]
        fn every_roll_out_ends(
            fates in proptest::collection::vec((any::<bool>(), any::<bool>()), 1..20),
            max_concurrent in 1_usize..6,
        ) {
            let policy = Policy { max_concurrent, on_failure: OnFailure::Continue };
            let was = |whole: bool| if whole { Gateways::Complete } else { Gateways::Stuck };
            let waits: Vec<_> = fates.iter().map(|(whole, _)| Member { gateways: was(*whole), ..WAITS }).collect();
            let mut all = members(&waits);
            for _ in 0..=fates.len() {
                for (member, (_, succeeds)) in all.values_mut().zip(&fates) {
                    if member.gateways == Gateways::Rolling {
                        member.gateways = was(*succeeds);
                    }
                }
                for id in plan(&all, policy, &BTreeMap::new()).next {
                    let whole = all[&id].gateways == Gateways::Complete;
                    let turn = if whole { Turn::Whole } else { Turn::Broken };
                    all.insert(id, Member { turn: Some(turn), ..ROLLS });
                }
            }
            prop_assert!(all.values().all(|member| member.is_current));
        }
    }
}

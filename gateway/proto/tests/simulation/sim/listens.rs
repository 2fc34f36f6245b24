//! The listeners that the entry requests from the exit, in the view of both sides.

use std::collections::{BTreeMap, BTreeSet};

use muxtunnel_proto::{Event, ListenEvent, ListenId, Priority, Reason, Refusal};

use super::profile::Protocol;
use super::seen::Seen;
use super::world::{ENTRY, EXIT, World};

/// Maximum number of concurrent listeners of an entry.
const LISTENS_MAX: usize = 6;

/// The listeners of each side.
#[derive(Debug, Default)]
pub struct Listens {
    /// The entry's listeners. The value: whether the exit listens.
    entry: BTreeMap<ListenId, bool>,
    /// The exit's listeners. The value: whether the exit has answered.
    exit: BTreeMap<ListenId, bool>,
    given_out: BTreeSet<ListenId>,
    arrived: BTreeSet<ListenId>,
    /// Listeners that the exit refused or closed.
    ended: BTreeSet<ListenId>,
}

impl World {
    /// Lets one side change its listeners.
    pub fn draw_listen(&mut self, side: usize) {
        if self.model.lost[side] {
            return;
        }
        if side == EXIT {
            return self.draw_listen_of_exit();
        }
        let known: Vec<ListenId> = self.listens.entry.keys().copied().collect();
        if !known.is_empty() && self.choices.one_in(3) {
            let listen = self.choices.of(&known);
            self.listens.entry.remove(&listen);
            self.sides[ENTRY].session.unlisten(listen);
        } else if known.len() < LISTENS_MAX {
            let address = format!("192.0.2.1:{}", 1 + self.choices.below(9));
            let session = &mut self.sides[ENTRY].session;
            let asked = session.listen(&address, Priority::Bulk);
            let can = self.profile.protocol == Protocol::Native && session.is_ready();
            assert_eq!(asked.is_ok(), can, "{asked:?}");
            if let Ok(listen) = asked {
                assert!(self.listens.given_out.insert(listen), "{listen:?} twice");
                self.listens.entry.insert(listen, false);
            }
        }
    }

    fn draw_listen_of_exit(&mut self) {
        let known: Vec<ListenId> = self.listens.exit.keys().copied().collect();
        if !known.is_empty() {
            let listen = self.choices.of(&known);
            let well = !self.choices.one_in(3);
            self.answer_listen(listen, well);
        }
    }

    fn answer_listen(&mut self, listen: ListenId, well: bool) {
        let session = &mut self.sides[EXIT].session;
        if well {
            session.listening(listen, "192.0.2.1:1");
            self.listens.exit.insert(listen, true);
        } else {
            let refusal = Refusal::new(Reason::NotAllowed, "not allowed");
            session.end_listen(listen, refusal);
            self.listens.exit.remove(&listen);
            self.listens.ended.insert(listen);
        }
    }

    /// Answers every open request to listen.
    pub fn answer_all_listens(&mut self) {
        let open = self.listens.exit.iter().filter(|(_, answered)| !**answered);
        for listen in open.map(|(listen, _)| *listen).collect::<Vec<_>>() {
            self.answer_listen(listen, true);
        }
    }

    pub fn listen_event(&mut self, side: usize, event: Event) {
        match event {
            Event::Listen(ListenEvent::Asked {
                listen, priority, ..
            }) => {
                assert_eq!((side, priority), (EXIT, Priority::Bulk));
                assert!(self.listens.given_out.contains(&listen));
                assert!(
                    self.listens.arrived.insert(listen),
                    "{listen:?} was requested twice"
                );
                self.listens.exit.insert(listen, false);
            }
            Event::Listen(ListenEvent::GivenUp { listen }) => {
                assert!(!self.listens.entry.contains_key(&listen));
                let before = self.listens.exit.remove(&listen);
                assert!(side == EXIT && before.is_some(), "{listen:?} is unknown");
                self.see(Seen::ListenGivenUp);
            }
            Event::Listen(ListenEvent::Listening { listen, .. }) => {
                let before = self.listens.entry.insert(listen, true);
                assert_eq!((side, before), (ENTRY, Some(false)), "{listen:?}");
                self.see(Seen::Listening);
            }
            Event::Listen(ListenEvent::Ended { listen, refusal }) => {
                assert!(self.listens.entry.remove(&listen).is_some());
                let gone = self.model.went_away[EXIT] && refusal.reason == Reason::General;
                assert!(gone || self.listens.ended.contains(&listen));
                self.see(Seen::ListenEnded);
            }
            other => panic!("{other:?} is not an event of a listener"),
        }
    }

    /// Compares both sides when nothing is in flight.
    pub fn check_listens(&self) {
        if self.model.lost == [false; 2] {
            assert_eq!(
                self.listens.entry, self.listens.exit,
                "the sides disagree although nothing is in flight"
            );
        }
    }
}

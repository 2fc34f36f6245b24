//! The sessions of an entry's worker by their places, and the choice of a session for new streams.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use crate::session::mux::{Mux, Progress};

/// A place for a session with an exit of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) level: usize,
    pub(super) number: usize,
}

impl Place {
    /// The place that is always filled.
    pub(super) const fn is_first(self) -> bool {
        self.level == 0 && self.number == 0
    }

    /// The place before this one at the same level.
    pub(super) const fn before(self) -> Option<Self> {
        match self.number.checked_sub(1) {
            Some(number) => Some(Self { number, ..self }),
            None => None,
        }
    }
}

/// The state of the session in a place.
#[derive(Clone)]
pub(super) enum Link {
    /// The session has had no carrier for `CARRIERLESS_MAX`.
    Down,
    /// The exit has shut down, and another exit is being dialled.
    Replacing,
    Up(Rc<dyn Mux>),
}

/// The sessions for new streams.
pub(super) struct Links {
    by_place: BTreeMap<Place, Link>,
    /// Number of levels.
    levels: usize,
    /// The time since which no session has accepted streams; `None`: a session accepts streams.
    pub(super) none_since: Option<Instant>,
}

impl Links {
    pub(super) fn new(levels: usize, now: Instant) -> Self {
        Self {
            by_place: BTreeMap::new(),
            levels,
            none_since: Some(now),
        }
    }

    /// The sessions that accept streams, with their places. If there are several levels, a session
    /// without a carrier accepts none: its exit may be lost, and another level may have an exit.
    fn ready(&self) -> impl Iterator<Item = (Place, &Rc<dyn Mux>)> {
        let is_ready = |session: &Rc<dyn Mux>| {
            let is_open = session.progress() == Progress::Ready && !session.has_ended();
            is_open && (self.levels == 1 || !session.is_down())
        };
        self.by_place
            .iter()
            .filter_map(move |(place, link)| match link {
                Link::Up(session) if is_ready(session) => Some((*place, session)),
                Link::Up(_) | Link::Down | Link::Replacing => None,
            })
    }

    /// The session of the lowest level with the fewest streams. A session without a carrier is
    /// chosen only if no session has a carrier.
    pub(super) fn best(&self) -> Option<Rc<dyn Mux>> {
        let best = self
            .ready()
            .min_by_key(|(place, session)| rank(*place, session));
        best.map(|(_, session)| Rc::clone(session))
    }

    /// All sessions that accept streams, ordered as in [`Self::best`].
    pub(super) fn by_load(&self) -> Vec<Rc<dyn Mux>> {
        let mut sessions: Vec<_> = self.ready().collect();
        sessions.sort_by_key(|(place, session)| rank(*place, session));
        let sessions = sessions.into_iter();
        sessions.map(|(_, session)| Rc::clone(session)).collect()
    }

    /// The places of the lowest level with a session that accepts streams.
    pub(super) fn active(&self) -> Vec<Place> {
        let places: Vec<_> = self.ready().map(|(place, _)| place).collect();
        let level = places.first().map(|place| place.level);
        let places = places.into_iter();
        places.filter(|place| Some(place.level) == level).collect()
    }

    /// Whether a level below `level` has a session.
    pub(super) fn has_below(&self, level: usize) -> bool {
        self.ready().any(|(place, _)| place.level < level)
    }

    /// Whether a level above `level` has a session, and `level` and those below have none.
    pub(super) fn is_failed_over(&self, level: usize) -> bool {
        let first = self.ready().next();
        first.is_some_and(|(place, _)| place.level > level)
    }

    /// Whether each level below `level` was dialled and has no session.
    pub(super) fn are_down_below(&self, level: usize) -> bool {
        let is_down = |level| {
            let first = self.by_place.get(&Place { level, number: 0 });
            let mut links = self.by_place.iter();
            let links_of_level = |(place, link): (&Place, &Link)| {
                place.level == level && !matches!(link, Link::Down)
            };
            matches!(first, Some(Link::Down)) && !links.any(links_of_level)
        };
        (0..level).all(is_down)
    }

    /// Whether a connection without a session can wait for one: a session is expected soon, or a level
    /// was not dialled yet.
    pub(super) fn may_come(&self) -> bool {
        let is_dialled = |level| self.by_place.contains_key(&Place { level, number: 0 });
        self.is_linked() || !(1..self.levels).all(is_dialled)
    }

    /// Whether a place has a session, or expects one soon.
    pub(super) fn is_linked(&self) -> bool {
        let mut links = self.by_place.values();
        links.any(|link| !matches!(link, Link::Down))
    }

    /// Sets the state of a place; `None`: the place is empty.
    pub(super) fn set(&mut self, place: Place, link: Option<Link>, now: Instant) {
        match link {
            Some(link) => drop(self.by_place.insert(place, link)),
            None => drop(self.by_place.remove(&place)),
        }
        self.none_since = match self.best() {
            Some(_) => None,
            None => self.none_since.or(Some(now)),
        };
    }
}

/// The sort key of a session for new streams; the lowest key wins.
fn rank(place: Place, session: &Rc<dyn Mux>) -> (bool, usize, usize) {
    let (is_down, streams) = session.load();
    (is_down, place.level, streams)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::mux::memory::{Memory, silent};

    #[test]
    fn new_streams_go_where_a_carrier_is_and_nowhere_once_the_exit_goes_away() {
        let now = Instant::now();
        let mut links = Links::new(1, now);
        let memories = [silent(None), silent(None)];
        let sessions = memories.each_ref().map(Memory::shared);
        for (place, session) in sessions.iter().enumerate() {
            links.set(at(0, place), Some(Link::Up(Rc::clone(session))), now);
        }
        let is_best = |links: &Links, place: usize| {
            links
                .best()
                .is_some_and(|best| Rc::ptr_eq(&best, &sessions[place]))
        };
        assert!(is_best(&links, 0));
        memories[0].carried_by(0);
        assert!(is_best(&links, 1));
        memories[1].goes_away();
        assert!(
            is_best(&links, 0),
            "a session without a carrier is better than no session"
        );
        memories[0].goes_away();
        assert!(links.best().is_none() && links.is_linked());
        links.set(at(0, 0), Some(Link::Down), now);
        links.set(at(0, 1), Some(Link::Replacing), now);
        assert_eq!(links.none_since, Some(now));
    }

    const fn at(level: usize, number: usize) -> Place {
        Place { level, number }
    }

    #[test]
    fn a_level_is_dialled_once_those_below_are_down_and_gets_streams_only_without_them() {
        let now = Instant::now();
        let mut links = Links::new(3, now);
        assert!(links.may_come() && links.are_down_below(0) && !links.are_down_below(1));
        let memories = [silent(None), silent(None)];
        let sessions = memories.each_ref().map(Memory::shared);
        let up = |level: usize| Some(Link::Up(Rc::clone(&sessions[level])));
        links.set(at(0, 0), Some(Link::Down), now);
        links.set(at(0, 1), up(0), now);
        assert!(!links.are_down_below(1), "another place has a session");
        links.set(at(0, 1), None, now);
        assert!(links.are_down_below(1) && !links.are_down_below(2));
        links.set(at(1, 0), up(1), now);
        assert!(links.is_failed_over(0) && !links.has_below(1));
        assert_eq!(links.active(), [at(1, 0)]);
        links.set(at(0, 0), up(0), now);
        assert!(!links.is_failed_over(0) && links.has_below(1));
        assert_eq!(links.active(), [at(0, 0)]);
        let best = |links: &Links| links.best().unwrap();
        assert!(Rc::ptr_eq(&best(&links), &sessions[0]));
        memories[0].carried_by(0);
        assert!(
            Rc::ptr_eq(&best(&links), &sessions[1]),
            "the session of the lower order has no carrier"
        );
        memories[1].carried_by(0);
        assert!(links.best().is_none() && links.may_come());
    }
}

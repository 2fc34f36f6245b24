//! The exits that `connect` names, and where new streams go.
//!
//! There may be several names, and a name may have several addresses, each an exit of its own. An entry's worker
//! has a session with each of up to [`EXITS_MAX`], in places of their own: the first is always filled, another
//! one only with an address that no other place has. A stream goes to the session with the fewest.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::CarrierTransport;

use super::{Entry, dial_context};
use crate::io::carrier::Carrier;
use crate::net::egress::Address;
use crate::session::mux::{Mux, Progress};

/// Exits with which a worker has sessions for new streams.
pub(super) const EXITS_MAX: usize = 4;
/// The names are asked for further exits so long after the exits in use have changed, then ever more rarely, at last
/// once in the second time.
const DISCOVERY_PAUSE_MIN: Duration = Duration::from_secs(1);
const DISCOVERY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Without a session for so long, new connections are reset; before that they wait for one. As long as
/// the answer to an open may take.
pub(super) const SESSIONLESS_MAX: Duration = Duration::from_secs(15);

/// The session of one place.
#[derive(Clone)]
pub(super) enum Link {
    /// It has had no carrier for a while.
    Down,
    /// Its exit went away, and another is dialled.
    Replacing,
    Up(Rc<dyn Mux>),
}

/// Where new streams go.
pub(super) struct Links {
    by_place: BTreeMap<usize, Link>,
    /// Since when there is no session for them.
    none_since: Option<Instant>,
}

impl Links {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            by_place: BTreeMap::new(),
            none_since: Some(now),
        }
    }

    /// The sessions that take streams.
    fn ready(&self) -> impl Iterator<Item = &Rc<dyn Mux>> {
        self.by_place.values().filter_map(|link| match link {
            Link::Up(session) if session.progress() == Progress::Ready && !session.has_ended() => {
                Some(session)
            }
            Link::Up(_) | Link::Down | Link::Replacing => None,
        })
    }

    /// The session with the fewest streams; one without a carrier only where all are.
    pub(super) fn best(&self) -> Option<Rc<dyn Mux>> {
        self.ready().min_by_key(|session| session.load()).cloned()
    }

    /// All that take streams, [`Self::best`] first.
    pub(super) fn by_load(&self) -> Vec<Rc<dyn Mux>> {
        let mut sessions: Vec<_> = self.ready().cloned().collect();
        sessions.sort_by_key(|session| session.load());
        sessions
    }

    /// Whether connections find a session, or wait for one that is there soon.
    pub(super) fn is_linked(&self) -> bool {
        let mut links = self.by_place.values();
        links.any(|link| !matches!(link, Link::Down))
    }

    /// `None`: the place is empty.
    fn set(&mut self, place: usize, link: Option<Link>, now: Instant) {
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

/// How an exit was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Names,
    Fallback,
}

/// The exit of a place.
pub(super) struct Taken {
    pub(super) at: Address,
    pub(super) by: By,
}

impl Entry {
    pub(super) fn set_link(&self, place: usize, link: Option<Link>) {
        self.links
            .send_modify(|links| links.set(place, link, Instant::now()));
        let linked = self.links.borrow().is_linked();
        self.telemetry.set_linked(self.worker, linked);
    }

    /// Waits until there is a session, or there was none for long.
    pub(super) async fn has_session_or_none_for_long(&self) {
        let since = self.links.borrow().none_since;
        let until = since.unwrap_or_else(Instant::now) + SESSIONLESS_MAX;
        self.has_session_until(until).await;
    }

    /// Waits until there is a session, or that long.
    pub(super) async fn has_session_until(&self, until: Instant) {
        let mut links = self.links.subscribe();
        let session = links.wait_for(|links| links.best().is_some());
        // Neither way to end is an error: the sender is in `self`.
        let _ = tokio::time::timeout_at(until.into(), session).await;
    }

    /// Connects to an exit for `place`; `None`: there is none that it could be for. The first place uses the fallback where
    /// no other address reaches an exit.
    ///
    /// # Errors
    /// The name has no address, or the last of those that were tried does not answer.
    pub(super) async fn connect(&self, place: usize) -> std::io::Result<Option<Connected>> {
        let (exit, fallback) = self.dial_context.names();
        let tried = self.connect_to(place, exit, By::Names).await;
        let (error, fallback) = match (tried, fallback) {
            (Err(error), Some(fallback)) if place == 0 => (error, fallback),
            (tried, _) => return tried,
        };
        tracing::warn!(code = %Code::CarrierConnecting, %exit, %error, %fallback, "No exit answers; the fallback is dialled");
        self.connect_to(place, fallback, By::Fallback).await
    }

    async fn connect_to(
        &self,
        place: usize,
        exit: &str,
        by: By,
    ) -> std::io::Result<Option<Connected>> {
        let addresses = match self.dial_context.addresses(exit).await {
            // The first place says so.
            Err(_) if place > 0 => return Ok(None),
            resolved => resolved?,
        };
        let chosen = self.choose(place, &addresses);
        let mut last = None;
        for at in chosen.addresses {
            self.occupy(place, at.clone(), by);
            match dial_context::connect(&at, &self.dial_context).await {
                Ok((by, carrier)) => {
                    return Ok(Some(Connected {
                        carrier,
                        at,
                        by,
                        exits: chosen.exits,
                    }));
                }
                Err(error) => last = Some(error),
            }
            self.leave(place);
        }
        match last {
            None if place == 0 => Err(std::io::Error::new(
                std::io::ErrorKind::NotFound,
                "the name has no address",
            )),
            None => Ok(None),
            Some(error) => Err(error),
        }
    }

    pub(super) fn choose(&self, place: usize, addresses: &[Address]) -> Chosen {
        let used = self.exits.borrow();
        let used: Vec<Address> = used.values().map(|taken| taken.at.clone()).collect();
        let left: Vec<Address> = self.left.borrow().values().cloned().collect();
        let mut chosen = choose(place, addresses, &used, &left);
        // One exit is visited, whatever addresses its rendezvous has.
        if self.dial_context.leaf.is_some() {
            chosen.exits = 1;
        }
        chosen
    }

    /// The exit of `place` is this one.
    pub(super) fn occupy(&self, place: usize, at: Address, by: By) {
        self.exits
            .send_modify(|exits| _ = exits.insert(place, Taken { at, by }));
    }

    /// Whether there is never more than one session for new streams.
    pub(super) fn has_one_exit(&self) -> bool {
        let (names, _) = self.dial_context.names();
        self.dial_context.is_single(names)
            || self.dial_context.leaf.is_some()
            || !self.session.protocol.can().several_exits
    }

    /// The exit of `place` takes no more sessions, as far as is known: others are tried first.
    pub(super) fn avoid(&self, place: usize) {
        let exits = self.exits.borrow();
        let left = exits.get(&place).map(|taken| (place, taken.at.clone()));
        self.left.borrow_mut().extend(left);
    }

    /// The exit of `place` is none for new streams any more.
    pub(super) fn leave(&self, place: usize) {
        self.exits.send_modify(|exits| _ = exits.remove(&place));
    }

    /// Waits until it is worth trying again whether there is an exit for `place`. While the first place is at the fallback,
    /// no other place has an exit: it could be the same one.
    pub(super) async fn may_be_for(&self, place: usize) {
        if self.has_one_exit() {
            return std::future::pending().await;
        }
        let is_named = |taken: &Taken| taken.by == By::Names;
        let mut exits = self.exits.subscribe();
        // It cannot fail: the sender is in `self`.
        let _ = exits
            .wait_for(|exits| exits.get(&(place - 1)).is_some_and(is_named))
            .await;
    }

    /// Waits until it is worth trying whether there is a further exit: `discoveries` have found none since the exits in use
    /// have changed.
    pub(super) async fn rediscover(&self, discoveries: &mut u32) {
        let mut exits = self.exits.subscribe();
        let changed = tokio::time::timeout(discovery_pause(*discoveries), exits.changed()).await;
        if changed.is_ok() {
            *discoveries = 0;
            tokio::time::sleep(DISCOVERY_PAUSE_MIN).await;
        }
        *discoveries += 1;
    }
}

pub(super) fn discovery_pause(discoveries: u32) -> Duration {
    DISCOVERY_PAUSE_MIN
        .saturating_mul(1 << discoveries.min(8))
        .min(DISCOVERY_PAUSE_MAX)
}

/// A connection to an exit.
pub(super) struct Connected {
    pub(super) carrier: Carrier,
    pub(super) at: Address,
    /// The transport that came up.
    pub(super) by: CarrierTransport,
    /// How many exits there are.
    pub(super) exits: usize,
}

/// The addresses to be tried one after another, and how many exits there are.
pub(super) struct Chosen {
    pub(super) addresses: Vec<Address>,
    pub(super) exits: usize,
}

/// The first place takes any address, those that no other one has first. Others only take such, of a kind
/// that is in use: an exit may have an address of each kind. Those that went away come last.
fn choose(place: usize, addresses: &[Address], used: &[Address], left: &[Address]) -> Chosen {
    let is_in =
        |those: &[Address], address: &Address| those.iter().any(|other| other.is_same(address));
    let mut all: Vec<Address> = Vec::new();
    for address in addresses {
        if !is_in(&all, address) {
            all.push(address.clone());
        }
    }
    let mut free = all.clone();
    free.retain(|address| !is_in(used, address));
    let mut kinds = used.iter().chain(&free).filter_map(is_ipv4);
    let kind = kinds.next();
    let same_kind = |address: &&Address| is_ipv4(address).is_none_or(|is| Some(is) == kind);
    let exits = all.iter().filter(same_kind).count().clamp(1, EXITS_MAX);
    if place > 0 {
        free.retain(|address| same_kind(&address));
    } else {
        free.extend(
            addresses
                .iter()
                .filter(|address| is_in(used, address))
                .cloned(),
        );
    }
    free.sort_by_key(|address| is_in(left, address));
    Chosen {
        addresses: free,
        exits,
    }
}

/// `None`: it has no address of either kind, so it is an exit of its own.
pub(super) fn is_ipv4(address: &Address) -> Option<bool> {
    address.ip().map(|ip| ip.is_ipv4())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::mux::memory::{Memory, silent};

    #[test]
    fn new_streams_go_where_a_carrier_is_and_nowhere_once_the_exit_goes_away() {
        let now = Instant::now();
        let mut links = Links::new(now);
        let memories = [silent(None), silent(None)];
        let sessions = memories.each_ref().map(Memory::shared);
        for (place, session) in sessions.iter().enumerate() {
            links.set(place, Some(Link::Up(Rc::clone(session))), now);
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
            "one without a carrier is better than none"
        );
        memories[0].goes_away();
        assert!(links.best().is_none() && links.is_linked());
        links.set(0, Some(Link::Down), now);
        links.set(1, Some(Link::Replacing), now);
        assert_eq!(links.none_since, Some(now));
    }

    fn addresses(texts: &[&str]) -> Vec<Address> {
        let address = |text: &&str| match text.parse() {
            Ok(ip) => Address::resolved("exit.example.com:1", ip),
            Err(_) => Address::unresolved(text),
        };
        texts.iter().map(address).collect()
    }

    #[test]
    fn further_exits_are_looked_for_soon_and_then_rarely() {
        let seconds = [0, 1, 2, 3, 4, 5, 6, u32::MAX]
            .map(|discoveries| discovery_pause(discoveries).as_secs());
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn each_place_has_an_exit_of_its_own() {
        let all = addresses(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:1"]);
        let first = choose(0, &all, &[], &[]);
        assert_eq!((&first.addresses[..], first.exits), (&all[..2], 2));
        let second = choose(1, &all, &all[..1], &[]);
        assert_eq!(second.addresses, all[1..2]);
        assert!(choose(2, &all, &all[..2], &[]).addresses.is_empty());
    }

    #[test]
    fn the_first_place_takes_an_exit_that_another_one_has_where_there_is_no_other() {
        let all = addresses(&["10.0.0.1:1", "10.0.0.2:1"]);
        let first = choose(0, &all, &all[..1], &[]);
        assert_eq!(first.addresses, [all[1].clone(), all[0].clone()]);
        let first = choose(0, &all, &all[..1], &all[1..]);
        assert_eq!(first.addresses, all);
    }

    #[test]
    fn an_exit_with_an_address_of_each_kind_is_one() {
        let all = addresses(&["[fd00::1]:1", "10.0.0.1:1"]);
        assert_eq!(choose(0, &all, &[], &[]).exits, 1);
        assert!(choose(1, &all, &all[..1], &[]).addresses.is_empty());
        assert!(choose(1, &all, &all[1..], &[]).addresses.is_empty());
    }

    #[test]
    fn a_unix_socket_and_what_a_proxy_looks_up_are_exits_of_their_own() {
        let all = addresses(&["unix:/a", "10.0.0.1:1", "unix:/a", "[fd00::1]:1", "far:1"]);
        let first = choose(0, &all, &[], &[]);
        assert_eq!(first.exits, 3);
        let second = choose(1, &all, &all[..1], &[]);
        assert_eq!(second.addresses, [all[1].clone(), all[4].clone()]);
    }

    #[test]
    fn there_are_no_more_sessions_than_places() {
        let all: Vec<String> = (1..=9).map(|n| format!("10.0.0.{n}:1")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(choose(0, &addresses(&all), &[], &[]).exits, EXITS_MAX);
    }
}

//! The exits of `connect`, and the choice of a session for new streams.
//!
//! `connect` may contain several names, and a name may have several addresses, each of which is an
//! exit. A worker of an entry has sessions with up to [`EXITS_MAX`] exits, one session with each
//! exit. Each session occupies one of [`EXITS_MAX`] places. The entry always tries to fill the
//! first place. Another place is filled only with an address that no other place uses. A new stream
//! goes to the session with the fewest streams.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::CarrierTransport;

use super::{Entry, dial_context};
use crate::io::carrier::Carrier;
use crate::net::egress::Address;
use crate::net::race::{Lost, Reached, alternate, race};
use crate::session::mux::{Mux, Progress};

/// Maximum number of exits with which a worker has sessions for new streams.
pub(super) const EXITS_MAX: usize = 4;
/// Minimum interval between look-ups for further exits. The interval grows up to the maximum, and
/// returns to the minimum when the exits in use change.
const DISCOVERY_PAUSE_MIN: Duration = Duration::from_secs(1);
const DISCOVERY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Maximum time for dialling all exits. The time is longer than the maximum time for any of them.
const RACE_MAX: Duration = Duration::from_secs(150);
/// For this time, new connections wait for a session. After this time without a session, the entry
/// resets new connections. The value equals the maximum time for the answer to an open.
pub(super) const SESSIONLESS_MAX: Duration = Duration::from_secs(15);

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
    by_place: BTreeMap<usize, Link>,
    /// The time since which no session has accepted streams; `None`: a session accepts streams.
    none_since: Option<Instant>,
}

impl Links {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            by_place: BTreeMap::new(),
            none_since: Some(now),
        }
    }

    /// The sessions that accept streams.
    fn ready(&self) -> impl Iterator<Item = &Rc<dyn Mux>> {
        self.by_place.values().filter_map(|link| match link {
            Link::Up(session) if session.progress() == Progress::Ready && !session.has_ended() => {
                Some(session)
            }
            Link::Up(_) | Link::Down | Link::Replacing => None,
        })
    }

    /// The session with the fewest streams. A session without a carrier is chosen only if no
    /// session has a carrier.
    pub(super) fn best(&self) -> Option<Rc<dyn Mux>> {
        self.ready().min_by_key(|session| session.load()).cloned()
    }

    /// All sessions that accept streams, ordered as in [`Self::best`].
    pub(super) fn by_load(&self) -> Vec<Rc<dyn Mux>> {
        let mut sessions: Vec<_> = self.ready().cloned().collect();
        sessions.sort_by_key(|session| session.load());
        sessions
    }

    /// Whether connections have a session, or can wait for a session that is expected soon.
    pub(super) fn is_linked(&self) -> bool {
        let mut links = self.by_place.values();
        links.any(|link| !matches!(link, Link::Down))
    }

    /// Sets the state of a place; `None`: the place is empty.
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

    /// Reports why a session with `exit` did not become ready.
    pub(super) fn has_no_carrier(&self, exit: &dyn Display, error: &dyn Display) {
        let error = format!("{exit}: {error}");
        self.telemetry.set_carrier_error(self.worker, error);
    }

    /// Waits until a session exists, or until no session has existed for [`SESSIONLESS_MAX`].
    pub(super) async fn has_session_or_none_for_long(&self) {
        let since = self.links.borrow().none_since;
        let until = since.unwrap_or_else(Instant::now) + SESSIONLESS_MAX;
        self.has_session_until(until).await;
    }

    /// Waits for a session until the time `until`.
    pub(super) async fn has_session_until(&self, until: Instant) {
        let mut links = self.links.subscribe();
        let session = links.wait_for(|links| links.best().is_some());
        // The sender is in `self`, so the wait cannot fail. A timeout is not an error.
        let _ = tokio::time::timeout_at(until.into(), session).await;
    }

    /// Connects to an exit for `place`; `None`: no exit is available for the place. The first place
    /// uses the fallback if no other address reaches an exit.
    ///
    /// # Errors
    /// The name has no address, or no address answers. The error is the error of the address that
    /// failed last.
    pub(super) async fn connect(&self, place: usize) -> std::io::Result<Option<Connected>> {
        let (exit, fallback) = self.dial_context.names();
        let tried = self.connect_to(place, exit, By::Names).await;
        let (error, fallback) = match (tried, fallback) {
            (Err(error), Some(fallback)) if place == 0 => (error, fallback),
            (tried, _) => return tried,
        };
        tracing::warn!(code = %Code::CarrierConnecting, %exit, %error, %fallback, "No exit answers; dialling the fallback");
        self.connect_to(place, fallback, By::Fallback).await
    }

    async fn connect_to(
        &self,
        place: usize,
        exit: &str,
        by: By,
    ) -> std::io::Result<Option<Connected>> {
        let addresses = match self.dial_context.addresses(exit).await {
            // The first place reports the error.
            Err(_) if place > 0 => return Ok(None),
            resolved => resolved?,
        };
        let chosen = self.choose(place, &addresses);
        if chosen.addresses.is_empty() && place > 0 {
            return Ok(None);
        }
        let raced = self.race(chosen, |at| self.occupy(place, at.clone(), by));
        match raced.await {
            // Another place may have taken the exit during the race.
            Ok(connected) if place > 0 && self.is_elsewhere(place, &connected.at) => {
                self.leave(place);
                Ok(None)
            }
            Ok(connected) => {
                self.occupy(place, connected.at.clone(), by);
                Ok(Some(connected))
            }
            Err(error) => {
                self.leave(place);
                Err(error)
            }
        }
    }

    /// Connects to the first of the chosen exits that answers. Calls `begin` with the address of
    /// each attempt.
    ///
    /// # Errors
    /// No exit answers. The error is the error of the attempt that failed last.
    pub(super) async fn race(
        &self,
        chosen: Chosen,
        begin: impl Fn(&Address),
    ) -> std::io::Result<Connected> {
        let attempt = |at: Address, reached: Reached| {
            begin(&at);
            async move { dial_context::connect(&at, &self.dial_context, &reached).await }
        };
        let addresses = alternate(chosen.addresses, |at| is_ipv4(at) == Some(true));
        let until = tokio::time::Instant::now() + RACE_MAX;
        let raced = race(addresses, async { Vec::new() }, until, attempt).await;
        let (at, (by, carrier)) = raced.map_err(|lost| match lost {
            // The caller reports the name.
            Lost::Failed(_, error) => error,
            lost => lost.into(),
        })?;
        Ok(Connected {
            carrier,
            at,
            by,
            exits: chosen.exits,
        })
    }

    fn is_elsewhere(&self, place: usize, at: &Address) -> bool {
        let exits = self.exits.borrow();
        let mut others = exits.iter().filter(|(other, _)| **other != place);
        others.any(|(_, taken)| taken.at.is_same(at))
    }

    pub(super) fn choose(&self, place: usize, addresses: &[Address]) -> Chosen {
        let used = self.exits.borrow();
        let used: Vec<Address> = used.values().map(|taken| taken.at.clone()).collect();
        let left: Vec<Address> = self.left.borrow().values().cloned().collect();
        let mut chosen = choose(place, addresses, &used, &left);
        // A rendezvous connects to one exit, regardless of the number of its own addresses.
        if self.dial_context.leaf.is_some() {
            chosen.exits = 1;
        }
        chosen
    }

    /// Sets the exit of `place`.
    pub(super) fn occupy(&self, place: usize, at: Address, by: By) {
        self.exits
            .send_modify(|exits| _ = exits.insert(place, Taken { at, by }));
    }

    /// Whether the entry never has more than one session for new streams.
    pub(super) fn has_one_exit(&self) -> bool {
        let (names, _) = self.dial_context.names();
        self.dial_context.is_single(names)
            || self.dial_context.leaf.is_some()
            || !self.session.protocol.can().several_exits
    }

    /// Marks the exit of `place` as refusing sessions, so that other exits are tried first.
    pub(super) fn avoid(&self, place: usize) {
        let exits = self.exits.borrow();
        let left = exits.get(&place).map(|taken| (place, taken.at.clone()));
        self.left.borrow_mut().extend(left);
    }

    /// Removes the exit of `place`, which accepts no new streams.
    pub(super) fn leave(&self, place: usize) {
        self.exits.send_modify(|exits| _ = exits.remove(&place));
    }

    /// Waits until a new attempt to find an exit for `place` is useful. While the first place uses
    /// the fallback, the other places stay empty, since their exit could be the fallback.
    pub(super) async fn may_be_for(&self, place: usize) {
        if self.has_one_exit() {
            return std::future::pending().await;
        }
        let is_named = |taken: &Taken| taken.by == By::Names;
        let mut exits = self.exits.subscribe();
        // The sender is in `self`, so the wait cannot fail.
        let _ = exits
            .wait_for(|exits| exits.get(&(place - 1)).is_some_and(is_named))
            .await;
    }

    /// Waits until the next look-up for further exits is due. `discoveries` counts the look-ups
    /// without a result since the exits in use last changed.
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
    /// The transport of the connection.
    pub(super) by: CarrierTransport,
    /// The number of exits that were found.
    pub(super) exits: usize,
}

/// The addresses to try, in order, and the number of exits.
pub(super) struct Chosen {
    pub(super) addresses: Vec<Address>,
    pub(super) exits: usize,
}

/// Chooses the addresses to try for `place`. The first place may use any address, but prefers
/// addresses that no other place uses. Other places may use only unused addresses of the family in
/// use, since an exit may have an address of each family. Addresses of exits that have shut down
/// come last.
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

/// Whether the address is IPv4; `None`: it is not an IP address, so it counts as a separate exit.
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
            "a session without a carrier is better than no session"
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

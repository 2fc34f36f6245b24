//! The choice of an exit of `connect` for each session, and of a session for new streams.
//!
//! The exits of one order are a level ([`super::levels`]). A level may have several names, and a name
//! may have several addresses, each of which is an exit. At each level, a worker of an entry has
//! sessions with up to [`EXITS_MAX`] exits, one session with each exit. Each session occupies one of
//! [`EXITS_MAX`] places of its level. The entry always tries to fill the first place of level 0.
//! Another place is filled only with an address that no other place of its level uses. A level is
//! used while the levels below it are down. A new stream goes to the lowest level, and there to the
//! session with the fewest streams.

use std::fmt::Display;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::CarrierTransport;

use super::carriers::{pause, pause_at_most};
use super::links::{Link, Place};
use super::{Entry, dial_context};
use crate::io::carrier::Carrier;
use crate::net::egress::Address;
use crate::net::race::{Lost, Reached, alternate, race};

/// Maximum number of exits of a level with which a worker has sessions for new streams.
pub(super) const EXITS_MAX: usize = 4;
/// Minimum interval between look-ups for further exits. The interval grows up to the maximum, and
/// returns to the minimum when the exits in use change.
const DISCOVERY_PAUSE_MIN: Duration = Duration::from_secs(1);
const DISCOVERY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Maximum time for dialling all exits. The time is longer than the maximum time for any of them.
const RACE_MAX: Duration = Duration::from_secs(150);
/// For this time, a level below must have a session before the sessions above end. If the level fails
/// again within this time, streams continue on these sessions without a dial.
const RETURN_AFTER: Duration = Duration::from_secs(10);
/// Maximum pause between dials of a level while a level above has a session.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(30);
/// For this time, new connections wait for a session. After this time without a session, the entry
/// resets new connections. The value equals the maximum time for the answer to an open.
pub(super) const SESSIONLESS_MAX: Duration = Duration::from_secs(15);

impl Entry {
    pub(super) fn set_link(&self, place: Place, link: Option<Link>) {
        self.links
            .send_modify(|links| links.set(place, link, Instant::now()));
        let linked = self.links.borrow().is_linked();
        self.telemetry.set_linked(self.worker, linked);
        let exits = self.exits.borrow();
        let active = self.links.borrow().active();
        let active = active.iter().filter_map(|place| exits.get(place));
        let names = active.filter_map(|at| self.dial_context.exits.at(at.exit()));
        let names = names.map(|exit| exit.name.clone()).collect();
        self.telemetry.set_active(self.worker, names);
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

    /// Connects to an exit for `place`; `None`: no exit is available for the place.
    ///
    /// # Errors
    /// The names of the level have no address, or no address answers. The error is the error of the
    /// address that failed last.
    pub(super) async fn connect(&self, place: Place) -> std::io::Result<Option<Connected>> {
        let addresses = match self.dial_context.addresses(place.level).await {
            // The first place reports the error.
            Err(_) if place.number > 0 => return Ok(None),
            resolved => resolved?,
        };
        let chosen = self.choose(place, &addresses);
        if chosen.addresses.is_empty() && place.number > 0 {
            return Ok(None);
        }
        let raced = self.race(chosen, |at| self.occupy(place, at.clone()));
        match raced.await {
            // Another place may have taken the exit during the race.
            Ok(connected) if place.number > 0 && self.is_elsewhere(place, &connected.at) => {
                self.leave(place);
                Ok(None)
            }
            Ok(connected) => {
                self.occupy(place, connected.at.clone());
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
    async fn race(&self, chosen: Chosen, begin: impl Fn(&Address)) -> std::io::Result<Connected> {
        let attempt = |at: Address, reached: Reached| {
            begin(&at);
            async move { dial_context::connect(&at, &self.dial_context, &reached).await }
        };
        let addresses = alternate(chosen.addresses, |at| at.is_ipv4() == Some(true));
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

    fn is_elsewhere(&self, place: Place, at: &Address) -> bool {
        self.used_besides(place).iter().any(|used| used.is_same(at))
    }

    /// The exits of the other places of the level.
    fn used_besides(&self, place: Place) -> Vec<Address> {
        let exits = self.exits.borrow();
        let others = exits
            .iter()
            .filter(|(other, _)| other.level == place.level && **other != place);
        others.map(|(_, at)| at.clone()).collect()
    }

    fn choose(&self, place: Place, addresses: &[Address]) -> Chosen {
        let used = self.used_besides(place);
        let left: Vec<Address> = self.left.borrow().values().cloned().collect();
        choose(place.number, addresses, &used, &left)
    }

    /// Sets the exit of `place`.
    fn occupy(&self, place: Place, at: Address) {
        self.exits.send_modify(|exits| _ = exits.insert(place, at));
    }

    /// Whether the entry never has more than one session of `level` for new streams.
    fn has_one_exit(&self, level: usize) -> bool {
        self.dial_context.has_one_exit(level) || !self.session.protocol.can().several_exits
    }

    /// Marks the exit of `place` as refusing sessions, so that other exits are tried first.
    pub(super) fn avoid(&self, place: Place) {
        let exits = self.exits.borrow();
        let left = exits.get(&place).map(|at| (place, at.clone()));
        self.left.borrow_mut().extend(left);
    }

    /// Removes the exit of `place`, which accepts no new streams.
    pub(super) fn leave(&self, place: Place) {
        self.exits.send_modify(|exits| _ = exits.remove(&place));
    }

    /// Waits until a new attempt to find an exit for `place` is useful.
    pub(super) async fn may_be_for(&self, place: Place) {
        if place.is_first() {
            return;
        }
        let Some(before) = place.before() else {
            return self.are_down_below(place).await;
        };
        if self.has_one_exit(place.level) {
            return std::future::pending().await;
        }
        let mut exits = self.exits.subscribe();
        // The sender is in `self`, so the wait cannot fail.
        let _ = exits.wait_for(|exits| exits.contains_key(&before)).await;
    }

    /// Waits until the levels below the level of `place` are down.
    async fn are_down_below(&self, place: Place) {
        let level = place.level;
        if self.links.borrow().are_down_below(level) {
            return;
        }
        // The level is not in use, so it is not down.
        self.set_link(place, None);
        let mut links = self.links.subscribe();
        let _ = links.wait_for(|links| links.are_down_below(level)).await;
        let (order, exits) = (
            self.dial_context.exits.order(level),
            self.dial_context.exits.label(level),
        );
        tracing::warn!(code = %Code::CarrierConnecting, order, %exits, "No exit of a lower order answers; dialling the exits of this order");
    }

    /// Waits until a level below `level` has had a session for [`RETURN_AFTER`].
    pub(super) async fn is_outranked(&self, level: usize) {
        let mut links = self.links.subscribe();
        loop {
            let _ = links.wait_for(|links| links.has_below(level)).await;
            tokio::select! {
                _ = links.wait_for(|links| !links.has_below(level)) => {}
                () = tokio::time::sleep(RETURN_AFTER) => return,
            }
        }
    }

    /// Waits before the next dial for `place`. While a level above has the sessions, the pause is
    /// longer, and ends with the last session.
    pub(super) async fn pause(&self, place: Place, failures: u32) {
        let is_probe = place.number == 0 && self.links.borrow().is_failed_over(place.level);
        if !is_probe {
            return pause(failures).await;
        }
        let mut links = self.links.subscribe();
        tokio::select! {
            () = pause_at_most(failures, PROBE_PAUSE_MAX) => {}
            _ = links.wait_for(|links| links.best().is_none()) => pause(failures).await,
        }
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

fn discovery_pause(discoveries: u32) -> Duration {
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
struct Chosen {
    addresses: Vec<Address>,
    exits: usize,
}

/// Chooses the addresses to try for the place with the number `place` of a level. The first place
/// may use any address, but prefers addresses that no other place uses. Other places may use only
/// unused addresses of the family in use, since an exit may have an address of each family. An
/// address that is not an IP address is a separate exit. Addresses of exits that have shut down come
/// last.
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
    let mut kinds = used.iter().chain(&free).filter_map(Address::is_ipv4);
    let kind = kinds.next();
    let same_kind = |address: &&Address| address.is_ipv4().is_none_or(|is| Some(is) == kind);
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

#[cfg(test)]
mod tests {
    use super::*;

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

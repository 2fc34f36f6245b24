//! Reports keys that gateways refuse, because no list has them: one Event an hour for each object.
//! Pure, apart from the memory.
//!
//! The admin port of gateways is not authenticated, so anybody in the cluster's network can forge a
//! report. Therefore the status has no part of it, and an Event has a number and a checked key.

use std::collections::BTreeMap;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{GatewayKey, Role};
use parking_lot::Mutex;

use super::verdicts::answers;
use crate::events::Happened;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::observe::{PODS_MAX, Seen};

/// Minimum time between two Events of an object, in seconds.
const PAUSE_SECONDS: i64 = 3600;

/// What was reported. The memory has only objects that were reconciled in the last two
/// [`PAUSE_SECONDS`].
#[derive(Debug, Default)]
pub struct UnknownKeys(Mutex<BTreeMap<String, Reported>>);

/// The memory of one object.
#[derive(Debug)]
struct Reported {
    /// When the last Event was published, in seconds since 1970.
    at: i64,
    /// When the object was last reconciled.
    seen: i64,
    /// The counts of the gateways at the last Event, by pod.
    counts: BTreeMap<String, u64>,
}

impl UnknownKeys {
    /// The Event for the gateways of `end` of the object `uid`, if one is due at `now`. The first call
    /// for an object, for example after a restart of the operator, only remembers the counts.
    pub fn happened(
        &self,
        (uid, kind): (&str, Kind),
        seen: &Seen,
        now: i64,
    ) -> Option<Happened<'static>> {
        let (end, roles, remedy): (_, &[Role], _) = match kind {
            Kind::Tunnel => return None,
            Kind::Exit => (
                End::Exit,
                &[Role::Entry],
                "If the entry may connect, create a MuxPeer with this key",
            ),
            Kind::Rendezvous => (
                End::Rendezvous,
                &[Role::Entry, Role::Exit],
                "If the gateway may connect, add this key to spec.members",
            ),
        };
        let reports = answers(seen, end).filter_map(|(pod, status)| {
            let unknown = status.unknown_keys.as_ref();
            let Some(unknown) = unknown else {
                return Some((pod.name.as_str(), 0, None));
            };
            // A text that is no key of such a gateway is no report.
            let key: GatewayKey = unknown.last.parse().ok()?;
            let is_permitted = roles.contains(&key.role());
            is_permitted.then_some((pod.name.as_str(), unknown.count, Some(key)))
        });
        let reports: Vec<_> = reports.collect();
        let (count, key) = self.step(uid, &reports, now)?;
        Some(Happened {
            action: "RefuseKey".to_owned(),
            reason: Code::KeyUnknown.reason(),
            note: format!(
                "{} {count} connections presented keys that no list has, the last key is {key}. {remedy}",
                Code::KeyUnknown
            ),
        })
    }

    /// The number of refused connections since the last Event and the last key, if an Event is due.
    fn step(
        &self,
        uid: &str,
        reports: &[(&str, u64, Option<GatewayKey>)],
        now: i64,
    ) -> Option<(u64, GatewayKey)> {
        let counts = || {
            let counts = reports.iter();
            counts.map(|(pod, count, _)| ((*pod).to_owned(), *count))
        };
        let mut all = self.0.lock();
        all.retain(|_, one| now - one.seen <= 2 * PAUSE_SECONDS);
        let Some(known) = all.get_mut(uid) else {
            let first = Reported {
                at: now - PAUSE_SECONDS,
                seen: now,
                counts: counts().collect(),
            };
            all.insert(uid.to_owned(), first);
            return None;
        };
        known.seen = now;
        if now - known.at < PAUSE_SECONDS {
            return None;
        }
        let new = reports.iter().filter_map(|(pod, count, key)| {
            let before = known.counts.get(*pod).copied().unwrap_or_default();
            // A container that has restarted begins to count again.
            let new = count.checked_sub(before).unwrap_or(*count);
            Some((new, (*key)?)).filter(|_| new > 0)
        });
        let new: Vec<_> = new.collect();
        let total = new
            .iter()
            .fold(0_u64, |sum, (new, _)| sum.saturating_add(*new));
        let (_, last) = new.into_iter().max_by_key(|(new, _)| *new)?;
        // A pod that does not answer now keeps its count.
        let pods: Vec<_> = counts().collect();
        known.counts.extend(pods);
        while known.counts.len() > 2 * PODS_MAX {
            known.counts.pop_first();
        }
        known.at = now;
        Some((total, last))
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::key_text;

    use super::*;

    fn key(seed: u8) -> GatewayKey {
        key_text(Role::Entry, &[seed * 3; 32]).parse().unwrap()
    }

    #[test]
    fn refused_keys_are_one_event_an_hour_with_their_count_and_the_last_key() {
        let unknown = UnknownKeys::default();
        let step =
            |reports: &[(&str, u64, Option<GatewayKey>)], now| unknown.step("uid", reports, now);
        // What was counted before the operator started is no news.
        assert_eq!(step(&[("a", 7, Some(key(1))), ("b", 0, None)], 0), None);
        assert_eq!(step(&[("a", 7, Some(key(1))), ("b", 0, None)], 10), None);
        let both = [("a", 8, Some(key(1))), ("b", 5, Some(key(2)))];
        assert_eq!(step(&both, 20), Some((6, key(2))));
        let more = [("a", 9, Some(key(1))), ("b", 5, Some(key(2)))];
        assert_eq!(step(&more, 30), None, "an hour has not passed");
        assert_eq!(step(&more, 20 + PAUSE_SECONDS), Some((1, key(1))));
        // A gateway that has restarted, and no new refusal after that.
        let again = [("a", 3, Some(key(1)))];
        assert_eq!(step(&again, 20 + 2 * PAUSE_SECONDS), Some((3, key(1))));
        assert_eq!(step(&again, 20 + 3 * PAUSE_SECONDS), None);
    }

    #[test]
    fn objects_that_are_gone_are_forgotten() {
        let unknown = UnknownKeys::default();
        for object in 0..9 {
            unknown.step(&format!("uid-{object}"), &[], 3 * object * PAUSE_SECONDS);
        }
        assert_eq!(unknown.0.lock().len(), 1);
    }
}

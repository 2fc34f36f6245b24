//! The answers of the name servers that are still valid.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::query::{Answer, Fault, Question};

/// Maximum number of answers. Each answer has at most 64 addresses.
const ANSWERS_MAX: usize = 4096;
/// Maximum time for which an answer is kept, regardless of its TTL.
const VALID_MAX: Duration = Duration::from_secs(3600);
/// Maximum time for which the gateway remembers that a name has no address.
const FAULT_MAX: Duration = Duration::from_secs(1);

/// An answer that several look-ups share.
pub(super) type Shared = Result<Arc<Addresses>, Fault>;

/// The addresses of a name in one family.
#[derive(Debug)]
pub(super) struct Addresses {
    all: Vec<IpAddr>,
    /// Number of look-ups that received the addresses.
    given: AtomicUsize,
}

impl Addresses {
    pub(super) fn new(all: Vec<IpAddr>) -> Self {
        Self {
            all,
            given: AtomicUsize::new(0),
        }
    }

    /// The addresses in the order of the server, beginning with another address for each look-up.
    /// Many servers rotate their answers to spread clients, and the cache must not undo this.
    pub(super) fn give(&self) -> Vec<IpAddr> {
        let mut addresses = self.all.clone();
        let first = self.given.fetch_add(1, Relaxed) % addresses.len().max(1);
        addresses.rotate_left(first);
        addresses
    }
}

#[derive(Debug, Default)]
pub(super) struct Cache(BTreeMap<Question, (Shared, Instant)>);

impl Cache {
    pub(super) fn get(&self, question: &Question, now: Instant) -> Option<Shared> {
        let (answer, until) = self.0.get(question)?;
        (now < *until).then(|| answer.clone())
    }

    /// Keeps an answer as long as it is valid. Returns it for the look-ups that wait for it.
    pub(super) fn put(&mut self, question: Question, answer: Answer, now: Instant) -> Shared {
        let max = match &answer.addresses {
            Ok(_) => VALID_MAX,
            Err(_) => FAULT_MAX,
        };
        let valid = answer.valid.min(max);
        let shared = answer.addresses.map(Addresses::new).map(Arc::new);
        self.0.remove(&question);
        if !valid.is_zero() {
            self.make_room(now);
            self.0.insert(question, (shared.clone(), now + valid));
        }
        shared
    }

    /// Removes the answers for a name.
    pub(super) fn forget(&mut self, name: &str) {
        self.0.retain(|question, _| question.name != name);
    }

    fn make_room(&mut self, now: Instant) {
        if self.0.len() < ANSWERS_MAX {
            return;
        }
        self.0.retain(|_, (_, until)| now < *until);
        while self.0.len() >= ANSWERS_MAX {
            let next = self.0.iter().min_by_key(|(_, (_, until))| *until);
            let Some(question) = next.map(|(question, _)| question.clone()) else {
                return;
            };
            self.0.remove(&question);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::query::Family;
    use super::*;

    fn question(name: &str) -> Question {
        Question {
            name: name.to_owned(),
            family: Family::V4,
        }
    }

    fn answer(seconds: u64) -> Answer {
        Answer {
            addresses: Ok(vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()]),
            valid: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn an_answer_is_known_as_long_as_its_ttl_says() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        cache.put(question("a"), answer(30), now).unwrap();
        assert!(cache.get(&question("a"), at(29)).is_some());
        assert!(cache.get(&question("a"), at(30)).is_none());
        assert!(cache.get(&question("b"), now).is_none());
        cache.put(question("a"), answer(0), now).unwrap();
        assert!(
            cache.get(&question("a"), now).is_none(),
            "a TTL of 0 forbids to keep the answer"
        );
        cache
            .put(question("a"), answer(u64::from(u32::MAX)), now)
            .unwrap();
        assert!(cache.get(&question("a"), now + VALID_MAX).is_none());
        cache.put(question("a"), answer(30), now).unwrap();
        cache.forget("a");
        assert!(cache.get(&question("a"), now).is_none());
    }

    #[test]
    fn a_failure_is_remembered_for_a_second_at_most() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let mut put = |seconds| {
            let valid = Duration::from_secs(seconds);
            let addresses = Err(Fault::NoName);
            let _ = cache.put(question("a"), Answer { addresses, valid }, now);
            [0, 999, 1000].map(|millis| {
                let later = now + Duration::from_millis(millis);
                cache.get(&question("a"), later).is_some()
            })
        };
        assert_eq!(put(3600), [true, true, false]);
        assert_eq!(put(0), [false; 3]);
    }

    #[test]
    fn each_look_up_begins_with_another_address() {
        let addresses = Addresses::new(answer(1).addresses.unwrap());
        let firsts = [(); 4].map(|()| addresses.give()[0].to_string());
        assert_eq!(firsts, ["10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn the_answers_that_end_first_make_room() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        for number in 0..=ANSWERS_MAX as u64 {
            let name = format!("{number}");
            cache
                .put(question(&name), answer(10 + number % 3000), now)
                .unwrap();
        }
        assert_eq!(cache.0.len(), ANSWERS_MAX);
        assert!(cache.get(&question("0"), now).is_none());
        assert!(cache.get(&question("4096"), now).is_some());
    }
}

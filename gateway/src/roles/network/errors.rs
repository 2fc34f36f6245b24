//! ICMP errors that tell a sender why its packet was dropped.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muxtunnel_packet as packet;

use super::owner::Owner;
use super::{Network, Sender};
use crate::base::token_bucket::Bucket;
use crate::stream::packet::Packet;

/// Maximum number of ICMP errors that all workers send to one sender per second.
const ERRORS_A_SECOND: u64 = 100;
/// Burst of ICMP errors: as many errors as the rate permits in this time.
const ERRORS_BURST: Duration = Duration::from_millis(500);
/// Maximum number of senders that got an ICMP error recently. Further senders get none.
const SENDERS_MAX: usize = 1024;

/// The ICMP errors that each sender may still get: each peer, and the hosts of this side together.
#[derive(Debug)]
pub(super) struct Budgets {
    per_second: u64,
    buckets: BTreeMap<Option<Owner>, Bucket>,
}

impl Budgets {
    /// `workers`: the number of workers that share a sender's budget.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            per_second: (ERRORS_A_SECOND / workers as u64).max(1),
            buckets: BTreeMap::new(),
        }
    }

    /// Builds an error for `sender` if its budget permits one. Takes from the budget only if
    /// `error` returns an error.
    fn take<T>(
        &mut self,
        sender: Option<&Owner>,
        now: Instant,
        error: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let sender = sender.cloned();
        let known = self.buckets.get(&sender).copied();
        let mut bucket = known.unwrap_or_else(|| Bucket::new(self.per_second, ERRORS_BURST));
        if !bucket.try_take(now, 1) {
            return None;
        }
        let error = error()?;
        if known.is_none() && self.buckets.len() >= SENDERS_MAX {
            self.buckets.retain(|_, bucket| !bucket.is_paid(now));
            if self.buckets.len() >= SENDERS_MAX {
                return None;
            }
        }
        self.buckets.insert(sender, bucket);
        Some(error)
    }
}

impl Network {
    /// Sends an ICMP error to the sender of a dropped packet, [`ERRORS_A_SECOND`] at most (RFC
    /// 1812, section 4.3.2.8). Without an error, the sender relies on its own timeout.
    pub(super) fn tell(&self, sender: &Sender<'_>, error: impl FnOnce() -> Option<Vec<u8>>) {
        let now = tokio::time::Instant::now().into_std();
        let of = match sender {
            Sender::Host => None,
            Sender::Peer(owner) => Some(*owner),
        };
        let Some(error) = self.errors.borrow_mut().take(of, now, error) else {
            return;
        };
        match sender {
            Sender::Host => drop(self.tun.try_write(&error)),
            // Every carrier takes a packet as short as the error, so `send` does not recurse.
            Sender::Peer(owner) => {
                if let Ok(packet) = packet::check(&error) {
                    let _ = self.send(owner, &packet, Packet::from(&*error), sender);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(budgets: &mut Budgets, sender: Option<&Owner>, now: Instant) -> usize {
        let take = |_: &usize| budgets.take(sender, now, || Some(())).is_some();
        (0..1000).filter(take).count()
    }

    #[test]
    fn a_packet_without_an_error_takes_nothing_from_the_budget() {
        let (mut budgets, now) = (Budgets::new(1), Instant::now());
        for _ in 0..1000 {
            assert_eq!(budgets.take(None, now, || None::<()>), None);
        }
        assert_eq!(taken(&mut budgets, None, now), 50);
        let is_built = || -> Option<()> { panic!("no error may be sent") };
        assert_eq!(budgets.take(None, now, is_built), None);
    }

    #[test]
    fn each_sender_has_its_own_budget() {
        let (mut budgets, now) = (Budgets::new(2), Instant::now());
        for sender in [None, Some(Owner::Session(1)), Some(Owner::Side)] {
            assert_eq!(taken(&mut budgets, sender.as_ref(), now), 25, "{sender:?}");
        }
    }

    #[test]
    fn senders_are_bounded_and_those_without_recent_errors_forgotten() {
        let (mut budgets, now) = (Budgets::new(1), Instant::now());
        for number in 0..2 * SENDERS_MAX as u64 {
            budgets.take(Some(&Owner::Session(number)), now, || Some(()));
        }
        assert_eq!(budgets.buckets.len(), SENDERS_MAX);
        assert_eq!(taken(&mut budgets, None, now), 0);
        assert_eq!(taken(&mut budgets, None, now + ERRORS_BURST), 50);
        assert_eq!(budgets.buckets.len(), 1);
    }
}

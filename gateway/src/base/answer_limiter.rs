//! Limits the answers that a UDP listener sends to strangers without storing state: challenges,
//! retries, resets and version negotiation.
//!
//! A stranger can forge the source address of a datagram. Without a limit, an exit would then send
//! any number of datagrams to any address. With one limit for all sources, a forger could use up
//! the limit, so that honest peers get no answer. So each source has a share of its own, as in the
//! handshake limiter: an IPv4 address or an IPv6 /64 network. Answers beyond the share use a common
//! part, so one source may use what the other sources do not need.
//!
//! Bounds: [`SHARES`] shares. Several sources may have the same share. A random key chooses the
//! share of a source, so a forger cannot choose the sources that share with a certain peer.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::handshake_limiter::network;
use super::token_bucket::Bucket;

/// Number of shares.
const SHARES: usize = 1024;

/// How many answers a listener sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rates {
    /// Answers per second of each share.
    of_share: u64,
    /// Answers per second beyond the shares.
    in_common: u64,
    /// The time whose answers may be sent at once after a pause.
    burst: Duration,
}

/// Challenges of KCP, and retries and refusals of QUIC. An honest peer needs one of them for each
/// connection.
pub(crate) const CHALLENGES: Rates = Rates {
    of_share: 16,
    in_common: 8192,
    burst: Duration::from_secs(1),
};
/// Resets and version negotiation. After a restart, an exit resets each connection of its previous
/// process once.
pub(crate) const RESETS: Rates = Rates {
    of_share: 1,
    in_common: 256,
    burst: Duration::from_secs(4),
};

/// The limit of one listener.
#[derive(Debug)]
pub(crate) struct AnswerLimiter {
    shares: Vec<Bucket>,
    common: Bucket,
    key: RandomState,
}

impl AnswerLimiter {
    pub(crate) fn new(rates: Rates) -> Self {
        Self {
            shares: vec![Bucket::new(rates.of_share, rates.burst); SHARES],
            common: Bucket::new(rates.in_common, rates.burst),
            key: RandomState::new(),
        }
    }

    /// Counts an answer to `source`. Returns whether the listener may send the answer.
    pub(crate) fn permits(&mut self, now: Instant, source: IpAddr) -> bool {
        let share = self.key.hash_one(network(Some(source))) as usize % SHARES;
        let own = self.shares.get_mut(share);
        own.is_some_and(|own| own.try_take(now, 1)) || self.common.try_take(now, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOD_PER_MILLISECOND: u32 = 50;
    const MILLISECONDS: u64 = 10_000;

    fn ip(bits: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(bits).into()
    }

    /// Sends a flood from the addresses of `forged` for some seconds, and one honest datagram every
    /// 250 ms. Returns the numbers of answers to both.
    fn flood(rates: Rates, forged: impl Fn(u32) -> u32, honest: IpAddr) -> (u64, Vec<bool>) {
        let start = Instant::now();
        let mut limiter = AnswerLimiter::new(rates);
        let (mut number, mut answers, mut answered) = (0, 0, Vec::new());
        for milli in 0..MILLISECONDS {
            let now = start + Duration::from_millis(milli);
            for _ in 0..FLOOD_PER_MILLISECOND {
                number += 1;
                answers += u64::from(limiter.permits(now, ip(forged(number))));
            }
            if milli % 250 == 249 {
                answered.push(limiter.permits(now, honest));
            }
        }
        (answers, answered)
    }

    #[test]
    fn a_flood_from_few_sources_leaves_each_other_source_its_share() {
        // Few of the 1,024 shares are used up. The honest source may have one of them.
        let lucky = (0..5).filter(|_| {
            let (_, answered) = flood(CHALLENGES, |number| number % 4, ip(1 << 31));
            answered.iter().all(|answered| *answered)
        });
        assert!(lucky.count() > 2);
    }

    #[test]
    fn a_flood_from_random_sources_does_not_lock_an_honest_source_out() {
        let forged = |number: u32| number.wrapping_mul(0x9e37_79b9);
        for _ in 0..3 {
            let (answers, answered) = flood(CHALLENGES, forged, ip(1));
            let most = (SHARES as u64 * CHALLENGES.of_share + CHALLENGES.in_common)
                * (MILLISECONDS / 1000 + 1);
            assert!(answers <= most, "{answers} of at most {most}");
            assert!(answered.contains(&true), "no answer");
        }
    }

    #[test]
    fn a_source_alone_may_use_what_nobody_else_needs() {
        let (answers, _) = flood(CHALLENGES, |_| 1, ip(2));
        let least = CHALLENGES.in_common * MILLISECONDS / 1000;
        assert!(answers >= least, "{answers} of at least {least}");
    }

    #[test]
    fn resets_are_few() {
        let (answers, _) = flood(RESETS, |number| number, ip(2));
        let most = (SHARES as u64 * RESETS.of_share + RESETS.in_common) * (MILLISECONDS / 1000 + 4);
        assert!(answers <= most, "{answers} of at most {most}");
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let mut limiter = AnswerLimiter::new(Rates {
            of_share: 1,
            in_common: 1,
            burst: Duration::from_secs(1),
        });
        let now = Instant::now();
        let permitted = (0..100_u16).filter(|host| {
            let source = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, *host);
            limiter.permits(now, source.into())
        });
        assert_eq!(permitted.count(), 2);
    }
}

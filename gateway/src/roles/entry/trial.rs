//! Whether another transport carries more than the present one: for some seconds both carry, side by side. And whether one that
//! is wanted rather than WebSocket comes up by now.
//!
//! Whatever a session has to send goes to the carrier that has room for it, so what each of them moved is what its path gives.
//! No stream notices more than that: streams outlive their carriers.

use std::time::Duration;

use muxtunnel_gateway_config::status::CarrierTransport;
use rand::RngExt;
use tokio::time::Instant;

use super::dial_context::{DialContext, connect_by};
use super::ways::Ways;
use crate::net::egress::Address;
use crate::session::mux::{CarrierFigures, CarrierPool};

/// Between two looks at what carriers move and lose: so long to twice that, so that entries that share a path do not all try
/// at once.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A session that moves less in that time needs no other transport.
const BULK_BYTES: u64 = 256 << 10;
/// Segments of TCP that are lost in that time: at least so many...
const LOST_MIN: u64 = 10;
/// ...and one in so many, at which Cubic carries a few Mbit/s over 50 ms.
const LOST_PART: u64 = 1000;
/// Payload of a segment on a path of 1,500 bytes.
const SEGMENT_BYTES: u64 = 1448;
/// What a new carrier has to find out how much its path takes...
const WARM_UP: Duration = Duration::from_secs(2);
/// ...before it is measured, for so long.
const MEASURED: Duration = Duration::from_secs(5);
/// The other transport has to carry five quarters of what the present one does, and both together of what that did alone.
const BETTER: (u64, u64) = (5, 4);

/// What a session tries beside what it has.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// Whether this one carries more.
    Compare(CarrierTransport),
    /// Whether one of these comes up, the first of which is wanted most: it replaces the present one then.
    Return(Vec<CarrierTransport>),
}

/// Waits until there is reason to try another transport than `present`, and returns what is to be tried.
pub(super) async fn is_due(
    carriers: &dyn CarrierPool,
    present: CarrierTransport,
    ways: &Ways,
) -> Trial {
    if !ways.are_several() || !carriers.resumes() {
        return std::future::pending().await;
    }
    let mut before = carriers.figures();
    loop {
        tokio::time::sleep(LOOK_EVERY.mul_f64(1.0 + rand::rng().random::<f64>())).await;
        let others = ways.to_return_to(present, Instant::now());
        if !others.is_empty() {
            return Trial::Return(others);
        }
        let now = carriers.figures();
        let look = Look::between(&before, &now);
        before = now;
        if let Some(look) = look
            && look.gives_reason()
            && let Some(other) = ways.to_try(look.transport, Instant::now())
        {
            return Trial::Compare(other);
        }
    }
}

/// What carriers did between two looks.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    transport: CarrierTransport,
    bytes: u64,
    lost: u64,
}

impl Look {
    /// `None`: they are not the same ones, or run on several transports.
    fn between(before: &[CarrierFigures], now: &[CarrierFigures]) -> Option<Self> {
        let transport = now.first()?.transport;
        let pairs = before.iter().zip(now);
        let mut same = pairs.clone();
        let is_same = before.len() == now.len()
            && same.all(|(before, now)| before.since == now.since && now.transport == transport);
        is_same.then(|| Self {
            transport,
            bytes: pairs
                .clone()
                .map(|(before, now)| bytes(now).saturating_sub(bytes(before)))
                .sum(),
            lost: pairs
                .map(|(before, now)| lost(now).saturating_sub(lost(before)))
                .sum(),
        })
    }

    /// By KCP nothing that is lost tells what TCP would carry.
    fn gives_reason(&self) -> bool {
        let loses = self.lost >= LOST_MIN && self.lost * LOST_PART >= self.bytes / SEGMENT_BYTES;
        self.bytes >= BULK_BYTES && (loses || self.transport == CarrierTransport::Kcp)
    }
}

fn bytes(carrier: &CarrierFigures) -> u64 {
    carrier.sent + carrier.received
}

/// Segments that either side sent again, as far as this one sees.
fn lost(carrier: &CarrierFigures) -> u64 {
    let path = carrier.path.unwrap_or_default();
    path.retransmits + path.out_of_order
}

/// Tries another transport beside what there is. Returns the one that the session is to run on from now on, where that changes:
/// carriers over others are to be replaced.
pub(super) async fn run(
    trial: Trial,
    carriers: &dyn CarrierPool,
    at: &Address,
    dial_context: &DialContext,
) -> Option<CarrierTransport> {
    let up = carriers.numbers().up;
    let changed = async {
        match &trial {
            Trial::Compare(other) => compare(carriers, *other, at, dial_context).await,
            Trial::Return(others) => come_back(carriers, others, at, dial_context).await,
        }
    };
    let changed = tokio::select! {
        changed = changed => changed,
        // The task that keeps carriers has to dial again, and waits for this.
        () = carriers.lacks(up) => {
            if let Trial::Compare(other) = &trial {
                tracing::info!(transport = %other, "A trial of another transport is given up: carriers ended meanwhile");
                dial_context.ways.untried();
            }
            None
        }
    };
    match (changed, &trial) {
        (Some(way), _) => carriers.outdate(&|carrier| carrier.transport != way),
        (None, Trial::Compare(other)) => {
            carriers.outdate(&|carrier| carrier.transport == *other);
        }
        (None, Trial::Return(_)) => {}
    }
    changed
}

/// Returns the first of `others` that comes up.
async fn come_back(
    carriers: &dyn CarrierPool,
    others: &[CarrierTransport],
    at: &Address,
    dial_context: &DialContext,
) -> Option<CarrierTransport> {
    let ways = &dial_context.ways;
    ways.returning(Instant::now());
    for other in others.iter().copied() {
        match join(carriers, other, at, dial_context).await {
            Ok(()) => {
                ways.returned(other);
                return Some(other);
            }
            Err(error) => {
                tracing::debug!(transport = %other, %error, "No other transport is available");
            }
        }
    }
    None
}

/// Has `other` carry beside what there is. Returns it where it carries more.
async fn compare(
    carriers: &dyn CarrierPool,
    other: CarrierTransport,
    at: &Address,
    dial_context: &DialContext,
) -> Option<CarrierTransport> {
    let ways = &dial_context.ways;
    // Other sessions do not try the same meanwhile.
    ways.tried(false, Instant::now());
    let compared = match compared(carriers, other, at, dial_context).await {
        Ok(compared) => compared,
        Err(error) => {
            tracing::info!(transport = %other, %error, "No other transport is available");
            return None;
        }
    };
    let [before, present, by_other] =
        [compared.before, compared.present, compared.other].map(megabits);
    tracing::info!(transport = %other, megabits_per_second = by_other, others = present, before, "Another transport was tried");
    if !compared.is_better() {
        return None;
    }
    let why = format!("it carried {by_other} Mbit/s where the others carried {present}");
    ways.carried_more(other, &why);
    ways.tried(true, Instant::now());
    Some(other)
}

/// Bytes that were carried in [`MEASURED`].
#[derive(Debug, Clone, Copy)]
struct Compared {
    /// By the present transport alone.
    before: u64,
    /// By it, beside the other one.
    present: u64,
    /// By the other one.
    other: u64,
}

impl Compared {
    /// Where both lead through one bottleneck, what one wins the other loses, and all of it is no more than before: that is
    /// taken from others, and no reason to change.
    const fn is_better(self) -> bool {
        let (parts, of) = BETTER;
        self.other * of > self.present * parts
            && (self.other + self.present) * of > self.before * parts
    }
}

async fn compared(
    carriers: &dyn CarrierPool,
    other: CarrierTransport,
    at: &Address,
    dial_context: &DialContext,
) -> std::io::Result<Compared> {
    let (before, _) = measured(carriers, other).await;
    join(carriers, other, at, dial_context).await?;
    tokio::time::sleep(WARM_UP).await;
    let (present, other) = measured(carriers, other).await;
    Ok(Compared {
        before,
        present,
        other,
    })
}

/// Adds a carrier over `other`, which may reach another exit than the session has.
async fn join(
    carriers: &dyn CarrierPool,
    other: CarrierTransport,
    at: &Address,
    dial_context: &DialContext,
) -> std::io::Result<()> {
    let carrier = connect_by(other, at, dial_context).await?;
    let added = carriers.add_by_another_way(carrier);
    let added = added.map_err(|error| std::io::Error::other(error.to_string()))?;
    if !added.await {
        let text = "the session's exit was not heard by it";
        return Err(std::io::Error::other(text));
    }
    Ok(())
}

/// What is carried now by others than `other`, and by it.
async fn measured(carriers: &dyn CarrierPool, other: CarrierTransport) -> (u64, u64) {
    let moved = || {
        let (by_other, others): (Vec<_>, Vec<_>) = carriers
            .figures()
            .into_iter()
            .partition(|carrier| carrier.transport == other);
        [others, by_other].map(|carriers| carriers.iter().map(bytes).sum::<u64>())
    };
    let before = moved();
    tokio::time::sleep(MEASURED).await;
    let after = moved();
    // One that ended meanwhile takes its bytes with it.
    let [present, other] = [0, 1].map(|at| after[at].saturating_sub(before[at]));
    (present, other)
}

/// What `bytes` in [`MEASURED`] are, in Mbit/s.
const fn megabits(bytes: u64) -> u64 {
    bytes * 8 / MEASURED.as_secs() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::path::PathInfo;

    fn carrier(transport: CarrierTransport, bytes: u64, lost: [u64; 2]) -> CarrierFigures {
        CarrierFigures {
            since: std::time::Instant::now(),
            transport,
            sent: bytes / 2,
            received: bytes - bytes / 2,
            path: Some(PathInfo {
                retransmits: lost[0],
                out_of_order: lost[1],
                ..PathInfo::default()
            }),
        }
    }

    #[test]
    fn bulk_that_loses_by_tcp_and_any_bulk_by_kcp_are_reason_to_try_another() {
        let reason = |transport, bytes: u64, lost: u64| {
            let before = carrier(transport, 1000, [3, 4]);
            let mut now = carrier(transport, 1000 + bytes, [3 + lost, 4]);
            now.since = before.since;
            let sent = Look::between(&[before], &[now]).unwrap();
            let mut now = carrier(transport, 1000 + bytes, [3, 4 + lost]);
            now.since = before.since;
            assert_eq!(
                Look::between(&[before], &[now]).unwrap(),
                sent,
                "in either direction"
            );
            sent.gives_reason()
        };
        let tcp = CarrierTransport::Tcp;
        assert!(reason(tcp, 1 << 20, 10), "1 in 72");
        assert!(!reason(tcp, 1 << 20, 9), "few may be lost by chance");
        assert!(!reason(tcp, 1 << 30, 100), "1 in 7,400");
        assert!(!reason(tcp, 100 << 10, 50), "hardly anything is moved");
        assert!(reason(CarrierTransport::Kcp, 1 << 20, 0));
        assert!(!reason(CarrierTransport::Kcp, 100 << 10, 50));
    }

    #[test]
    fn what_only_takes_from_the_others_is_no_better() {
        let is_better = |before, present, other| {
            let compared = Compared {
                before,
                present,
                other,
            };
            compared.is_better()
        };
        assert!(is_better(100, 100, 2000));
        assert!(is_better(0, 0, 1), "the present one carries nothing");
        assert!(!is_better(0, 0, 0));
        assert!(!is_better(88, 29, 59), "one bottleneck for both");
        assert!(!is_better(100, 100, 120), "hardly more");
    }

    #[test]
    fn other_carriers_than_before_tell_nothing() {
        let (one, other) = (
            carrier(CarrierTransport::Tcp, 0, [0, 0]),
            carrier(CarrierTransport::Tcp, 1 << 30, [1 << 20, 0]),
        );
        assert_eq!(Look::between(&[one], &[other]), None);
        assert_eq!(Look::between(&[one], &[one, other]), None);
        assert_eq!(Look::between(&[], &[]), None);
    }
}

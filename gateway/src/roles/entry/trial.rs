//! Trials of other transports. A trial sends over the present transport and another transport at
//! the same time for some seconds, and compares their throughput. A second kind of trial checks
//! whether a transport that is preferred to WebSocket is available again.
//!
//! A session sends on any carrier whose socket accepts bytes, so the number of bytes of a carrier
//! shows the throughput of its path. Only a session whose streams survive the loss of carriers runs
//! trials, so trials do not affect streams.

use std::time::Duration;

use muxtunnel_gateway_config::status::CarrierTransport;
use rand::RngExt;
use tokio::time::Instant;

use super::dial_context::{DialContext, connect_by};
use super::ways::Ways;
use crate::net::egress::Address;
use crate::net::race::Reached;
use crate::session::mux::{CarrierFigures, CarrierPool};

/// Minimum interval between two observations of throughput and loss. The actual interval is random,
/// up to twice this value, so that entries on a shared path do not start trials at the same time.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A session that moves fewer bytes than this number in an interval needs no other transport.
const BULK_BYTES: u64 = 256 << 10;
/// Minimum number of lost TCP segments in an interval for a trial.
const LOST_MIN: u64 = 10;
/// Minimum share of lost segments for a trial: one lost segment in this number of segments. At this
/// share, Cubic reaches a few Mbit/s with a round trip of 50 ms.
const LOST_PART: u64 = 1000;
/// Payload of a segment on a path with an MTU of 1,500 bytes.
const SEGMENT_BYTES: u64 = 1448;
/// Time for a new carrier to find the capacity of its path.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long the throughput is measured after the warm-up.
const MEASURED: Duration = Duration::from_secs(5);
/// Ratio of throughputs (5/4) that a change of the transport requires. The throughput of the other
/// transport must exceed the throughput of the present transport by this ratio. The sum of both
/// must exceed the throughput before the trial by this ratio as well.
const BETTER: (u64, u64) = (5, 4);

/// A trial of other transports.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// Compare the throughput of this transport and of the present transport.
    Compare(CarrierTransport),
    /// Return to the first of these transports that is available. The list is in order of
    /// preference.
    Return(Vec<CarrierTransport>),
}

/// Waits until a trial is due for a session on the transport `present`. Never returns if there is
/// only one transport, or if streams do not survive the loss of carriers.
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

/// The activity of carriers between two observations.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    transport: CarrierTransport,
    bytes: u64,
    lost: u64,
}

impl Look {
    /// Computes the difference between two observations; `None`: the carriers have changed, or they
    /// use several transports.
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

    /// Whether the carriers transferred bulk data and lost segments. Over KCP, bulk data alone is a
    /// reason for a trial, since the loss that KCP measures does not predict the throughput of TCP.
    fn gives_reason(&self) -> bool {
        let loses = self.lost >= LOST_MIN && self.lost * LOST_PART >= self.bytes / SEGMENT_BYTES;
        self.bytes >= BULK_BYTES && (loses || self.transport == CarrierTransport::Kcp)
    }
}

fn bytes(carrier: &CarrierFigures) -> u64 {
    carrier.sent + carrier.received
}

/// Number of segments that either side retransmitted. For the peer's segments, this side counts
/// segments that arrived out of order.
fn lost(carrier: &CarrierFigures) -> u64 {
    let path = carrier.path.unwrap_or_default();
    path.retransmits + path.out_of_order
}

/// Runs a trial. If the session changes its transport, returns the new transport, and marks the
/// carriers over other transports as outdated. The caller has to replace outdated carriers.
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
        // A carrier was lost. The task that has to redial it runs this trial, so the trial ends.
        () = carriers.lacks(up) => {
            if let Trial::Compare(other) = &trial {
                tracing::info!(transport = %other, "Trial of another transport cancelled because a carrier ended");
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

/// Returns the first of `others` that is available.
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
                tracing::debug!(transport = %other, %error, "The tried transport is not available");
            }
        }
    }
    None
}

/// Adds a carrier over `other`. Returns `other` if it has a higher throughput than the present
/// transport.
async fn compare(
    carriers: &dyn CarrierPool,
    other: CarrierTransport,
    at: &Address,
    dial_context: &DialContext,
) -> Option<CarrierTransport> {
    let ways = &dial_context.ways;
    // Other sessions must not start the same trial in the meantime.
    ways.tried(false, Instant::now());
    let compared = match compared(carriers, other, at, dial_context).await {
        Ok(compared) => compared,
        Err(error) => {
            tracing::info!(transport = %other, %error, "The tried transport is not available");
            return None;
        }
    };
    let [before, present, by_other] =
        [compared.before, compared.present, compared.other].map(megabits);
    tracing::info!(transport = %other, megabits_per_second = by_other, others = present, before, "Tried another transport");
    if !compared.is_better() {
        return None;
    }
    let why = format!(
        "the tried transport carried {by_other} Mbit/s, and the session's other carriers {present} Mbit/s"
    );
    ways.carried_more(other, &why);
    ways.tried(true, Instant::now());
    Some(other)
}

/// Number of bytes that were transferred in [`MEASURED`].
#[derive(Debug, Clone, Copy)]
struct Compared {
    /// Bytes over the present transport, before the trial.
    before: u64,
    /// Bytes over the present transport, in parallel with the other transport.
    present: u64,
    /// Bytes over the other transport.
    other: u64,
}

impl Compared {
    /// Whether the session should change to the other transport. If both transports share a
    /// bottleneck, one transport gains the throughput that the other loses, and the sum of both
    /// does not grow. Without growth of the sum, the gain is at the expense of other traffic and is
    /// no reason to change.
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

/// Adds a carrier over `other`. If that transport reaches another exit than the session's exit,
/// this is an error.
async fn join(
    carriers: &dyn CarrierPool,
    other: CarrierTransport,
    at: &Address,
    dial_context: &DialContext,
) -> std::io::Result<()> {
    let carrier = connect_by(other, at, dial_context, &Reached::default()).await?;
    let added = carriers.add_by_another_way(carrier);
    let added = added.map_err(|error| std::io::Error::other(error.to_string()))?;
    if !added.await {
        let text = format!("the session's exit did not answer over {other}");
        return Err(std::io::Error::other(text));
    }
    Ok(())
}

/// Number of bytes of the present carriers and of the carriers over `other`, measured over
/// [`MEASURED`].
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
    // The bytes of a carrier that ended in the meantime are missing from the sum.
    let [present, other] = [0, 1].map(|at| after[at].saturating_sub(before[at]));
    (present, other)
}

/// Converts `bytes` in [`MEASURED`] to Mbit/s.
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
                "segments lost in the receiving direction count too"
            );
            sent.gives_reason()
        };
        let tcp = CarrierTransport::Tcp;
        assert!(reason(tcp, 1 << 20, 10), "1 in 72");
        assert!(
            !reason(tcp, 1 << 20, 9),
            "few segments may be lost by chance"
        );
        assert!(!reason(tcp, 1 << 30, 100), "1 in 7,400");
        assert!(!reason(tcp, 100 << 10, 50), "too few bytes are moved");
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
        assert!(is_better(0, 0, 1), "the present transport carries no bytes");
        assert!(!is_better(0, 0, 0));
        assert!(!is_better(88, 29, 59), "both transports share a bottleneck");
        assert!(
            !is_better(100, 100, 120),
            "the other transport is only a little faster"
        );
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

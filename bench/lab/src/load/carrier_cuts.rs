//! Cuts carriers one after the other, and measures lost streams, wrong bytes, and the stalls of
//! streams.
//!
//! Each cut ends the carrier with the most transferred bytes. The cuts are made at the entry and at
//! the exit in turn. The next cut follows as soon as all carriers are up again and every stream has
//! received bytes after the cut.

use std::{
    net::SocketAddr,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use muxtunnel_testkit::namespace::Namespace;

use super::{
    Outcome,
    carriers::{self, Carrier, End},
    mirror::{Streams, Tally},
    streams::PATIENCE,
};
use crate::metric::{Figures, Metric};

/// The interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of attempts per cut. A carrier can end before its cut.
const ATTEMPTS_MAX: u32 = 10;

/// Flags of the load.
#[derive(Debug, Args)]
pub(super) struct CarrierCuts {
    #[arg(long)]
    connect: SocketAddr,
    #[arg(long)]
    streams: u32,
    #[arg(long)]
    cuts: u32,
    /// Number of carriers of the session.
    #[arg(long)]
    carriers: u32,
    /// The exit's port for carriers.
    #[arg(long)]
    carrier_port: u16,
    /// The namespace of the entry.
    #[arg(long)]
    entry_namespace: PathBuf,
    /// The namespace of the exit.
    #[arg(long)]
    exit_namespace: PathBuf,
}

/// The effects of one cut on the streams, or the greatest value of each effect over several cuts
/// ([`Cost::most`]).
#[derive(Debug, Default)]
struct Cost {
    stall: Duration,
    beyond_reconnect: Duration,
    reconnect: Duration,
    recovered: Duration,
}

impl Cost {
    fn most(&self, other: &Self) -> Self {
        Self {
            stall: self.stall.max(other.stall),
            beyond_reconnect: self.beyond_reconnect.max(other.beyond_reconnect),
            reconnect: self.reconnect.max(other.reconnect),
            recovered: self.recovered.max(other.recovered),
        }
    }
}

impl CarrierCuts {
    pub(super) fn run(&self) -> Result<Outcome> {
        let namespaces = [
            (End::Entry, Namespace::of(&self.entry_namespace)?),
            (End::Exit, Namespace::of(&self.exit_namespace)?),
        ];
        let start = Instant::now();
        let mut streams = Streams::open(self.connect, self.streams, u64::MAX)?;
        let tally = streams.tally();
        let none = vec![0; self.streams as usize];
        until_all_received(tally, &none).context("before the first cut")?;
        let mut most = Cost::default();
        for number in 1..=self.cuts {
            let (end, namespace) = &namespaces[number as usize % 2];
            let cost = self
                .cut_once(tally, namespace, *end)
                .with_context(|| format!("cut {number}"))?;
            eprintln!("cut {number} at the {end:?}: {cost:?}");
            most = most.most(&cost);
        }
        let lost = streams.finish(PATIENCE);
        let (elapsed, tally) = (start.elapsed().as_secs_f64(), streams.tally());
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(Outcome {
            bytes: tally.bytes(),
            figures: Figures::from([
                (Metric::LostStreams, lost.into()),
                (Metric::WrongBytes, tally.wrong_bytes() as f64),
                (Metric::StallMs, milliseconds(most.stall)),
                (
                    Metric::BeyondReconnectMs,
                    milliseconds(most.beyond_reconnect),
                ),
                (Metric::ReconnectMs, milliseconds(most.reconnect)),
                (Metric::RecoveredMs, milliseconds(most.recovered)),
                (Metric::MbitS, tally.bytes() as f64 * 8.0 / elapsed / 1e6),
            ]),
        })
    }

    /// Cuts a carrier and waits until all carriers and streams have recovered.
    fn cut_once(&self, tally: &Tally, namespace: &Namespace, end: End) -> Result<Cost> {
        let list = || carriers::list(namespace, end, self.carrier_port);
        let (victim, cut) = self.hit(tally, namespace, end)?;
        let counts = tally.counts();
        let is_back = || -> Result<bool> {
            let others = list()?.iter().filter(|c| c.port != victim.port).count();
            Ok(others >= self.carriers as usize)
        };
        while !is_back()? {
            ensure!(
                cut.elapsed() < PATIENCE,
                "the carriers did not reconnect in time"
            );
            thread::sleep(POLL_INTERVAL);
        }
        let reconnect = cut.elapsed();
        until_all_received(tally, &counts)?;
        let stall = tally.stall();
        Ok(Cost {
            stall,
            beyond_reconnect: stall.saturating_sub(reconnect),
            reconnect,
            recovered: cut.elapsed(),
        })
    }

    /// Cuts the carrier with the most bytes. Returns the carrier and the time.
    fn hit(&self, tally: &Tally, namespace: &Namespace, end: End) -> Result<(Carrier, Instant)> {
        for _ in 0..ATTEMPTS_MAX {
            let all = carriers::list(namespace, end, self.carrier_port)?;
            let most = all.into_iter().max_by_key(|carrier| carrier.bytes);
            let victim = most.context("the session has no carrier")?;
            tally.watch();
            let cut = Instant::now();
            if carriers::cut(namespace, end, self.carrier_port, victim)? {
                return Ok((victim, cut));
            }
        }
        bail!("`ss -K` ended no carrier: the kernel may lack CONFIG_INET_DIAG_DESTROY")
    }
}

fn until_all_received(tally: &Tally, counts: &[u64]) -> Result<()> {
    let start = Instant::now();
    loop {
        let waiting = tally.waiting_since(counts);
        if waiting.is_empty() {
            return Ok(());
        }
        let (count, first) = (waiting.len(), waiting[0]);
        ensure!(
            start.elapsed() < PATIENCE,
            "{count} streams received nothing for {PATIENCE:?}, stream {first} among them"
        );
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_cuts_the_longest_times_count_each_by_itself() {
        let ms = Duration::from_millis;
        let cost = |stall, beyond, reconnect, recovered| Cost {
            stall: ms(stall),
            beyond_reconnect: ms(beyond),
            reconnect: ms(reconnect),
            recovered: ms(recovered),
        };
        let most = cost(900, 10, 890, 901).most(&cost(100, 50, 50, 2000));
        let times = [
            most.stall,
            most.beyond_reconnect,
            most.reconnect,
            most.recovered,
        ];
        assert_eq!(times, [900, 50, 890, 2000].map(ms));
    }
}

//! A stalled reader next to other readers. The figure is the rate of the other readers during the
//! stall, divided by their rate without a stalled reader.
//!
//! The load measures the readers before, during and after the stall. The rate without a stalled
//! reader is the average of the rates before and after the stall. So a steady drift of the
//! machine's speed cancels out.

use std::{net::SocketAddr, thread, time::Duration};

use anyhow::Result;
use clap::Args;

use super::{
    Outcome,
    streams::{Moving, open, rate_mbit_s},
    wire::Request,
};
use crate::metric::{Figures, Metric};

/// Flags of the load.
#[derive(Debug, Args)]
pub(super) struct StalledReader {
    #[arg(long)]
    connect: SocketAddr,
    /// Number of streams that the client reads.
    #[arg(long)]
    readers: u32,
    /// Measured seconds of each of the three phases.
    #[arg(long)]
    seconds: u32,
    /// Seconds of warm-up before each phase.
    #[arg(long)]
    warm_up_seconds: u32,
}

impl StalledReader {
    pub(super) fn run(&self) -> Result<Outcome> {
        let readers: Vec<Moving> = (0..self.readers)
            .map(|_| Moving::reader(open(self.connect, Request::Send)?))
            .collect::<Result<_>>()?;
        let bytes = || readers.iter().map(Moving::bytes).sum::<u64>();
        let phase = || {
            thread::sleep(Duration::from_secs(self.warm_up_seconds.into()));
            rate_mbit_s(Duration::from_secs(self.seconds.into()), || Ok(bytes()))
        };
        let before = phase()?;
        let stalled = open(self.connect, Request::Send)?;
        let beside = phase()?;
        drop(stalled);
        let after = phase()?;
        let without = (before + after) / 2.0;
        anyhow::ensure!(without > 0.0, "no byte arrived without a stalled reader");
        Ok(Outcome {
            bytes: bytes(),
            figures: Figures::from([
                (Metric::OthersPercent, 100.0 * beside / without),
                (Metric::MbitS, beside),
            ]),
        })
    }
}

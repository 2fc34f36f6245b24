//! A stalled reader beside readers: what the others get while one stream is not read, of what they get
//! without it.
//!
//! The readers are measured before, beside and after; before and after are averaged, so that a machine
//! that becomes slower or faster meanwhile does not count.

use std::{net::SocketAddr, thread, time::Duration};

use anyhow::Result;
use clap::Args;

use super::{
    Outcome,
    streams::{Moving, open, rate_mbit_s},
    wire::Request,
};
use crate::metric::{Figures, Metric};

/// Reads with a number of streams, without and with a stalled one.
#[derive(Debug, Args)]
pub(super) struct StalledReader {
    #[arg(long)]
    connect: SocketAddr,
    /// Streams that are read.
    #[arg(long)]
    readers: u32,
    /// Seconds of each of the three phases that count.
    #[arg(long)]
    seconds: u32,
    /// Seconds before each of them.
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

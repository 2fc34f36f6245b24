//! Opens several streams of a fixed size at the same time to an echo server. Counts failed streams,
//! and measures the time until the last stream is complete.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Args;

use super::{Outcome, mirror::Streams};
use crate::metric::{Figures, Metric};

/// Flags of the load.
#[derive(Debug, Args)]
pub(super) struct FixedStreams {
    #[arg(long)]
    connect: SocketAddr,
    #[arg(long)]
    streams: u32,
    /// Bytes of each stream in each direction.
    #[arg(long)]
    bytes: u64,
    /// Time-out of a stream in seconds. A stream that is not complete by then is lost.
    #[arg(long)]
    patience_seconds: u32,
}

impl FixedStreams {
    pub(super) fn run(&self) -> Result<Outcome> {
        let start = Instant::now();
        let mut streams = Streams::open(self.connect, self.streams, self.bytes)?;
        let lost = streams.complete(Duration::from_secs(self.patience_seconds.into()));
        let elapsed = start.elapsed().as_secs_f64();
        let tally = streams.tally();
        Ok(Outcome {
            bytes: tally.bytes(),
            figures: Figures::from([
                (Metric::CompleteMs, elapsed * 1e3),
                (Metric::LostStreams, lost.into()),
                (Metric::WrongBytes, tally.wrong_bytes() as f64),
                (Metric::MbitS, tally.bytes() as f64 * 8.0 / elapsed / 1e6),
            ]),
        })
    }
}

//! The 64-byte ping-pong: one exchange after the other on one connection, each timed, while a number
//! of bulk streams go the same way.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use hdrhistogram::Histogram;

use super::{
    Outcome,
    streams::{Moving, PATIENCE, open},
    wire::{MESSAGE_BYTES, Request},
};
use crate::metric::{Figures, Metric};

/// Exchanges at the start that do not count.
const WARM_UP_EXCHANGES: u32 = 10;

/// Times one exchange after the other.
#[derive(Debug, Args)]
pub(super) struct PingPong {
    #[arg(long)]
    connect: SocketAddr,
    /// Bulk streams towards the server meanwhile.
    #[arg(long)]
    bulk: u32,
    /// Seconds that count.
    #[arg(long)]
    seconds: u32,
    /// Seconds of bulk before them.
    #[arg(long)]
    warm_up_seconds: u32,
}

impl PingPong {
    pub(super) fn run(&self) -> Result<Outcome> {
        let bulk: Vec<Moving> = (0..self.bulk)
            .map(|_| Moving::writer(open(self.connect, Request::Receive)?))
            .collect::<Result<_>>()?;
        if !bulk.is_empty() {
            thread::sleep(Duration::from_secs(self.warm_up_seconds.into()));
        }
        let times = self.exchange()?;
        let microseconds = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        Ok(Outcome {
            bytes: bulk.iter().map(Moving::bytes).sum(),
            figures: Figures::from([
                (Metric::P50Us, microseconds(0.5)),
                (Metric::P99Us, microseconds(0.99)),
            ]),
        })
    }

    /// A histogram of nanoseconds, 3 digits exact: 190 KiB.
    fn exchange(&self) -> Result<Histogram<u64>> {
        let mut times = Histogram::new_with_bounds(1, PATIENCE.as_nanos() as u64, 3)?;
        let mut stream = open(self.connect, Request::Echo)?;
        let mut message = [0x5a; MESSAGE_BYTES];
        let mut exchange = || -> Result<Duration> {
            let start = Instant::now();
            stream.write_all(&message)?;
            let read = stream.read_exact(&mut message);
            read.context("waiting for the echo")?;
            Ok(start.elapsed())
        };
        for _ in 0..WARM_UP_EXCHANGES {
            exchange()?;
        }
        let end = Instant::now() + Duration::from_secs(self.seconds.into());
        while Instant::now() < end {
            let nanoseconds = u64::try_from(exchange()?.as_nanos()).unwrap_or(u64::MAX);
            times.saturating_record(nanoseconds);
        }
        Ok(times)
    }
}

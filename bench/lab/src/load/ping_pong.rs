//! The 64-byte ping-pong: measures exchanges on one connection, one after the other or at a fixed
//! rate, while bulk streams use the same system.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use hdrhistogram::Histogram;

use super::{
    Outcome,
    streams::{Counter, Moving, PATIENCE, open, rate_mbit_s},
    wire::{MESSAGE_BYTES, Request},
};
use crate::metric::{Figures, Metric};

/// Number of exchanges at the start that are not measured.
const WARM_UP_EXCHANGES: u32 = 10;

/// Maximum number of seconds for which bulk runs alone.
const ALONE_SECONDS_MAX: u32 = 5;

/// Flags of the load.
#[derive(Debug, Args)]
pub(super) struct PingPong {
    #[arg(long)]
    connect: SocketAddr,
    /// The server's direct address, for the count of received bytes.
    #[arg(long)]
    server: SocketAddr,
    /// Number of concurrent bulk streams to the server.
    #[arg(long)]
    bulk: u32,
    /// Milliseconds from the start of an exchange to the start of the next one; 0: one exchange
    /// directly after the other.
    #[arg(long, default_value_t = 0)]
    every_ms: u64,
    /// Measured seconds of exchanges. Bulk runs alone for as many seconds before the exchanges, at
    /// most [`ALONE_SECONDS_MAX`].
    #[arg(long)]
    seconds: u32,
    /// Seconds of bulk as warm-up, before all measurements.
    #[arg(long)]
    warm_up_seconds: u32,
}

impl PingPong {
    pub(super) fn run(&self) -> Result<Outcome> {
        let bulk: Vec<Moving> = (0..self.bulk)
            .map(|_| Moving::writer(open(self.connect, Request::Receive)?))
            .collect::<Result<_>>()?;
        let mut figures = Figures::new();
        let times = if bulk.is_empty() {
            self.exchange()?
        } else {
            self.exchange_beside_bulk(&mut figures)?
        };
        let microseconds = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        figures.insert(Metric::P50Us, microseconds(0.5));
        figures.insert(Metric::P99Us, microseconds(0.99));
        Ok(Outcome {
            bytes: bulk.iter().map(Moving::bytes).sum(),
            figures,
        })
    }

    /// Measures the exchanges, and the ratio of the rate of bulk during the exchanges to its rate
    /// just before them.
    fn exchange_beside_bulk(&self, figures: &mut Figures) -> Result<Histogram<u64>> {
        thread::sleep(Duration::from_secs(self.warm_up_seconds.into()));
        let mut counter = Counter::open(self.server)?;
        let alone = Duration::from_secs(self.seconds.min(ALONE_SECONDS_MAX).into());
        let alone = rate_mbit_s(alone, || counter.bytes())?;
        ensure!(alone > 0.0, "no byte of bulk arrived");
        let (start, before) = (Instant::now(), counter.bytes()?);
        let times = self.exchange()?;
        let bytes = counter.bytes()?.saturating_sub(before);
        let beside = bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e6;
        figures.insert(Metric::MbitS, beside);
        figures.insert(Metric::BulkPercent, 100.0 * beside / alone);
        Ok(times)
    }

    /// Measures the exchanges. Returns a histogram of nanoseconds with three exact digits, which
    /// takes 190 KiB.
    fn exchange(&self) -> Result<Histogram<u64>> {
        let mut times = Histogram::new_with_bounds(1, PATIENCE.as_nanos() as u64, 3)?;
        let mut stream = open(self.connect, Request::Echo)?;
        let mut message = [0x5a; MESSAGE_BYTES];
        let mut exchange = || -> Result<Duration> {
            let start = Instant::now();
            stream.write_all(&message)?;
            let read = stream.read_exact(&mut message);
            read.context("no echo")?;
            Ok(start.elapsed())
        };
        for _ in 0..WARM_UP_EXCHANGES {
            exchange()?;
        }
        let mut next = Instant::now();
        let end = next + Duration::from_secs(self.seconds.into());
        while Instant::now() < end {
            let nanoseconds = u64::try_from(exchange()?.as_nanos()).unwrap_or(u64::MAX);
            times.saturating_record(nanoseconds);
            next += Duration::from_millis(self.every_ms);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(times)
    }
}

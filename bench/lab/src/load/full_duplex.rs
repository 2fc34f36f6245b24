//! Full duplex: first a stream to the server, then a stream in both directions at once. Every
//! second, the load checks the progress of each direction.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Args;

use super::{
    Outcome,
    streams::{Counter, Moving, open, rate_mbit_s},
    wire::Request,
};
use crate::metric::{Figures, Metric};

/// Flags of the load.
#[derive(Debug, Args)]
pub(super) struct FullDuplex {
    #[arg(long)]
    connect: SocketAddr,
    /// The server's direct address, for the count of received bytes.
    #[arg(long)]
    server: SocketAddr,
    /// Measured seconds of the stream in one direction.
    #[arg(long)]
    one_way_seconds: u32,
    /// Measured seconds of the stream in both directions.
    #[arg(long)]
    seconds: u32,
    /// Seconds of warm-up before each of the two measurements.
    #[arg(long)]
    warm_up_seconds: u32,
}

impl FullDuplex {
    pub(super) fn run(&self) -> Result<Outcome> {
        let mut counter = Counter::open(self.server)?;
        let begin = counter.bytes()?;
        let warm_up = Duration::from_secs(self.warm_up_seconds.into());
        let writer = Moving::writer(open(self.connect, Request::Receive)?)?;
        thread::sleep(warm_up);
        let one_way = rate_mbit_s(Duration::from_secs(self.one_way_seconds.into()), || {
            counter.bytes()
        })?;
        ensure!(one_way > 0.0, "no byte arrived in one direction");
        drop(writer);
        let stream = open(self.connect, Request::Both)?;
        let down = Moving::reader(stream.try_clone()?)?;
        let _up = Moving::writer(stream)?;
        thread::sleep(warm_up);
        let (start, before) = (Instant::now(), [counter.bytes()?, down.bytes()]);
        let (mut last, mut stalled_seconds) = (before, 0);
        for _ in 0..self.seconds {
            thread::sleep(Duration::from_secs(1));
            let now = [counter.bytes()?, down.bytes()];
            stalled_seconds += u32::from(now.iter().zip(&last).any(|(now, last)| now == last));
            last = now;
        }
        let moved: u64 = last
            .iter()
            .zip(&before)
            .map(|(last, before)| last - before)
            .sum();
        let both_ways = moved as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e6;
        Ok(Outcome {
            bytes: last[0] - begin + last[1],
            figures: Figures::from([
                (Metric::DuplexPercent, 100.0 * both_ways / one_way),
                (Metric::MbitS, both_ways),
                (Metric::StalledSeconds, stalled_seconds.into()),
            ]),
        })
    }
}

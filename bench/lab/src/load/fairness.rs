//! Nine bulk streams, and one stream that exchanges small messages first and then sends bulk too.
//! The figure is Jain's index over the bytes that each of the ten streams receives while all
//! streams send bulk.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;

use super::{
    Outcome,
    streams::{Moving, open},
    wire::{MESSAGE_BYTES, Request},
};
use crate::{
    metric::{Figures, Metric},
    statistics::jain,
};

/// Flags of the load.
#[derive(Debug, Args)]
pub(super) struct Fairness {
    #[arg(long)]
    connect: SocketAddr,
    /// Number of streams, including the stream that begins with small messages.
    #[arg(long)]
    streams: u32,
    /// Measured seconds.
    #[arg(long)]
    seconds: u32,
    /// Seconds of each of the two phases before the measured seconds. In the first phase, one
    /// stream exchanges small messages. In the second phase, this stream sends bulk too.
    #[arg(long)]
    warm_up_seconds: u32,
}

impl Fairness {
    pub(super) fn run(&self) -> Result<Outcome> {
        let mut readers: Vec<Moving> = (1..self.streams)
            .map(|_| Moving::reader(open(self.connect, Request::Send)?))
            .collect::<Result<_>>()?;
        readers.push(self.begin_small()?);
        let warm_up = Duration::from_secs(self.warm_up_seconds.into());
        thread::sleep(warm_up);
        let counts = || readers.iter().map(Moving::bytes).collect::<Vec<u64>>();
        let (start, before) = (Instant::now(), counts());
        thread::sleep(Duration::from_secs(self.seconds.into()));
        let (seconds, after) = (start.elapsed().as_secs_f64(), counts());
        let shares: Vec<f64> = after
            .iter()
            .zip(&before)
            .map(|(after, before)| after.saturating_sub(*before) as f64)
            .collect();
        let index = jain(&shares).context("no byte arrived")?;
        let mbit_s = shares.iter().sum::<f64>() * 8.0 / seconds / 1e6;
        Ok(Outcome {
            bytes: after.iter().sum(),
            figures: Figures::from([(Metric::Jain, index), (Metric::MbitS, mbit_s)]),
        })
    }

    fn begin_small(&self) -> Result<Moving> {
        let mut stream = open(self.connect, Request::Turn)?;
        let mut message = [0; MESSAGE_BYTES];
        let end = Instant::now() + Duration::from_secs(self.warm_up_seconds.into());
        while Instant::now() < end {
            stream.write_all(&message)?;
            let read = stream.read_exact(&mut message);
            read.context("no echo")?;
        }
        message[0] = Request::Send as u8;
        stream.write_all(&message)?;
        Moving::reader(stream)
    }
}

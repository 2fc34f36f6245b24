//! Holds many streams at once, to measure the memory of gateways. The streams are idle after one
//! exchange, or the server sends and the client does not read.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::{Outcome, streams::open, wire::Request};
use crate::metric::{Figures, Metric};

/// Flags of the load.
#[derive(Debug, Args)]
pub(super) struct Hold {
    #[arg(long)]
    connect: SocketAddr,
    #[arg(long)]
    streams: u32,
    /// The server sends on each stream, and the client does not read.
    #[arg(long)]
    stalled: bool,
    /// Seconds to hold the streams.
    #[arg(long)]
    seconds: u32,
}

impl Hold {
    pub(super) fn run(&self) -> Result<Outcome> {
        let streams: Vec<TcpStream> = (0..self.streams)
            .map(|number| {
                self.open_one()
                    .with_context(|| format!("with {number} streams open"))
            })
            .collect::<Result<_>>()?;
        if self.stalled {
            for stream in &streams {
                // The peek waits until the byte has arrived, and leaves it unread.
                let peeked = stream.peek(&mut [0]).context("no first byte")?;
                ensure!(peeked == 1, "a stream ended early");
            }
        }
        thread::sleep(Duration::from_secs(self.seconds.into()));
        Ok(Outcome {
            bytes: 0,
            figures: Figures::from([(Metric::Streams, streams.len() as f64)]),
        })
    }

    fn open_one(&self) -> Result<TcpStream> {
        if self.stalled {
            return open(self.connect, Request::Send);
        }
        let mut stream = open(self.connect, Request::Echo)?;
        stream.write_all(b"x")?;
        let read = stream.read_exact(&mut [0]);
        read.context("no echo")?;
        Ok(stream)
    }
}

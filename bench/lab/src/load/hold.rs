//! Many streams at once that are idle after one exchange each, or whose server sends while nobody
//! reads: what they cost a gateway in memory.

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

/// Opens streams and holds them.
#[derive(Debug, Args)]
pub(super) struct Hold {
    #[arg(long)]
    connect: SocketAddr,
    #[arg(long)]
    streams: u32,
    /// The server sends on each, and nobody reads.
    #[arg(long)]
    stalled: bool,
    /// Seconds to hold them.
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
                // It stays unread, but it has come.
                let peeked = stream
                    .peek(&mut [0])
                    .context("waiting for the first byte")?;
                ensure!(peeked == 1, "a stream has ended");
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
        read.context("waiting for the echo")?;
        Ok(stream)
    }
}

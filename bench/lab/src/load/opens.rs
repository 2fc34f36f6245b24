//! Opens per second: connects, exchanges one byte and closes, with a fixed number of concurrent
//! connections. The load uses several source addresses, because the ports of one address would run
//! out within seconds.

use std::{
    cell::Cell,
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsFd,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    task::LocalSet,
    time::timeout,
};

use super::{Outcome, streams::PATIENCE, wire::Request};
use crate::metric::{Figures, Metric};

/// Flags of the load.
#[derive(Debug, Args)]
pub(super) struct Opens {
    #[arg(long)]
    connect: SocketAddr,
    /// Source addresses of connections, used in turn.
    #[arg(long, value_delimiter = ',', required = true)]
    sources: Vec<Ipv4Addr>,
    /// Number of concurrent connections.
    #[arg(long)]
    concurrency: u32,
    /// Measured seconds.
    #[arg(long)]
    seconds: u32,
    /// Seconds of warm-up.
    #[arg(long)]
    warm_up_seconds: u32,
}

impl Opens {
    pub(super) fn run(&self) -> Result<Outcome> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let rate = LocalSet::new().block_on(&runtime, self.rate())?;
        Ok(Outcome {
            bytes: 0,
            figures: Figures::from([(Metric::OpensS, rate)]),
        })
    }

    async fn rate(&self) -> Result<f64> {
        let warm = Instant::now() + Duration::from_secs(self.warm_up_seconds.into());
        let end = warm + Duration::from_secs(self.seconds.into());
        let counted = Rc::new(Cell::new(0u64));
        let workers: Vec<_> = (0..self.concurrency)
            .map(|number| {
                let source = self.sources[number as usize % self.sources.len()];
                let (to, counted) = (self.connect, Rc::clone(&counted));
                tokio::task::spawn_local(async move {
                    while Instant::now() < end {
                        let opened = timeout(PATIENCE, open_and_close(source, to)).await;
                        opened.context("a connection got no answer in time")??;
                        if (warm..end).contains(&Instant::now()) {
                            counted.set(counted.get() + 1);
                        }
                    }
                    Ok::<_, anyhow::Error>(())
                })
            })
            .collect();
        for worker in workers {
            worker.await??;
        }
        Ok(counted.get() as f64 / f64::from(self.seconds))
    }
}

async fn open_and_close(source: Ipv4Addr, to: SocketAddr) -> Result<()> {
    let socket = TcpSocket::new_v4()?;
    // With this option the kernel selects the port at connect(2), so the same port can be used for
    // several peers.
    setsockopt(&socket.as_fd(), IpBindAddressNoPort, &true)?;
    socket.bind(SocketAddr::from((source, 0)))?;
    let mut stream = socket.connect(to).await.context("connecting")?;
    stream.set_nodelay(true)?;
    stream.write_all(&[Request::Echo as u8, b'x']).await?;
    stream.read_u8().await.context("no echo")?;
    Ok(())
}

//! `muxlab serve`: the server of the load. Each connection has a task, and has a buffer only while
//! bytes move.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use clap::Args;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

use super::wire::{BULK_BYTES, MESSAGE_BYTES, MIRROR_BYTES, Request};

/// Bytes of an echo's buffer, which is small because there may be 10,000 echoes.
const ECHO_BYTES: usize = 1 << 10;

/// Flags of `muxlab serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Listen address.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
}

/// Serves until the process is killed.
///
/// # Errors
/// If the server cannot listen on the address.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(args.listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
        let discarded = Arc::new(AtomicU64::new(0));
        loop {
            let (stream, _) = listener.accept().await?;
            let discarded = Arc::clone(&discarded);
            // The client reports a broken connection.
            tokio::spawn(async move { serve(stream, &discarded).await });
        }
    })
}

async fn serve(mut stream: TcpStream, discarded: &AtomicU64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let request = Request::parse(stream.read_u8().await?);
    let (mut input, mut output) = stream.split();
    match request {
        Some(Request::Echo) => echo(&mut input, &mut output, ECHO_BYTES).await,
        Some(Request::Mirror) => echo(&mut input, &mut output, MIRROR_BYTES).await,
        Some(Request::Send) => send(&mut output).await,
        Some(Request::Receive) => receive(&mut input, discarded).await,
        Some(Request::Both) => {
            tokio::try_join!(receive(&mut input, discarded), send(&mut output)).map(drop)
        }
        Some(Request::Turn) => turn(&mut input, &mut output).await,
        Some(Request::Count) => count(&mut input, &mut output, discarded).await,
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn echo(
    input: &mut ReadHalf<'_>,
    output: &mut WriteHalf<'_>,
    bytes_at_once: usize,
) -> io::Result<()> {
    let mut buffer = vec![0; bytes_at_once];
    loop {
        match input.read(&mut buffer).await? {
            0 => return Ok(()),
            bytes => output.write_all(&buffer[..bytes]).await?,
        }
    }
}

async fn send(output: &mut WriteHalf<'_>) -> io::Result<()> {
    let buffer = vec![0x5a; BULK_BYTES];
    loop {
        output.write_all(&buffer).await?;
    }
}

async fn receive(input: &mut ReadHalf<'_>, discarded: &AtomicU64) -> io::Result<()> {
    let mut buffer = vec![0; BULK_BYTES];
    loop {
        match input.read(&mut buffer).await? {
            0 => return Ok(()),
            bytes => discarded.fetch_add(bytes as u64, Ordering::Relaxed),
        };
    }
}

async fn turn(input: &mut ReadHalf<'_>, output: &mut WriteHalf<'_>) -> io::Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    loop {
        input.read_exact(&mut message).await?;
        if message[0] == Request::Send as u8 {
            return send(output).await;
        }
        output.write_all(&message).await?;
    }
}

async fn count(
    input: &mut ReadHalf<'_>,
    output: &mut WriteHalf<'_>,
    discarded: &AtomicU64,
) -> io::Result<()> {
    loop {
        input.read_u8().await?;
        output
            .write_u64_le(discarded.load(Ordering::Relaxed))
            .await?;
    }
}

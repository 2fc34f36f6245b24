//! `muxlab relay`: forwards connections one to one, without a mux. As a control, the relay shows
//! the greatest rate that a gateway can reach on this machine. Two relays in a row are one of the
//! compared systems.
//!
//! The relay has one thread, and a task for each connection. Copying uses a buffer of 128 KiB per
//! direction. Splicing uses the code of a rendezvous ([`join`]) with a pipe of 1 MiB.

use std::{io, net::SocketAddr};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use muxgate::io::relay::join;
use tokio::{
    io::copy_bidirectional_with_sizes,
    net::{TcpListener, TcpStream},
};

/// Bytes of a copying buffer.
const BUFFER_BYTES: usize = 128 << 10;

/// Flags of `muxlab relay`.
#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// How bytes move from socket to socket.
    #[arg(long, value_enum)]
    mode: Mode,
    /// Listen on the first address and connect to the second; repeatable.
    #[arg(long, value_name = "ADDR:PORT=ADDR:PORT", required = true, value_parser = parse_forward)]
    forward: Vec<Forward>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    /// Through a buffer.
    Copy,
    /// Through a pipe in the kernel.
    Splice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Forward {
    listen: SocketAddr,
    target: SocketAddr,
}

fn parse_forward(text: &str) -> Result<Forward, String> {
    let (listen, target) = text.split_once('=').ok_or("expected ADDR:PORT=ADDR:PORT")?;
    let address = |text: &str| text.parse().map_err(|error| format!("{text:?}: {error}"));
    Ok(Forward {
        listen: address(listen)?,
        target: address(target)?,
    })
}

/// Relays until the process is killed.
///
/// # Errors
/// If the relay cannot listen on an address.
pub(crate) fn run(args: &RelayArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let mut listeners = Vec::new();
        for forward in &args.forward {
            let listener = TcpListener::bind(forward.listen).await;
            let listener =
                listener.with_context(|| format!("cannot listen on {}", forward.listen))?;
            listeners.push(tokio::spawn(accept(listener, forward.target, args.mode)));
        }
        for listener in listeners {
            listener.await??;
        }
        Ok(())
    })
}

async fn accept(listener: TcpListener, target: SocketAddr, mode: Mode) -> io::Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        // If a connection fails, the relay resets both sides, and the client reports the failure.
        tokio::spawn(relay(client, target, mode));
    }
}

async fn relay(mut client: TcpStream, target: SocketAddr, mode: Mode) -> io::Result<()> {
    let mut server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    match mode {
        Mode::Copy => {
            copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER_BYTES, BUFFER_BYTES)
                .await?;
        }
        Mode::Splice => join(&client, &server, |_| {}).await?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_is_two_addresses() {
        let forward = parse_forward("127.0.0.1:1=127.0.0.2:2").unwrap();
        assert_eq!(forward.listen, "127.0.0.1:1".parse().unwrap());
        assert_eq!(forward.target, "127.0.0.2:2".parse().unwrap());
        assert!(parse_forward("127.0.0.1:1").is_err());
        assert!(parse_forward("a=b").is_err());
    }
}

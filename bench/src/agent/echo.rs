//! The echo port: sends back what arrives, so that a round trip can be measured.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Connections served at a time; further ones wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 16;
/// A connection that is silent this long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes echoed at a time.
const CHUNK_BYTES: usize = 4096;
/// Pause after a failed accept: it lasts (out of files) or concerns one peer that is gone.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Echoes until cancelled.
///
/// # Errors
/// None but a closed semaphore, which nothing closes.
pub(super) async fn serve(listener: TcpListener) -> anyhow::Result<()> {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.context("echo")?;
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        tokio::spawn(async move {
            // A broken connection is its prober's news, not ours.
            let _ = echo(stream).await;
            drop(slot);
        });
    }
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(length) = tokio::time::timeout(IDLE_TIMEOUT, stream.read(&mut chunk)).await {
        let length = length?;
        if length == 0 {
            break;
        }
        stream.write_all(&chunk[..length]).await?;
    }
    Ok(())
}

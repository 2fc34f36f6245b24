//! The echo port: returns received bytes, so that a client can measure round trips.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Maximum number of connections at a time. Further connections wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 16;
/// The agent closes a connection that sends no byte for this long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of bytes echoed at a time.
const CHUNK_BYTES: usize = 4096;
/// Pause after a failed accept, so that the loop does not take all CPU time during a lasting
/// failure, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Echoes until cancelled.
///
/// # Errors
/// An error occurs only if the semaphore is closed. This does not happen.
pub(super) async fn serve(listener: TcpListener) -> anyhow::Result<()> {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.context("echo")?;
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        tokio::spawn(async move {
            // The prober reports a broken connection.
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

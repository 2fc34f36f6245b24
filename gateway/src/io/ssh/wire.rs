//! The transport of the library's task, which runs on another thread. This transport consists of
//! pipes, and of a task that moves bytes between the pipes and the real transport.
//!
//! The library reads nothing while it waits to write, so two peers with this library could wait for
//! each other. Therefore the pipe to which the library writes has enough room: the library can
//! write everything that it sends between two reads.
//!
//! The task ends the connection. Dropping the library's future does not stop the library, which
//! continues until its pipe ends.

use std::cell::{Cell, RefCell};
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio::task::{AbortHandle, JoinHandle};

use super::channels::Shared;
use crate::base::telemetry::CarrierStats;
use crate::io::duplex::{ByteStream, linger};
use crate::io::transport::Transport;

/// Maximum number of received bytes that wait for the library.
const RECEIVED_MAX: usize = 256 << 10;
/// Maximum number of bytes from the library that wait for the transport. This number is reached
/// only with a peer that reads no answers.
const WRITTEN_MAX: usize = 4 << 20;
/// Number of bytes of one read from the transport or the pipe.
const READ_BYTES: usize = 128 << 10;
/// Maximum number of bytes that a peer may send before it has logged in.
const LOGIN_BYTES_MAX: u64 = 256 << 10;

/// The transport of one connection. Dropping the value ends the connection and the task.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) transport: Rc<dyn Transport>,
    count: Rc<Count>,
    task: AbortHandle,
    carried: RefCell<Option<JoinHandle<()>>>,
}

/// Counters of transferred bytes.
#[derive(Debug, Default)]
struct Count {
    received: Cell<u64>,
    sent: Cell<u64>,
    has_logged_in: Cell<bool>,
    stats: RefCell<Option<Arc<CarrierStats>>>,
}

impl Wire {
    /// Returns the wire, and the library's end of the pipes.
    pub(super) fn new(transport: Rc<dyn Transport>, shared: &Arc<Shared>) -> (Self, Pipe) {
        let (reader, received) = duplex(RECEIVED_MAX);
        let (written, writer) = duplex(WRITTEN_MAX);
        let count = Rc::<Count>::default();
        let moves = carry(
            (written, received),
            Rc::clone(&transport),
            Rc::clone(&count),
            Arc::clone(shared),
        );
        let pipe = Pipe {
            reader,
            writer,
            shared: Arc::clone(shared),
        };
        let carried = tokio::task::spawn_local(moves);
        let wire = Self {
            transport,
            count,
            task: carried.abort_handle(),
            carried: RefCell::new(Some(carried)),
        };
        (wire, pipe)
    }

    /// Counts the transferred bytes in `stats`.
    pub(super) fn count_in(&self, stats: Arc<CarrierStats>) {
        stats.received.add(self.count.received.take() as usize);
        stats.sent.add(self.count.sent.take() as usize);
        *self.count.stats.borrow_mut() = Some(stats);
    }

    /// Waits until the library has ended the connection, and the peer has received its last bytes
    /// and closed the transport too. A second call returns at once.
    pub(super) async fn ended(&self) {
        let carried = self.carried.borrow_mut().take();
        if let Some(carried) = carried {
            // A panic of the task also ends the connection.
            let _ = carried.await;
        }
    }

    /// Ends the transport and the library's pipes.
    pub(super) fn shut(&self) {
        self.task.abort();
        self.transport.shut();
    }

    /// Records that the login is complete, in either role.
    pub(super) fn logged_in(&self) {
        self.count.has_logged_in.set(true);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shut();
    }
}

impl Count {
    fn add_received(&self, bytes: usize) -> Result<()> {
        match &*self.stats.borrow() {
            Some(stats) => stats.received.add(bytes),
            None => self.received.set(self.received.get() + bytes as u64),
        }
        if !self.has_logged_in.get() && self.received.get() > LOGIN_BYTES_MAX {
            let text = format!("the peer sent more than {LOGIN_BYTES_MAX} bytes before the login");
            return Err(Error::new(ErrorKind::InvalidData, text));
        }
        Ok(())
    }

    fn add_sent(&self, bytes: usize) {
        match &*self.stats.borrow() {
            Some(stats) => stats.sent.add(bytes),
            None => self.sent.set(self.sent.get() + bytes as u64),
        }
    }
}

/// The library's end of the pipes. The library uses each pipe in one direction.
pub(super) struct Pipe {
    reader: DuplexStream,
    writer: DuplexStream,
    shared: Arc<Shared>,
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.writer).poll_write(context, bytes);
        if let Poll::Ready(Ok(length)) = written {
            self.shared.encrypted(length);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}

/// Moves bytes in both directions until the library has ended, or the transport has failed. If the
/// library has ended, then waits until the peer closes the transport too: a transport that is closed
/// with unread bytes would be reset, and the peer would lose the last bytes.
async fn carry(
    (reader, writer): (DuplexStream, DuplexStream),
    transport: Rc<dyn Transport>,
    count: Rc<Count>,
    shared: Arc<Shared>,
) {
    let sent = tokio::select! {
        sent = send(reader, &transport, &count, &shared) => sent,
        sent = async {
            receive(writer, &transport, &count, &shared).await?;
            // The library's last bytes are still sent.
            std::future::pending().await
        } => sent,
    };
    let ended = match sent {
        Ok(()) => linger(&*transport).await,
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "The transport of an SSH connection has failed");
    }
    transport.shut();
}

/// Returns at the end of the transport or of the library.
///
/// # Errors
/// The transport has failed, or the peer has sent too many bytes before the login.
async fn receive(
    mut writer: DuplexStream,
    transport: &Rc<dyn Transport>,
    count: &Count,
    shared: &Shared,
) -> Result<()> {
    let mut stream = ByteStream(Rc::clone(transport));
    let mut buffer = Vec::with_capacity(READ_BYTES);
    loop {
        shared.has_room().await;
        buffer.clear();
        if stream.read_buf(&mut buffer).await? == 0 {
            let _ = writer.shutdown().await;
            return Ok(());
        }
        count.add_received(buffer.len())?;
        if writer.write_all(&buffer).await.is_err() {
            return Ok(());
        }
    }
}

async fn send(
    mut reader: DuplexStream,
    transport: &Rc<dyn Transport>,
    count: &Count,
    shared: &Shared,
) -> Result<()> {
    let mut stream = ByteStream(Rc::clone(transport));
    let mut buffer = Vec::with_capacity(READ_BYTES);
    loop {
        buffer.clear();
        if reader.read_buf(&mut buffer).await? == 0 {
            stream.flush().await?;
            return stream.shutdown().await;
        }
        stream.write_all(&buffer).await?;
        count.add_sent(buffer.len());
        shared.left(buffer.len());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use muxtunnel_testkit::socket::pair;
    use tokio::task::LocalSet;

    use super::*;
    use crate::io::transport::Tcp;

    #[tokio::test]
    async fn a_peer_that_reads_late_and_still_writes_receives_the_last_bytes() {
        let test = async {
            let (near, mut far) = pair().await;
            let (wire, mut pipe) = Wire::new(Tcp::boxed(near).into(), &Shared::new(1 << 20));
            wire.logged_in();
            let last = vec![7; WRITTEN_MAX];
            pipe.write_all(&last).await.unwrap();
            drop(pipe);
            let mut ended = std::pin::pin!(wire.ended());
            tokio::select! {
                biased;
                () = &mut ended => panic!("the peer has not read the last bytes"),
                () = tokio::task::yield_now() => {}
            }
            let (mut received, mut piece) = (Vec::new(), vec![0; 64 << 10]);
            loop {
                let length = far.read(&mut piece).await.unwrap();
                if length == 0 {
                    break;
                }
                received.extend_from_slice(&piece[..length]);
                far.write_all(b"more").await.unwrap();
            }
            assert!(received == last);
            drop(far);
            ended.await;
        };
        LocalSet::new().run_until(test).await;
    }
}

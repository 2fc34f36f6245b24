//! A transport as the library's task has it, which is not of this thread: a pipe, and a task that moves bytes between both.
//!
//! The task is what ends a connection: the library goes on where a future of its own is dropped, until its pipe ends.

use std::cell::{Cell, RefCell};
use std::io::{Error, ErrorKind, Result};
use std::rc::Rc;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::AbortHandle;

use super::channels::Shared;
use crate::base::telemetry::CarrierStats;
use crate::io::duplex::ByteStream;
use crate::io::transport::Transport;

/// What the pipe holds in each direction.
const PIPE_BYTES: usize = 256 << 10;
/// One read of the transport, or of the pipe.
const READ_BYTES: usize = 128 << 10;
/// What a peer may send before it has logged in.
const LOGIN_BYTES_MAX: u64 = 256 << 10;

/// The transport of one connection. Ends both once it is dropped.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) transport: Rc<dyn Transport>,
    count: Rc<Count>,
    task: AbortHandle,
}

/// What was carried.
#[derive(Debug, Default)]
struct Count {
    received: Cell<u64>,
    sent: Cell<u64>,
    has_logged_in: Cell<bool>,
    stats: RefCell<Option<Arc<CarrierStats>>>,
}

impl Wire {
    /// Also returns the library's end.
    pub(super) fn new(transport: Rc<dyn Transport>, shared: &Arc<Shared>) -> (Self, DuplexStream) {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let count = Rc::<Count>::default();
        let moves = carry(
            near,
            Rc::clone(&transport),
            Rc::clone(&count),
            Arc::clone(shared),
        );
        let task = tokio::task::spawn_local(moves).abort_handle();
        let wire = Self {
            transport,
            count,
            task,
        };
        (wire, far)
    }

    /// What was carried is counted there.
    pub(super) fn count_in(&self, stats: Arc<CarrierStats>) {
        stats.add_received(self.count.received.take() as usize);
        stats.add_sent(self.count.sent.take() as usize);
        *self.count.stats.borrow_mut() = Some(stats);
    }

    /// Ends both.
    pub(super) fn shut(&self) {
        self.task.abort();
        self.transport.shut();
    }

    /// The peer has logged in, or this side has.
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
            Some(stats) => stats.add_received(bytes),
            None => self.received.set(self.received.get() + bytes as u64),
        }
        if !self.has_logged_in.get() && self.received.get() > LOGIN_BYTES_MAX {
            let text = format!("more than {LOGIN_BYTES_MAX} bytes before the login");
            return Err(Error::new(ErrorKind::InvalidData, text));
        }
        Ok(())
    }

    fn add_sent(&self, bytes: usize) {
        match &*self.stats.borrow() {
            Some(stats) => stats.add_sent(bytes),
            None => self.sent.set(self.sent.get() + bytes as u64),
        }
    }
}

/// Moves bytes in both directions, until the library ends or the transport has failed.
async fn carry(
    near: DuplexStream,
    transport: Rc<dyn Transport>,
    count: Rc<Count>,
    shared: Arc<Shared>,
) {
    let (reader, writer) = tokio::io::split(near);
    let moved = tokio::select! {
        moved = send(reader, &transport, &count) => moved,
        moved = async {
            receive(writer, &transport, &count, &shared).await?;
            // What the library says at the end still goes.
            std::future::pending().await
        } => moved,
    };
    if let Err(error) = moved {
        tracing::debug!(%error, "The transport of an SSH connection has failed");
    }
    transport.shut();
}

async fn receive(
    mut writer: WriteHalf<DuplexStream>,
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
            return writer.shutdown().await;
        }
        count.add_received(buffer.len())?;
        writer.write_all(&buffer).await?;
    }
}

async fn send(
    mut reader: ReadHalf<DuplexStream>,
    transport: &Rc<dyn Transport>,
    count: &Count,
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
    }
}

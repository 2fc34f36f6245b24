//! One stream's local socket: its source (socket -> carrier) and its sink (carrier -> socket).
//!
//! The source reads only when there is credit and a buffer, one batch at a time, so streams take
//! turns. The sink writes what [`super::carrier_in`] could not pass on at once. A stream that is cut
//! delivers what came and then resets the socket, so that its application never takes a cut for an
//! end of file.

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_proto::{Outcome, Refusal, ResetCode, StreamId, Token};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};

use super::Driver;
use super::buffers::{BUFFER_BYTES, Batch, Layout};
use super::inbox::Inbox;
use crate::telemetry::Telemetry;

/// How long a cut stream's socket may take to accept what had come for it.
const CUT_DELIVERY_MAX: Duration = Duration::from_secs(10);
/// How often the kernel is asked whether a cut stream's last bytes are acknowledged.
const ACKNOWLEDGED_POLL: Duration = Duration::from_millis(5);

/// How one direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Clean,
    Cut,
}

pub(super) struct StreamIo {
    pub(super) id: StreamId,
    tcp: TcpStream,
    /// Where the answer to our open goes, until it comes.
    answer: Cell<Option<oneshot::Sender<Result<(), Refusal>>>>,
    opened: Cell<bool>,
    batch: RefCell<Option<Batch>>,
    inbox: RefCell<Inbox>,
    finished: Cell<bool>,
    cut: Cell<Option<Cut>>,
    source_wake: Notify,
    sink_wake: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// By the peer or the carrier: what came is still delivered.
    Remote,
    /// The local socket failed, or the open did: nothing can be delivered.
    Local,
}

impl StreamIo {
    /// A stream that the peer has been asked for. It runs at once, so that what the client sends
    /// first can go along with the open.
    pub(super) fn opening(
        id: StreamId,
        tcp: TcpStream,
        answer: oneshot::Sender<Result<(), Refusal>>,
    ) -> Self {
        Self {
            answer: Cell::new(Some(answer)),
            ..Self::accepted(id, tcp, Inbox::default(), false)
        }
    }

    /// A stream of the peer's. `inbox`: what came while its target was dialled; `finished`: that was
    /// all.
    pub(super) fn accepted(id: StreamId, tcp: TcpStream, inbox: Inbox, finished: bool) -> Self {
        Self {
            id,
            tcp,
            answer: Cell::new(None),
            opened: Cell::new(false),
            batch: RefCell::default(),
            inbox: RefCell::new(inbox),
            finished: Cell::new(finished),
            cut: Cell::new(None),
            source_wake: Notify::new(),
            sink_wake: Notify::new(),
        }
    }

    /// Both sides agree on the stream.
    pub(super) fn opened(&self, telemetry: &Telemetry) {
        self.opened.set(true);
        telemetry.stream_opened();
        self.answer(Ok(()));
        self.source_wake.notify_one();
    }

    /// The open failed: the client learns it at once, by a reset.
    pub(super) fn refused(&self, refusal: Refusal) {
        self.answer(Err(refusal));
        self.end(Cut::Local);
    }

    fn answer(&self, answer: Result<(), Refusal>) {
        if let Some(asker) = self.answer.take() {
            // Whoever asked may have stopped listening; the stream goes on without.
            let _ = asker.send(answer);
        }
    }

    pub(super) fn wake_source(&self) {
        self.source_wake.notify_one();
    }

    pub(super) fn peer_finished(&self) {
        self.finished.set(true);
        self.sink_wake.notify_one();
    }

    pub(super) fn cut(&self, cause: Outcome) {
        tracing::debug!(stream = self.id.number(), ?cause, "Stream was cut");
        self.end(Cut::Remote);
    }

    fn end(&self, cut: Cut) {
        if self.cut.get().is_none() {
            self.cut.set(Some(cut));
        }
        self.batch.take();
        self.source_wake.notify_one();
        self.sink_wake.notify_one();
    }

    /// Passes payload on; returns how much of it the socket took at once. The rest is kept.
    pub(super) fn deliver(&self, mut slices: &mut [IoSlice<'_>]) -> usize {
        if self.cut.get() == Some(Cut::Local) {
            return 0;
        }
        let mut taken = 0;
        if self.inbox.borrow().is_empty() {
            while !slices.is_empty() {
                match self.tcp.try_write_vectored(slices) {
                    Ok(length) => {
                        taken += length;
                        IoSlice::advance_slices(&mut slices, length);
                    }
                    // An error shows again in the sink, which deals with it.
                    Err(_) => break,
                }
            }
        }
        if !slices.is_empty() {
            let mut inbox = self.inbox.borrow_mut();
            slices.iter().for_each(|slice| inbox.push(slice));
            self.sink_wake.notify_one();
        }
        taken
    }

    pub(super) fn put_header(&self, start: usize, header: &[u8]) {
        if let Some(batch) = self.batch.borrow_mut().as_mut() {
            batch.put_header(start, header);
        }
    }

    /// The batch of `length` payload bytes is on its way: the source may read the next.
    pub(super) fn take_batch(&self, length: usize) -> Option<(Batch, usize)> {
        let batch = self.batch.take()?;
        self.source_wake.notify_one();
        let span = batch.layout.span(length);
        Some((batch, span))
    }

    fn read_batch(
        &self,
        buffer: &mut super::buffers::Buffer,
        layout: Layout,
        limit: usize,
    ) -> std::io::Result<usize> {
        self.tcp.try_read_vectored(&mut layout.slots(buffer, limit))
    }
}

/// Runs a stream to its end.
pub(super) async fn run(driver: &Rc<Driver>, io: &Rc<StreamIo>) {
    if let Err(error) = io.tcp.set_nodelay(true) {
        tracing::debug!(%error, "Local socket has no TCP_NODELAY");
    }
    let (source, sink) = tokio::join!(source(driver, io), sink(driver, io));
    let clean = source == End::Clean && sink == End::Clean && io.cut.get().is_none();
    if io.opened.get() {
        driver.telemetry.stream_ended(clean);
    }
    if !clean {
        reset(io).await;
    }
}

/// Local socket -> carrier.
async fn source(driver: &Driver, io: &StreamIo) -> End {
    loop {
        if io.cut.get().is_some() {
            return End::Cut;
        }
        let capacity = driver.session.borrow_mut().send_capacity(io.id);
        let Some(capacity) = capacity else {
            return End::Cut;
        };
        if capacity.bytes == 0 || io.batch.borrow().is_some() {
            io.source_wake.notified().await;
            continue;
        }
        let readable = tokio::select! {
            biased;
            () = io.source_wake.notified() => continue,
            readable = io.tcp.readable() => readable,
        };
        let Some(mut buffer) = driver.pool.acquire().await else {
            return End::Cut;
        };
        let header = capacity.header_bytes;
        let payload = capacity.payload_max.min(BUFFER_BYTES - header);
        let layout = Layout::new(header, payload);
        let limit = usize::try_from(capacity.bytes).unwrap_or(usize::MAX);
        let read = readable.and_then(|()| io.read_batch(&mut buffer, layout, limit));
        match read {
            Ok(0) => {
                driver.session.borrow_mut().finish(io.id);
                driver.wake_transmit();
                return End::Clean;
            }
            Ok(length) if io.cut.get().is_none() => {
                io.batch.replace(Some(Batch { buffer, layout }));
                driver
                    .session
                    .borrow_mut()
                    .source_ready(io.id, length, Token(0));
                driver.wake_transmit();
            }
            Ok(_) => return End::Cut,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return fail(driver, io, &error),
        }
    }
}

/// Inbox -> local socket.
async fn sink(driver: &Driver, io: &StreamIo) -> End {
    loop {
        match io.cut.get() {
            Some(Cut::Local) => return End::Cut,
            Some(Cut::Remote) => return deliver_rest(driver, io).await,
            None => {}
        }
        if !io.inbox.borrow().is_empty() {
            if let Err(error) = write_inbox(driver, io).await {
                return fail(driver, io, &error);
            }
        } else if io.finished.get() {
            return match socket2::SockRef::from(&io.tcp).shutdown(std::net::Shutdown::Write) {
                Ok(()) => End::Clean,
                Err(error) => fail(driver, io, &error),
            };
        } else {
            io.sink_wake.notified().await;
        }
    }
}

/// Writes some of the inbox, or returns early when the stream was cut.
async fn write_inbox(driver: &Driver, io: &StreamIo) -> std::io::Result<()> {
    tokio::select! {
        biased;
        writable = io.tcp.writable() => writable?,
        () = io.sink_wake.notified() => return Ok(()),
    }
    let written = io.tcp.try_write_vectored(&io.inbox.borrow().slices());
    match written {
        Ok(length) => {
            io.inbox.borrow_mut().consume(length);
            driver
                .session
                .borrow_mut()
                .sink_took(Instant::now(), io.id, length);
            driver.telemetry.add_bytes_received(length);
            driver.wake_transmit();
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// The stream was cut: what had come is still delivered, for a bounded time.
async fn deliver_rest(driver: &Driver, io: &StreamIo) -> End {
    let deliver = async {
        while !io.inbox.borrow().is_empty() {
            if write_inbox(driver, io).await.is_err() {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(CUT_DELIVERY_MAX, deliver).await;
    io.inbox.borrow_mut().clear();
    driver
        .session
        .borrow_mut()
        .reset(io.id, ResetCode::Cancelled);
    driver.wake_transmit();
    End::Cut
}

/// The local socket failed: the peer must learn that the stream was cut.
fn fail(driver: &Driver, io: &StreamIo, error: &std::io::Error) -> End {
    tracing::debug!(stream = io.id.number(), %error, "Local socket failed");
    io.end(Cut::Local);
    io.inbox.borrow_mut().clear();
    driver
        .session
        .borrow_mut()
        .reset(io.id, ResetCode::Cancelled);
    driver.wake_transmit();
    End::Cut
}

/// Ends the local socket with RST instead of FIN, once its kernel has delivered what it holds: a
/// reset throws the send buffer away.
async fn reset(io: &StreamIo) {
    let delivered = async {
        while crate::sys::tcp_info(io.tcp.as_fd())
            .is_ok_and(|info| info.unacknowledged > 0 || info.not_sent_bytes > 0)
        {
            tokio::time::sleep(ACKNOWLEDGED_POLL).await;
        }
    };
    if io.cut.get() == Some(Cut::Remote) {
        let _ = tokio::time::timeout(CUT_DELIVERY_MAX, delivered).await;
    }
    let _ = io.tcp.set_zero_linger();
}

//! Moves payload from a stream's local socket to a carrier.
//!
//! The source reads one batch at a time, and only if it has credit and a buffer, so that streams
//! take turns. While pipes are free, bulk goes through a pipe without a copy. A stream never waits
//! while it holds its forward's turn, since other sessions wait for the same turn.

use std::io::{ErrorKind, IoSliceMut};
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::{End, Ready, StreamIo, fail};
use crate::base::pace::Turn;
use crate::io::duplex;
use crate::session::driver::Driver;
use crate::stream::batch::{Appetite, Batch, Layout, SLOTS_MAX};
use crate::stream::buffers::{Buffer, FITTED_SHARE, Size};
use crate::stream::pipe::{Filled, SPLICE_BYTES_MIN, Way};

/// How long a stream with a failed local socket waits for credit to send the bytes that precede the
/// failure.
const FAILED_DELIVERY_MAX: Duration = Duration::from_secs(10);

/// The result of a read.
enum Read {
    /// The socket's half has ended.
    End,
    /// Payload, which occupies `held` bytes of memory.
    Some {
        batch: Ready,
        length: usize,
        held: usize,
    },
}

pub(super) async fn run(driver: &Rc<Driver>, io: &StreamIo) -> End {
    let mut appetite = Appetite::default();
    let mut wait = None;
    let mut failed = None;
    // Whether the stream was woken for credit. Other streams wait until it has used this credit.
    let mut waited = false;
    loop {
        if io.life.is_over() {
            return End::Cut;
        }
        let capacity = driver.engine.session.view().send_capacity(io.id);
        let Some(capacity) = capacity else {
            return End::Cut;
        };
        if io.batch.borrow().is_some() {
            io.source_wake.notified().await;
            continue;
        }
        if capacity.bytes == 0 {
            if !asks_for_credit(driver, io).await {
                continue;
            }
            if io.is_open() {
                wait.get_or_insert_with(|| driver.telemetry.credit.wait());
            }
            if let Err(error) = wait_for_credit(io, &mut failed).await {
                return fail(driver, io, &error);
            }
            waited = true;
            continue;
        }
        wait = None;
        match readable(io).await {
            None => continue,
            Some(Ok(())) => {}
            Some(Err(error)) => return fail(driver, io, &error),
        }
        let read = match read_in_turn(driver, io, &mut appetite).await {
            Ok(Some(read)) => read,
            Ok(None) => continue,
            Err(end) => return end,
        };
        match read {
            Ok(Read::End) => {
                io.life.end_source();
                driver.update(|session| session.finish(io.id));
                return End::Clean;
            }
            Ok(Read::Some {
                batch,
                length,
                held,
            }) if !io.life.is_over() => {
                waited = false;
                io.early.wait(length);
                io.batch.replace(Some(batch));
                let token = driver.engine.retention.next_token();
                driver.update(|session| session.source_ready(io.id, length, held, token));
            }
            Ok(_) => return End::Cut,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if std::mem::take(&mut waited) {
                    driver.update(|session| session.want_credit(io.id));
                }
            }
            Err(error) => return fail(driver, io, &error),
        }
    }
}

/// Waits until the local end has bytes to send or has failed; `None`: another event woke the
/// stream.
async fn readable(io: &StreamIo) -> Option<std::io::Result<()>> {
    tokio::select! {
        biased;
        () = io.source_wake.notified() => None,
        () = std::future::ready(()), if io.early.is_there() => Some(Ok(())),
        readable = duplex::readable(&*io.socket) => Some(readable),
    }
}

/// Waits for a buffer, and for the stream's turn if its forward has a rate limit; then reads.
/// `Ok(None)`: the caller has to wait for both again.
///
/// # Errors
/// The stream was cut in the meantime.
async fn read_in_turn(
    driver: &Rc<Driver>,
    io: &StreamIo,
    appetite: &mut Appetite,
) -> Result<Option<std::io::Result<Read>>, End> {
    let mut paced = None;
    if let Some(pace) = io.account.up() {
        let turn = until_cut(io, Box::pin(pace.turn())).await;
        paced = Some(turn.ok_or(End::Cut)?);
    }
    let limit = paced.as_ref().map_or(usize::MAX, Turn::most);
    let read = match splice(driver, io, *appetite, limit) {
        Some(read) => read,
        None => {
            let size = appetite.size();
            let buffer = if paced.is_none() {
                until_cut(io, driver.share.acquire(size)).await.flatten()
            } else if let Some(buffer) = driver.share.try_acquire_paced(size) {
                Some(buffer)
            } else {
                // Releases the turn without a charge, so that another stream gets the turn.
                drop(paced);
                let room = until_cut(io, driver.share.wait_for_paced(size)).await;
                return room.map(|()| None).ok_or(End::Cut);
            };
            let read = buffer.and_then(|buffer| copy(driver, io, appetite, buffer, limit));
            read.ok_or(End::Cut)?
        }
    };
    if let (Some(turn), Ok(Read::Some { length, .. })) = (paced, &read) {
        turn.charge(*length);
    }
    Ok(Some(read))
}

/// Requests credit once the socket has payload. The order matters, since new credit wakes every
/// stream with a request, even one without payload. Returns `false` if the state has changed in the
/// meantime, so that the request was not made.
async fn asks_for_credit(driver: &Rc<Driver>, io: &StreamIo) -> bool {
    tokio::select! {
        biased;
        () = io.source_wake.notified() => return false,
        () = std::future::ready(()), if io.early.is_there() => {}
        // The wait for credit reports the failure.
        _ = duplex::readable(&*io.socket) => {}
    }
    // Credit that arrived before the request wakes no stream, so the function checks the credit
    // first.
    let capacity = driver.engine.session.view().send_capacity(io.id);
    let asks = capacity.is_some_and(|capacity| capacity.bytes == 0);
    if asks {
        driver.update(|session| session.want_credit(io.id));
    }
    asks
}

/// Waits until credit may be available, and meanwhile watches the local socket for a failure.
/// `failed` is the time of such a failure.
///
/// # Errors
/// The local socket has failed. Either all bytes before the failure are sent, or no credit for them
/// arrived within [`FAILED_DELIVERY_MAX`].
async fn wait_for_credit(io: &StreamIo, failed: &mut Option<Instant>) -> std::io::Result<()> {
    tokio::select! {
        biased;
        () = io.source_wake.notified() => return Ok(()),
        () = io.socket.failed() => {}
    }
    let since = *failed.get_or_insert_with(Instant::now);
    let unread = io.early.is_there() || io.socket.unread() > 0;
    if unread {
        let until = since + FAILED_DELIVERY_MAX;
        if tokio::time::timeout_at(until, io.source_wake.notified())
            .await
            .is_ok()
        {
            return Ok(());
        }
    }
    Err(io.socket.take_failure())
}

/// Waits for `ready`; `None`: the stream was cut in the meantime. If another event wakes the
/// stream, `ready` keeps its place in the queue.
async fn until_cut<T>(io: &StreamIo, ready: impl Future<Output = T>) -> Option<T> {
    let mut ready = std::pin::pin!(ready);
    loop {
        tokio::select! {
            biased;
            ready = &mut ready => return Some(ready),
            () = io.source_wake.notified() => {}
        }
        if io.life.is_over() {
            return None;
        }
    }
}

/// Moves available payload into a pipe; `None`: the payload has to be copied, or is too short for a
/// pipe.
fn splice(
    driver: &Rc<Driver>,
    io: &StreamIo,
    appetite: Appetite,
    limit: usize,
) -> Option<std::io::Result<Read>> {
    // Before the answer, payload is copied, since it may have to be returned. Early data is copied,
    // since it is in memory and precedes the bytes of the socket.
    if appetite.size() == Size::Small || !io.is_open() || io.early.is_there() {
        return None;
    }
    // Other streams may have used the credit while this stream waited.
    let capacity = driver.engine.session.view().send_capacity(io.id)?;
    let limit = usize::try_from(capacity.bytes)
        .unwrap_or(usize::MAX)
        .min(capacity.payload_max)
        .min(driver.splice_max())
        .min(limit);
    let socket = io.socket.plain()?;
    if limit < SPLICE_BYTES_MIN || io.socket.unread() < SPLICE_BYTES_MIN as u64 {
        return None;
    }
    // The carrier may need another pipe to retain the payload.
    let count = 1 + usize::from(capacity.retained);
    let Some(mut pipe) = driver.share.pipe(Way::ToCarrier, count) else {
        driver.telemetry.splices.pipes_lacking.add(1);
        return None;
    };
    let length = match pipe.fill(socket, limit) {
        Ok(Filled::Bytes(0)) => return Some(Ok(Read::End)),
        Ok(Filled::Bytes(length)) => length,
        // An empty pipe is not full.
        Ok(Filled::Full) => return None,
        Err(error) => return Some(Err(error)),
    };
    Some(Ok(Read::Some {
        batch: Ready::Pipe(pipe),
        length,
        held: length,
    }))
}

/// Reads into `buffer`; `None`: the session is over.
fn copy(
    driver: &Rc<Driver>,
    io: &StreamIo,
    appetite: &mut Appetite,
    mut buffer: Buffer,
    limit: usize,
) -> Option<std::io::Result<Read>> {
    let batch_max = driver.batch_max();
    // Other streams may have used the credit while this stream waited.
    let capacity = driver.engine.session.view().send_capacity(io.id)?;
    if capacity.bytes == 0 {
        return Some(Err(ErrorKind::WouldBlock.into()));
    }
    let layout = Layout::new(capacity.header_bytes, capacity.payload_max, buffer.len());
    let limit = usize::try_from(capacity.bytes)
        .unwrap_or(usize::MAX)
        .min(appetite.bytes().min(batch_max))
        .min(limit);
    let (length, room) = match read(io, &mut buffer, layout, limit) {
        Ok((0, _)) => return Some(Ok(Read::End)),
        Ok(read) => read,
        Err(error) => return Some(Err(error)),
    };
    appetite.learn(length, room);
    let span = layout.span(length);
    if capacity.retained {
        let share = if capacity.retain_scarce {
            1
        } else {
            FITTED_SHARE
        };
        buffer = buffer.fitted(span, share);
    }
    let held = buffer.len();
    let batch = Ready::Buffer(Batch { buffer, layout });
    Some(Ok(Read::Some {
        batch,
        length,
        held,
    }))
}

/// Reads up to `limit` bytes of payload. Returns the number of bytes, and the size of the room into
/// which it read.
fn read(
    io: &StreamIo,
    buffer: &mut Buffer,
    layout: Layout,
    limit: usize,
) -> std::io::Result<(usize, usize)> {
    let mut slots: [_; SLOTS_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let (count, room) = layout.fill(buffer, limit, &mut slots);
    if io.early.is_there() {
        return Ok((io.early.read(&mut slots[..count]), room));
    }
    let length = io.socket.try_read_vectored(&mut slots[..count])?;
    Ok((length, room))
}

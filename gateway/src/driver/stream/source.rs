//! A stream's source: local socket -> carrier.
//!
//! Reads only when there is credit and a buffer, one batch at a time, so streams take turns. Bulk goes
//! through a pipe, without being copied, while the worker has one; through two where it has to be kept.

use std::io::{ErrorKind, IoSliceMut};

use muxtunnel_proto::SendCapacity;

use super::{End, Ready, StreamIo, fail, turn};
use crate::driver::Driver;
use crate::driver::batch::{Appetite, Batch, Layout, SLOTS_MAX};
use crate::driver::buffers::{Buffer, Size};
use crate::driver::pipe::{Pipe, SPLICE_BYTES_MIN};
use crate::pace::Turn;

/// What a read gave.
enum Read {
    /// The end of the socket's half.
    End,
    /// So many bytes, which take `held` bytes of memory.
    Some {
        batch: Ready,
        length: usize,
        held: usize,
    },
}

pub(super) async fn run(driver: &Driver, io: &StreamIo) -> End {
    let mut appetite = Appetite::default();
    let mut wait = None;
    loop {
        if io.cut.get().is_some() {
            return End::Cut;
        }
        let capacity = driver.session.borrow_mut().send_capacity(io.id);
        let Some(capacity) = capacity else {
            return End::Cut;
        };
        if capacity.bytes == 0 || io.batch.borrow().is_some() {
            // Nothing of it waits to be sent: what lacks is leave.
            if io.is_open() && io.batch.borrow().is_none() {
                wait.get_or_insert_with(|| driver.telemetry.credit.wait());
            }
            io.source_wake.notified().await;
            continue;
        }
        wait = None;
        let readable = tokio::select! {
            biased;
            () = io.source_wake.notified() => continue,
            () = std::future::ready(()), if io.early.is_there() => Ok(()),
            readable = io.socket.readable() => readable,
        };
        if let Err(error) = readable {
            return fail(driver, io, &error);
        }
        let mut paced = None;
        if let Some(pace) = io.account.up() {
            let Some(turn) = turn(pace, io, &io.source_wake).await else {
                return End::Cut;
            };
            paced = Some(turn);
        }
        let limit = paced.as_ref().map_or(usize::MAX, Turn::most);
        let read = match splice(driver, io, appetite, capacity, limit) {
            Some(read) => read,
            None => match copy(driver, io, &mut appetite, limit).await {
                Some(read) => read,
                None => return End::Cut,
            },
        };
        if let (Some(turn), Ok(Read::Some { length, .. })) = (paced, &read) {
            turn.charge(*length);
        }
        match read {
            Ok(Read::End) => {
                io.ended.set(true);
                driver.session.borrow_mut().finish(io.id);
                driver.wake_transmit();
                return End::Clean;
            }
            Ok(Read::Some {
                batch,
                length,
                held,
            }) if io.cut.get().is_none() => {
                io.early.wait(length);
                io.batch.replace(Some(batch));
                let token = driver.next_token();
                driver
                    .session
                    .borrow_mut()
                    .source_ready(io.id, length, held, token);
                driver.wake_transmit();
            }
            Ok(_) => return End::Cut,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return fail(driver, io, &error),
        }
    }
}

/// Takes what waits into a pipe; `None`: it has to be copied, or is too little to be worth a pipe.
fn splice(
    driver: &Driver,
    io: &StreamIo,
    appetite: Appetite,
    capacity: SendCapacity,
    limit: usize,
) -> Option<std::io::Result<Read>> {
    // What is sent before the answer may have to be taken back, and goes before what the socket has.
    if appetite.size() == Size::Small || !io.is_open() || io.early.is_there() {
        return None;
    }
    let limit = usize::try_from(capacity.bytes)
        .unwrap_or(usize::MAX)
        .min(capacity.payload_max)
        .min(driver.splice_max())
        .min(limit);
    let waiting = rustix::io::ioctl_fionread(&io.socket).unwrap_or(0);
    if limit < SPLICE_BYTES_MIN || waiting < SPLICE_BYTES_MIN as u64 {
        return None;
    }
    let pipes = if capacity.retained { 2 } else { 1 };
    let mut pipe = driver.pipe(&driver.share.pool().source_pipes, pipes)?;
    let length = match pipe.fill(&io.socket, limit) {
        Ok(0) => return Some(Ok(Read::End)),
        Ok(length) => length,
        Err(error) => return Some(Err(error)),
    };
    let batch = if capacity.retained {
        keep(driver, pipe, capacity)
    } else {
        driver.telemetry.splices.sent(length);
        Ok(Ready::Pipe(pipe, None))
    };
    Some(batch.map(|batch| Read::Some {
        batch,
        length,
        held: length,
    }))
}

/// What `pipe` holds, to be sent and kept: in a second pipe, or in memory for want of one.
fn keep(driver: &Driver, mut pipe: Pipe, capacity: SendCapacity) -> std::io::Result<Ready> {
    match pipe.twin() {
        Ok(twin) => {
            driver.telemetry.splices.sent(pipe.held());
            Ok(Ready::Pipe(pipe, Some(twin)))
        }
        Err(_) => {
            driver.telemetry.splices.pipe_lacked();
            Batch::copied_from(&mut pipe, capacity.header_bytes).map(Ready::Buffer)
        }
    }
}

/// Reads into a buffer, once there is one; `None`: the session is over.
async fn copy(
    driver: &Driver,
    io: &StreamIo,
    appetite: &mut Appetite,
    limit: usize,
) -> Option<std::io::Result<Read>> {
    let batch_max = driver.batch_max();
    let mut buffer = driver.share.acquire(appetite.size()).await?;
    // While this stream waited, others may have used up the credit that it saw.
    let capacity = driver.session.borrow_mut().send_capacity(io.id)?;
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
    let buffer = if capacity.retain_scarce {
        buffer.trimmed(span)
    } else {
        buffer
    };
    let held = buffer.held(span);
    let batch = Ready::Buffer(Batch { buffer, layout });
    Some(Ok(Read::Some {
        batch,
        length,
        held,
    }))
}

/// Reads up to `limit` bytes of payload; returns how many, and for how many there was room.
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

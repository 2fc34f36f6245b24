//! Moves bytes from the local end to a link.
//!
//! The source reads one batch at a time, and only while the peer takes bytes and a buffer is free.
//! So a stream without credit holds no memory. A stream never waits while it holds its forward's
//! turn, since other sessions wait for the same turn.

use std::io::{ErrorKind, IoSliceMut};
use std::time::Duration;

use bytes::Buf;
use muxtunnel_proto::Outcome;
use tokio::time::Instant;

use super::Joined;
use crate::base::pace::Turn;
use crate::io::duplex;
use crate::session::bridge::Bridge;
use crate::session::bridge::link::{Link, Payload, Sender};
use crate::stream::batch::Appetite;
use crate::stream::buffers::Buffer;
use crate::stream::local_stream::End;

/// How long a stream with a failed local end waits for credit to send the bytes that precede the
/// failure.
const FAILED_DELIVERY_MAX: Duration = Duration::from_secs(10);

/// Why one step of [`run`] sent nothing.
enum Halt {
    /// The local end has nothing more to send.
    End,
    Failed(std::io::Error),
    /// The peer, or the link, cut the stream.
    Cut(Outcome),
    /// This side cut the stream.
    Over,
    /// Either the local end had no bytes, or all buffers were in use: try again.
    Again,
}

/// Runs until this direction of the stream has ended.
pub(super) async fn run<L: Link>(bridge: &Bridge<L>, io: &Joined, sender: &mut L::Sender) -> End {
    let mut appetite = Appetite::default();
    let mut early = io.early.take();
    let mut failed = None;
    loop {
        let step = async {
            if early.is_empty() {
                wait_for_payload(io, sender).await?;
            }
            let credit = credit(bridge, io, sender, &appetite, &early, &mut failed).await?;
            let payload = read(bridge, io, &mut appetite, &mut early, credit).await?;
            sender.send(payload).await.map_err(Halt::Cut)
        };
        let step = tokio::select! {
            biased;
            () = io.is_cut() => Err(Halt::Over),
            step = step => step,
        };
        match step {
            Ok(()) => {}
            Err(Halt::Again) => sender.rest(),
            Err(Halt::End) => {
                io.life.end_source();
                return match sender.finish() {
                    Ok(()) => End::Clean,
                    Err(outcome) => cut(io, outcome),
                };
            }
            Err(Halt::Failed(error)) => return io.fail(&error),
            Err(Halt::Cut(outcome)) => return cut(io, outcome),
            Err(Halt::Over) => return End::Cut,
        }
    }
}

fn cut(io: &Joined, outcome: Outcome) -> End {
    io.cut(outcome);
    End::Cut
}

/// Waits until the local end has bytes to send or has ended.
async fn wait_for_payload(io: &Joined, sender: &mut impl Sender) -> Result<(), Halt> {
    tokio::select! {
        biased;
        outcome = sender.stopped() => Err(Halt::Cut(outcome)),
        readable = duplex::readable(&*io.socket) => readable.map_err(Halt::Failed),
    }
}

/// Waits for the peer's credit, and meanwhile watches the local end for a failure. `failed` is the
/// time of such a failure.
async fn credit<L: Link>(
    bridge: &Bridge<L>,
    io: &Joined,
    sender: &mut L::Sender,
    appetite: &Appetite,
    early: &[u8],
    failed: &mut Option<Instant>,
) -> Result<usize, Halt> {
    let wanted = appetite.bytes();
    tokio::select! {
        biased;
        capacity = sender.capacity(wanted) => return capacity.map_err(Halt::Cut),
        () = io.unsent.none() => {}
    }
    // All sent payload has left the library, so the stream waits for the peer's credit.
    let _wait = bridge.telemetry.credit.wait();
    tokio::select! {
        biased;
        capacity = sender.capacity(wanted) => return capacity.map_err(Halt::Cut),
        () = io.socket.failed() => {}
    }
    let since = *failed.get_or_insert_with(Instant::now);
    if !early.is_empty() || io.socket.unread() > 0 {
        let until = since + FAILED_DELIVERY_MAX;
        if let Ok(capacity) = tokio::time::timeout_at(until, sender.capacity(wanted)).await {
            return capacity.map_err(Halt::Cut);
        }
    }
    Err(Halt::Failed(io.socket.take_failure()))
}

/// Waits for a buffer, and for the stream's turn if its forward has a rate limit. After that, reads
/// at most `credit` bytes.
async fn read<L: Link>(
    bridge: &Bridge<L>,
    io: &Joined,
    appetite: &mut Appetite,
    early: &mut Vec<u8>,
    credit: usize,
) -> Result<Payload, Halt> {
    let size = appetite.size();
    let Some(pace) = io.account.up() else {
        let buffer = bridge.share.acquire(size).await.ok_or(Halt::Over)?;
        return fill(bridge, io, appetite, early, buffer, credit);
    };
    let turn = pace.turn().await;
    let Some(buffer) = bridge.share.try_acquire_paced(size) else {
        drop(turn);
        bridge.share.wait_for_paced(size).await;
        return Err(Halt::Again);
    };
    let limit = credit.min(Turn::most(&turn));
    let payload = fill(bridge, io, appetite, early, buffer, limit)?;
    turn.charge(payload.remaining());
    Ok(payload)
}

fn fill<L: Link>(
    bridge: &Bridge<L>,
    io: &Joined,
    appetite: &mut Appetite,
    early: &mut Vec<u8>,
    mut buffer: Buffer,
    limit: usize,
) -> Result<Payload, Halt> {
    let room = limit.min(appetite.bytes()).min(buffer.len());
    let length = if early.is_empty() {
        let mut slots = [IoSliceMut::new(&mut buffer[..room])];
        match io.socket.try_read_vectored(&mut slots) {
            Ok(0) => return Err(Halt::End),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(Halt::Again),
            Err(error) => return Err(Halt::Failed(error)),
        }
    } else {
        let length = room.min(early.len());
        buffer[..length].copy_from_slice(&early[..length]);
        early.drain(..length);
        length
    };
    appetite.learn(length, room);
    io.account.sent(&bridge.telemetry, length);
    Ok(Payload::new(buffer, length, &io.unsent))
}

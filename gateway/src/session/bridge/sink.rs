//! Link -> local end.

use std::io::{ErrorKind, IoSlice};

use bytes::{Buf, Bytes};

use super::Bridge;
use super::link::{Link, Receiver};
use super::stream::{End, Joined};
use crate::base::pace::Turn;
use crate::io::duplex;

/// Until the stream has ended in this direction; one that was cut, until what came is delivered.
pub(super) async fn run<L: Link>(
    bridge: &Bridge<L>,
    io: &Joined,
    receiver: &mut L::Receiver,
) -> End {
    loop {
        let received = tokio::select! {
            biased;
            received = receiver.receive() => received,
            // Until it has ended, the source sees it.
            () = io.socket.failed(), if io.life.has_source_ended() => {
                return io.fail(&io.socket.take_failure());
            }
        };
        let payload = match received {
            Ok(Some(payload)) => payload,
            Ok(None) => return finish(io),
            Err(outcome) => {
                io.cut(outcome);
                return End::Cut;
            }
        };
        if let Err(error) = write(bridge, io, receiver, payload).await {
            return io.fail(&error);
        }
    }
}

fn finish(io: &Joined) -> End {
    io.life.finish_peer();
    if io.life.is_over() {
        return End::Cut;
    }
    if io.life.has_source_ended() {
        // Both halves are over: the socket's end, which is next, says it.
        return End::Clean;
    }
    match io.socket.finish() {
        Ok(()) => End::Clean,
        Err(error) => io.fail(&error),
    }
}

/// Writes all of `payload`, and gives the peer credit as the local end takes it.
async fn write<L: Link>(
    bridge: &Bridge<L>,
    io: &Joined,
    receiver: &mut L::Receiver,
    mut payload: Bytes,
) -> std::io::Result<()> {
    while payload.has_remaining() {
        duplex::writable(&*io.socket).await?;
        let turn = match io.account.down() {
            Some(pace) => Some(pace.turn().await),
            None => None,
        };
        let limit = turn
            .as_ref()
            .map_or(usize::MAX, Turn::most)
            .min(payload.len());
        let length = match io.socket.try_write(&[IoSlice::new(&payload[..limit])]) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        if let Some(turn) = turn {
            turn.charge(length);
        }
        payload.advance(length);
        io.account.received(&bridge.telemetry, length);
        receiver.took(length);
    }
    Ok(())
}

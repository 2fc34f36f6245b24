//! Link -> local end.

use std::io::{ErrorKind, IoSlice};

use bytes::Buf;

use muxtunnel_proto::Outcome;

use super::Bridge;
use super::link::{Link, Receiver};
use super::stream::{End, Joined};
use crate::io::duplex;

/// Pieces of payload that one write passes on.
const SLICES_MAX: usize = 64;

/// Until the stream has ended in this direction; one that was cut, until what came is delivered.
pub(super) async fn run<L: Link>(
    bridge: &Bridge<L>,
    io: &Joined,
    receiver: &mut L::Receiver,
) -> End {
    loop {
        let received = tokio::select! {
            biased;
            received = next(io, receiver) => match received {
                Ok(received) => received,
                Err(error) => return io.fail(&error),
            },
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

/// What comes next, once the local end takes something: what it does not take stays with the library, whose windows bound
/// it.
async fn next<R: Receiver>(
    io: &Joined,
    receiver: &mut R,
) -> std::io::Result<Result<Option<R::Payload>, Outcome>> {
    duplex::writable(&*io.socket).await?;
    Ok(receiver.receive().await)
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
    mut payload: <L::Receiver as Receiver>::Payload,
) -> std::io::Result<()> {
    while payload.has_remaining() {
        duplex::writable(&*io.socket).await?;
        let turn = match io.account.down() {
            Some(pace) => Some(pace.turn().await),
            None => None,
        };
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = match &turn {
            Some(turn) => {
                let chunk = payload.chunk();
                slices[0] = IoSlice::new(&chunk[..chunk.len().min(turn.most())]);
                1
            }
            None => payload.chunks_vectored(&mut slices),
        };
        let length = match io.socket.try_write(&slices[..count]) {
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

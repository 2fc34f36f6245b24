//! Moves payload from a link to the local end.

use std::io::{ErrorKind, IoSlice};

use bytes::Buf;

use muxtunnel_proto::Outcome;

use super::Joined;
use crate::io::duplex;
use crate::session::bridge::Bridge;
use crate::session::bridge::link::{Link, Receiver};
use crate::stream::local_stream::End;

/// Maximum number of payload pieces in one write.
const SLICES_MAX: usize = 64;

/// Runs until this direction of the stream has ended. If the stream is cut, the sink runs until the
/// received bytes are delivered.
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
            // The source notices a failure of the local end as long as the source runs.
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

/// Returns the next payload once the local end can take bytes. Until then, the payload stays in the
/// library, whose windows bound the payload.
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
        // Both halves have ended, so the gateway closes the socket next. The close also tells the
        // local end that the peer's half has ended.
        return End::Clean;
    }
    match io.socket.finish() {
        Ok(()) => End::Clean,
        Err(error) => io.fail(&error),
    }
}

/// Writes all of `payload`, and gives the peer credit for the bytes that the local end took.
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

//! Two connections become one: bytes go from socket to socket by splice(2), and are never looked at.
//!
//! One pipe a direction. A half that ends is passed on as such, a reset as a reset. What decides which two, and
//! how long they may be silent, is the caller's.

use std::net::Shutdown;
use std::os::fd::AsFd;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes of a pipe, where the system gives that many; else it has the system's 64 KiB.
const PIPE_BYTES: usize = 1 << 20;
const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// Passes on what comes until both halves have ended. `moved` hears of each run of bytes, in either direction,
/// once it was passed on.
///
/// # Errors
/// As splice(2); both connections are then reset when they are dropped. They are so as well where this is
/// not waited for to its end, or the process is killed.
pub async fn join(
    one: &TcpStream,
    other: &TcpStream,
    moved: impl Fn(usize),
) -> std::io::Result<()> {
    let moved = &moved;
    for tcp in [one, other] {
        let _ = tcp.set_zero_linger();
    }
    tokio::try_join!(one_way(one, other, moved), one_way(other, one, moved))?;
    for tcp in [one, other] {
        let _ = SockRef::from(tcp).set_linger(None);
    }
    Ok(())
}

/// The pipe is empty before each read, so that a read that would block has waited for the socket.
async fn one_way(from: &TcpStream, to: &TcpStream, moved: &impl Fn(usize)) -> std::io::Result<()> {
    let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let _ = fcntl_setpipe_size(&input, PIPE_BYTES);
    loop {
        let fill = || move_bytes(from, &input, PIPE_BYTES);
        let mut held = from.async_io(Interest::READABLE, fill).await?;
        if held == 0 {
            return SockRef::from(to).shutdown(Shutdown::Write);
        }
        while held > 0 {
            let drain = || move_bytes(&output, to, held);
            let drained = to.async_io(Interest::WRITABLE, drain).await?;
            held -= drained;
            moved(drained);
        }
    }
}

fn move_bytes(from: impl AsFd, to: impl AsFd, bytes: usize) -> std::io::Result<usize> {
    Ok(splice(from, None, to, None, bytes, FLAGS)?)
}

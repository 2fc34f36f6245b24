//! Joins two connections. splice(2) moves the bytes from socket to socket without a copy to user
//! space.
//!
//! Each direction uses one pipe. The relay forwards the end of a half as an end, and a reset as a
//! reset. The caller decides which connections to join and how long they may be idle.

use std::net::Shutdown;
use std::os::fd::AsFd;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::base::open_files::{self, Use};

/// Size of a pipe in bytes. If the system refuses this size, the pipe keeps the default size of 64
/// KiB.
const PIPE_BYTES: usize = 1 << 20;
const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// Forwards bytes until both halves have ended. After each run of bytes in either direction, calls
/// `moved` with the length of the run.
///
/// # Errors
/// The error of splice(2), or the process has too few open files for the pipes. After an error, dropping the connections resets both connections. Both
/// connections are also reset if the future is dropped early or the process is killed.
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

/// Copies one direction. The pipe is empty before each read, so a read that would block waits for
/// the socket.
async fn one_way(from: &TcpStream, to: &TcpStream, moved: &impl Fn(usize)) -> std::io::Result<()> {
    let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    for end in [&output, &input] {
        open_files::check(end, Use::Carrier).map_err(std::io::Error::other)?;
    }
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

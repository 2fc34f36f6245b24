//! Streams of a load: each connection has a thread, which counts bytes.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::wire::{BULK_BYTES, Request};

/// Time-out of an operation of a load.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Connects and sends a request.
pub(super) fn open(to: SocketAddr, request: Request) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[request as u8])?;
    Ok(stream)
}

/// A thread's byte count, and the connection with which the thread is ended.
#[derive(Debug)]
pub(super) struct Moving {
    stream: TcpStream,
    bytes: Arc<AtomicU64>,
}

impl Moving {
    /// Reads and discards all bytes, on a thread.
    pub(super) fn reader(stream: TcpStream) -> Result<Self> {
        Self::start(stream, |stream, bytes| {
            let mut buffer = vec![0; BULK_BYTES];
            loop {
                match stream.read(&mut buffer)? {
                    0 => return Ok(()),
                    read => bytes.fetch_add(read as u64, Ordering::Relaxed),
                };
            }
        })
    }

    /// Writes without end, on a thread.
    pub(super) fn writer(stream: TcpStream) -> Result<Self> {
        Self::start(stream, |stream, bytes| {
            let buffer = vec![0x5a; BULK_BYTES];
            loop {
                let written = stream.write(&buffer)?;
                bytes.fetch_add(written as u64, Ordering::Relaxed);
            }
        })
    }

    fn start(
        stream: TcpStream,
        work: impl FnOnce(&mut TcpStream, &AtomicU64) -> io::Result<()> + Send + 'static,
    ) -> Result<Self> {
        let bytes = Arc::new(AtomicU64::new(0));
        let (mut own, counter) = (stream.try_clone()?, Arc::clone(&bytes));
        // The thread ends with the connection, and its result is ignored: the byte count shows if
        // the connection ended too early.
        thread::spawn(move || work(&mut own, &counter));
        Ok(Self { stream, bytes })
    }

    /// Bytes that the thread has read or written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        // An error means that the connection has already ended.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The rate of `count` over `time`, in 10^6 bit/s.
pub(super) fn rate_mbit_s(time: Duration, mut count: impl FnMut() -> Result<u64>) -> Result<f64> {
    let (start, before) = (Instant::now(), count()?);
    thread::sleep(time);
    let bytes = count()?.saturating_sub(before);
    Ok(bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e6)
}

/// A direct connection on which the server reports its received bytes.
#[derive(Debug)]
pub(super) struct Counter(TcpStream);

impl Counter {
    pub(super) fn open(server: SocketAddr) -> Result<Self> {
        open(server, Request::Count).map(Self)
    }

    /// Bytes that the server has received and discarded since its start, over all connections.
    pub(super) fn bytes(&mut self) -> Result<u64> {
        let mut answer = [0; 8];
        self.0.write_all(&[0])?;
        self.0
            .read_exact(&mut answer)
            .context("cannot read the server's count")?;
        Ok(u64::from_le_bytes(answer))
    }
}

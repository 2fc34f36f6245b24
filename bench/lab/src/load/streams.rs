//! Streams of a load: connections with a thread each, counted by the byte.

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

/// How long one operation may take before a load gives up.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Connects and asks for something.
pub(super) fn open(to: SocketAddr, request: Request) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(to).with_context(|| format!("connecting to {to}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[request as u8])?;
    Ok(stream)
}

/// What a thread has moved so far, and the connection by which it is ended.
#[derive(Debug)]
pub(super) struct Moving {
    stream: TcpStream,
    bytes: Arc<AtomicU64>,
}

impl Moving {
    /// Reads and discards all that comes, on a thread.
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

    /// Writes without an end, on a thread.
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
        // It ends with the connection; that one ended too early shows in the count.
        thread::spawn(move || work(&mut own, &counter));
        Ok(Self { stream, bytes })
    }

    /// Bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        // An error says that it has ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// What `count` counted within `time`, as 10^6 bit/s.
pub(super) fn rate_mbit_s(time: Duration, mut count: impl FnMut() -> Result<u64>) -> Result<f64> {
    let (start, before) = (Instant::now(), count()?);
    thread::sleep(time);
    let bytes = count()?.saturating_sub(before);
    Ok(bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e6)
}

/// A connection past the system under test, by which the server says what it received.
#[derive(Debug)]
pub(super) struct Counter(TcpStream);

impl Counter {
    pub(super) fn open(server: SocketAddr) -> Result<Self> {
        open(server, Request::Count).map(Self)
    }

    /// Bytes that the server has discarded since it began, of all connections together.
    pub(super) fn bytes(&mut self) -> Result<u64> {
        let mut answer = [0; 8];
        self.0.write_all(&[0])?;
        self.0
            .read_exact(&mut answer)
            .context("asking the server for its count")?;
        Ok(u64::from_le_bytes(answer))
    }
}

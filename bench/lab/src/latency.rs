//! The 64-byte ping-pong: one exchange after the other on one connection, each timed.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// Payload of one message, bytes.
pub(crate) const MESSAGE_BYTES: usize = 64;

/// Exchanges at the start of each connection that do not count.
const WARM_UP_EXCHANGES: u32 = 10;

/// The longest exchange that is told apart, in nanoseconds; also how long one may take.
const NANOSECONDS_MAX: u64 = 60_000_000_000;

/// An empty histogram of nanoseconds, 3 digits exact: 190 KiB.
///
/// # Errors
/// None with these bounds, in the words of `hdrhistogram`.
pub(crate) fn histogram() -> Result<Histogram<u64>, String> {
    Histogram::new_with_bounds(1, NANOSECONDS_MAX, 3).map_err(|error| error.to_string())
}

/// Answers every connection with what it sends, until the process ends.
pub(crate) fn echo(listener: &TcpListener) {
    for stream in listener.incoming().map_while(Result::ok) {
        // A connection that breaks is its client's to report.
        thread::spawn(move || echo_one(stream));
    }
}

fn echo_one(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            bytes => stream.write_all(&buffer[..bytes])?,
        }
    }
}

/// Makes `exchanges` timed exchanges with the echo server behind `port` and records them.
///
/// # Errors
/// When the connection fails, or an exchange takes a minute.
pub(crate) fn measure(port: u16, exchanges: u32, histogram: &mut Histogram<u64>) -> Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect(address).context("connecting")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_nanos(NANOSECONDS_MAX)))?;
    let mut message = [0x5a; MESSAGE_BYTES];
    for number in 0..WARM_UP_EXCHANGES + exchanges {
        let start = Instant::now();
        stream.write_all(&message)?;
        stream
            .read_exact(&mut message)
            .context("waiting for the echo")?;
        let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if number >= WARM_UP_EXCHANGES {
            histogram.saturating_record(nanoseconds);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exchange_but_the_warm_up_is_recorded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || echo(&listener));
        let mut histogram = histogram().unwrap();
        measure(port, 25, &mut histogram).unwrap();
        measure(port, 25, &mut histogram).unwrap();
        assert_eq!(histogram.len(), 50);
        assert!(histogram.min() > 0);
    }
}

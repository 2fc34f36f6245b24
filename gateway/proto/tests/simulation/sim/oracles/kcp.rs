//! A KCP connection that writes and reads, with a peer that sends anything.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use muxtunnel_proto::kcp::{Connection, Keepalive, Settings, opening};

/// Maximum number of datagrams that a connection may send at one moment.
const DATAGRAMS_MAX: u32 = 10_000;

/// Checks that no datagram causes a panic or an endless answer. The two bytes before each datagram of
/// the input are its length in words and a pause in milliseconds.
pub fn kcp(mut input: &[u8]) {
    let settings = Settings {
        send_bytes: 1 << 20,
        receive_bytes: 1 << 20,
    };
    let keepalive = Keepalive {
        dead_after: Duration::from_secs(15),
        interval: Duration::from_secs(5),
        retries: 2,
    };
    let mut now = Instant::now();
    let mut connection = Connection::new((0, 0), settings, keepalive, now, 0);
    while let Some((&[length, pause], rest)) = input.split_first_chunk() {
        now += Duration::from_millis(pause.into());
        let (datagram, rest) = rest.split_at(rest.len().min(usize::from(length) * 4));
        input = rest;
        let _ = opening(datagram);
        connection.handle(now, datagram);
        connection.handle_timeout(now);
        connection.write(&[IoSlice::new(&[0; 2000])]);
        connection.read(&mut [0; 1500]);
        let mut out = Vec::new();
        let mut datagrams = 0;
        while connection.poll_transmit(now, &mut out) {
            datagrams += 1;
            assert!(
                datagrams < DATAGRAMS_MAX,
                "the connection sends without end"
            );
        }
    }
}

//! Fuzzes a KCP connection that writes and reads. The input contains the peer's datagrams. The two
//! bytes before each datagram are its length and a pause.
#![cfg_attr(feature = "libfuzzer", no_main)]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the macro of libFuzzer uses files, and the test reads the clock once"
)]

use std::io::IoSlice;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use muxtunnel_proto::kcp::{Connection, Keepalive, Settings, opening};

fuzz_target!(|input: &[u8]| run(input));

fn run(mut input: &[u8]) {
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
            assert!(datagrams < 10_000, "the connection sends without end");
        }
    }
}

/// Without libFuzzer the target is only compiled.
#[cfg(not(feature = "libfuzzer"))]
fn main() {}

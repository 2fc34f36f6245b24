//! Anything, said as a WebSocket: a request for an upgrade, or frames.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("web_socket")(input));

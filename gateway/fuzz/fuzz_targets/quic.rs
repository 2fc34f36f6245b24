//! Anything, read as a word of the quic protocol.
#![cfg_attr(feature = "libfuzzer", no_main)]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("quic")(input));

/// Without libFuzzer it is compiled alone.
#[cfg(not(feature = "libfuzzer"))]
fn main() {}

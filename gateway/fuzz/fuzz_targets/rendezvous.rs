//! Fuzzes the parsers of messages and of openings of the rendezvous protocol.
#![cfg_attr(feature = "libfuzzer", no_main)]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("rendezvous")(input));

/// Without libFuzzer the target is only compiled.
#[cfg(not(feature = "libfuzzer"))]
fn main() {}

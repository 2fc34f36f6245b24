//! Fuzzes the response of a target through the HTTP forward proxy.
#![cfg_attr(feature = "libfuzzer", no_main)]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("response")(input));

/// Without libFuzzer the target is only compiled.
#[cfg(not(feature = "libfuzzer"))]
fn main() {}

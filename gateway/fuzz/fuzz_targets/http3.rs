//! Anything, read as fields, as frames with payload and as settings of HTTP/3.
#![cfg_attr(feature = "libfuzzer", no_main)]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("http3")(input));

/// Without libFuzzer it is compiled alone.
#[cfg(not(feature = "libfuzzer"))]
fn main() {}

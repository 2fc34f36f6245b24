//! Anything, read as a header of the PROXY protocol, version 2.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("proxy")(input));

//! Anything, said to a port that takes SOCKS, HTTP and what is for its target.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("detect")(input));

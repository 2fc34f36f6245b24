//! Anything, said to an HTTP proxy.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("http")(input));

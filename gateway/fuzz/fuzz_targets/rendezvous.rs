//! Anything, read as a word of the rendezvous protocol.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("rendezvous")(input));

//! Anything, read as a header of virtio-net and an IP packet.
#![cfg_attr(feature = "libfuzzer", no_main)]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("packet")(input));

/// Without libFuzzer it is compiled alone.
#[cfg(not(feature = "libfuzzer"))]
fn main() {}

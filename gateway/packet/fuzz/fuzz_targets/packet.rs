//! Anything, read as a virtio header and an IP packet.
#![cfg_attr(feature = "libfuzzer", no_main)]
#![allow(
    clippy::disallowed_types,
    reason = "the macro of libFuzzer uses files; the core does not"
)]

use libfuzzer_sys::fuzz_target;
use muxtunnel_packet::oracles;

fuzz_target!(|input: &[u8]| oracles::packet(input));

/// Without libFuzzer it is compiled alone.
#[cfg(not(feature = "libfuzzer"))]
fn main() {}

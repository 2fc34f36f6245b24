//! Fuzzes a KCP connection that writes and reads.
#![cfg_attr(feature = "libfuzzer", no_main)]
#![allow(
    clippy::disallowed_types,
    reason = "the macro of libFuzzer uses files; the core does not"
)]

use libfuzzer_sys::fuzz_target;
use muxtunnel_proto_fuzz::sim::oracles;

fuzz_target!(|input: &[u8]| oracles::kcp(input));

/// Without libFuzzer the target is only compiled.
#[cfg(not(feature = "libfuzzer"))]
fn main() {}

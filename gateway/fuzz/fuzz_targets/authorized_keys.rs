//! Anything, read as a file of keys that may log in by SSH.
#![cfg_attr(feature = "libfuzzer", no_main)]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("authorized_keys")(input));

/// Without libFuzzer it is compiled alone.
#[cfg(not(feature = "libfuzzer"))]
fn main() {}

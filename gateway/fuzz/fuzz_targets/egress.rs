//! Fuzzes the answers of HTTP and SOCKS5 proxies through which a gateway dials.
#![cfg_attr(feature = "libfuzzer", no_main)]

use libfuzzer_sys::fuzz_target;
use muxgate::oracles::named;

fuzz_target!(|input: &[u8]| named("egress")(input));

/// Without libFuzzer the target is only compiled.
#[cfg(not(feature = "libfuzzer"))]
fn main() {}

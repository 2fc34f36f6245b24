//! muxwan: WAN emulation.
fn main() {}

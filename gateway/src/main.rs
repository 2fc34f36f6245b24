//! muxgate: the mux proxy.
fn main() {}

//! The MuxTunnel operator.
fn main() {}

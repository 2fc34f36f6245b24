//! muxbench: the iperf matrix runner and its agents.
fn main() {}

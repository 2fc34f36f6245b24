//! The data plane measured alone, on loopback and in network namespaces.
fn main() {}

//! What tests of whole reconciliations stand on: the API server in memory, and what only the operator knows of its own
//! around it. Where the tests without private items begin with the same, it is theirs.

#[path = "../tests/operator/fixtures/benchmark.rs"]
pub(crate) mod benchmark;
pub(crate) mod kubelet;
pub(crate) mod loopback;
#[path = "../tests/operator/fixtures/tunnel.rs"]
pub(crate) mod tunnel;
pub(crate) mod watching;

pub(crate) use muxtunnel_testkit::api_server::{Failure, FakeApi, Trouble};

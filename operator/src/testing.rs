//! Helpers for tests of whole reconciliations: the API server in memory, and the fakes that only
//! the operator's own tests need.

#[path = "../tests/operator/fixtures/benchmark.rs"]
pub(crate) mod benchmark;
pub(crate) mod health;
pub(crate) mod kubelet;
pub(crate) mod loopback;
#[path = "../tests/operator/fixtures/tunnel.rs"]
pub(crate) mod tunnel;
pub(crate) mod watching;

pub(crate) use muxtunnel_testkit::api_server::{Failure, FakeApi, Trouble};

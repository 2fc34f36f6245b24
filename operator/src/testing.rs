//! What tests of whole reconciliations stand on: the API server in memory, and what only the operator knows of its own
//! around it.

pub(crate) mod kubelet;
pub(crate) mod loopback;
pub(crate) mod watching;

pub(crate) use muxtunnel_testkit::api_server::{Failure, FakeApi, Trouble};

//! What the tests in the kind cluster share.
//!
//! Owns: a namespace for each test that is dumped when the test fails and deleted at its end
//! ([`namespace`]), waiting with deadlines ([`wait`]), pods that serve and pods that run to their end
//! ([`pods`]), which tests run side by side ([`turn`]), the resources under test ([`tunnel`], [`benchmark`]), what of them is refused ([`admission`]), and what is
//! done to them ([`faults`]).
//! Comes in: `KUBECONFIG`, a cluster with the chart installed (`make install`), a second one where something
//! crosses clusters (`make second`), `kubectl`, `helm` and `docker` on the PATH. It must not reach into the operator's or a gateway's code: what it sees is what a user sees.
//! Where to read next: `tests/e2e/main.rs`, the list of tests.

pub mod admission;
pub mod benchmark;
pub mod cluster;
pub mod faults;
pub mod keys;
pub mod namespace;
pub mod operator;
pub mod page;
pub mod pods;
pub mod tools;
pub mod tunnel;
pub mod turn;
pub mod wait;

pub use cluster::Cluster;
pub use namespace::{
    PodSecurity, TestNamespace, none_is_deleted, with_temp_ns, with_temp_ns_in,
    with_temp_ns_in_both,
};

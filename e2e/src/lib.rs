//! Shared code of the tests in the kind clusters.
//!
//! The crate contains:
//! - a namespace for each test ([`namespace`]): if the test fails, its state is printed, and at the
//!   end it is deleted
//! - waiting with deadlines ([`wait`])
//! - server and client pods ([`pods`]), and programs in the pods of gateways ([`debug`])
//! - the turns that decide which tests run in parallel ([`turn`])
//! - the resources under test ([`tunnel`], [`benchmark`])
//! - gateways with a moved clock ([`clock`])
//! - the kinds of objects ([`definitions`])
//! - refused objects ([`admission`])
//! - faults ([`faults`])
//!
//! The crate requires `KUBECONFIG`, a cluster with the installed chart (`make install`), and
//! `kubectl`, `helm` and `docker` on the PATH. Tests across clusters also require a second cluster
//! (`make second`). The crate must not use code of the operator or of a gateway, because the tests
//! use only the interfaces that a user has. See `tests/e2e/main.rs` for the tests.

pub mod admission;
pub mod benchmark;
pub mod clock;
pub mod cluster;
pub mod debug;
pub mod definitions;
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

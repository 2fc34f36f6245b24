//! Fixtures of these tests and of the tests of private items in `src`.

pub(crate) mod benchmark;
pub(crate) mod tunnel;

//! What tests here and those of private items, in `src`, begin with.

pub(crate) mod benchmark;
pub(crate) mod tunnel;

//! Messages between the operator, the benchmark runner and its agents.

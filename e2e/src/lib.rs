//! Tests in a kind cluster.

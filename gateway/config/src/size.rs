//! Byte sizes in the format of Kubernetes: `64Mi`, `1Gi`, `1048576`.

use crate::text::quantity;

/// A number of bytes. Text form: an integer with an optional suffix `Ki`, `Mi`, `Gi`
/// (resource.Quantity's binary suffixes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(
    /// The number of bytes.
    pub u64,
);

const SUFFIXES: [(&str, u64); 3] = [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];

quantity!(ByteSize, SUFFIXES, "a size such as 64Mi, 1Gi or 1048576");

//! Files of the checkout that are generated: a test compares them, and writes them where it is told to.

use std::fs;
use std::path::{Path, PathBuf};

/// A path of the checkout.
#[must_use]
pub fn checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Compares the file at `path` of the checkout with `wanted`; with the environment variable `update` it is written.
pub fn compare(path: &str, wanted: &str, update: &str) {
    if std::env::var_os(update).is_some() {
        fs::write(checkout(path), wanted).unwrap();
    }
    let found = fs::read_to_string(checkout(path)).unwrap_or_default();
    assert!(
        found == wanted,
        "{path} is stale; {update}=1 writes it:\n{wanted}"
    );
}

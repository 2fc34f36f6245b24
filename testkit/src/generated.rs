//! Generated files of the checkout. A test compares a generated file with the text that its source
//! gives. If an environment variable is set, the test first writes the file.

use std::fs;
use std::path::{Path, PathBuf};

/// An absolute path of a file of the checkout.
#[must_use]
pub fn checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Compares the file at `path` of the checkout with `wanted`. If the environment variable `update`
/// is set, first writes `wanted` to the file.
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

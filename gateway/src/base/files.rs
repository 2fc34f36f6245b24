//! Small files that the configuration names: of keys, certificates, secrets. Read whole, and followed.
//!
//! What is read may be secret, so it is wiped from memory once it is dropped, and no error shows any of it. What is
//! kept to see changes is a digest.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muxtunnel_codes::Code;
use sha2::{Digest, Sha256};
use tokio::time::MissedTickBehavior;
use zeroize::Zeroizing;

/// Largest file, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Pause between two reads of the files, as for the configuration.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}: {problem}", Code::CredentialsInvalid, path.display())]
pub(crate) struct Unusable {
    path: PathBuf,
    problem: String,
}

impl Unusable {
    pub(crate) fn new(path: &Path, problem: impl ToString) -> Self {
        Self {
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }
}

/// All bytes of a file.
///
/// # Errors
/// [`Unusable`]: it cannot be read, or is too large.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Unusable> {
    let load = || {
        let file = std::fs::File::open(path)?;
        // A vector that grows leaves copies behind: there is room for all from the first.
        let length = file.metadata()?.len().min(FILE_BYTES_MAX);
        let mut bytes = Zeroizing::new(Vec::with_capacity(length as usize + 64));
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        std::io::Result::Ok(bytes)
    };
    let bytes = load().map_err(|error| Unusable::new(path, error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let problem = format!("larger than {FILE_BYTES_MAX} bytes");
        return Err(Unusable::new(path, problem));
    }
    Ok(bytes)
}

/// The same where it is text.
///
/// # Errors
/// As [`read`]; it is not UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<Zeroizing<String>, Unusable> {
    let mut bytes = read(path)?;
    String::from_utf8(std::mem::take(&mut *bytes))
        .map(Zeroizing::new)
        .map_err(|error| {
            drop(Zeroizing::new(error.into_bytes()));
            Unusable::new(path, "not text in UTF-8")
        })
}

/// Calls `changed` each time that one of `files` has, for ever.
pub(crate) async fn follow(files: &[PathBuf], mut changed: impl FnMut()) {
    if files.is_empty() {
        return std::future::pending().await;
    }
    let read_all = || -> Vec<Option<[u8; 32]>> {
        let digest = |path: &PathBuf| Some(Sha256::digest(read(path).ok()?).into());
        files.iter().map(digest).collect()
    };
    let mut seen = read_all();
    let mut interval = tokio::time::interval(POLL_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let found = read_all();
        if found != seen {
            seen = found;
            changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_is_named_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        let missing = read(&file).unwrap_err().to_string();
        assert!(
            missing.contains("MT0231") && missing.contains("/secret"),
            "{missing}"
        );
        std::fs::write(&file, b"hunter2\xff").unwrap();
        assert_eq!(&**read(&file).unwrap(), b"hunter2\xff");
        let error = read_text(&file).unwrap_err();
        assert!(
            !format!("{error} {error:?}").contains("hunter"),
            "{error:?}"
        );
        std::fs::write(&file, vec![b'x'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("larger than"));
    }
}

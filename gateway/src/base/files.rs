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

/// Files, and what was in them when they were looked at last.
///
/// A user of their content looks first and reads afterwards, and so reads again after a change between the two. The other
/// order would miss that change for ever.
#[derive(Debug, Clone)]
pub(crate) struct FollowedFiles {
    paths: Vec<PathBuf>,
    /// A digest each; `None`: it could not be read.
    seen: Vec<Option<[u8; 32]>>,
}

impl FollowedFiles {
    /// Looks at them, before they are read for use.
    pub(crate) fn look(paths: &[&Path]) -> Self {
        let paths: Vec<_> = paths.iter().map(|path| (*path).to_owned()).collect();
        let seen = digests(&paths);
        Self { paths, seen }
    }

    /// Calls `changed` each time that one of them has, for ever.
    pub(crate) async fn follow(&mut self, mut changed: impl FnMut()) {
        if self.paths.is_empty() {
            return std::future::pending().await;
        }
        let mut interval = tokio::time::interval(POLL_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let found = digests(&self.paths);
            if found != self.seen {
                self.seen = found;
                changed();
            }
        }
    }
}

fn digests(paths: &[PathBuf]) -> Vec<Option<[u8; 32]>> {
    let digest = |path: &PathBuf| Some(Sha256::digest(read(path).ok()?).into());
    paths.iter().map(digest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_between_the_first_look_and_the_following_is_noticed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one").unwrap();
        let mut files = FollowedFiles::look(&[file.path()]);
        std::fs::write(file.path(), "two").unwrap();
        let mut changes = 0;
        let followed = files.follow(|| changes += 1);
        let _ = tokio::time::timeout(3 * POLL_INTERVAL, followed).await;
        // A follower that stops and goes on misses no change and reports none twice.
        let followed = files.follow(|| changes += 1);
        let _ = tokio::time::timeout(3 * POLL_INTERVAL, followed).await;
        std::fs::write(file.path(), "three").unwrap();
        let followed = files.follow(|| changes += 1);
        let _ = tokio::time::timeout(3 * POLL_INTERVAL, followed).await;
        assert_eq!(changes, 2);
    }

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

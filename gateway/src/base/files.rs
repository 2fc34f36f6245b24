//! Small files that the configuration specifies: keys, certificates and secrets. The gateway reads
//! the files completely and watches them for changes.
//!
//! The content may be secret. Dropping the content wipes it from memory, and errors never contain
//! the content. To detect changes, the gateway keeps only a digest of each file.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::FileUse;
use sha2::{Digest, Sha256};
use tokio::time::MissedTickBehavior;
use zeroize::Zeroizing;

use crate::base::file_states::FileStates;

/// Maximum size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Pause between two reads of the files. The configuration file is read at the same interval.
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

/// Reads all bytes of a file.
///
/// # Errors
/// [`Unusable`]: the file cannot be read, or is too large.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Unusable> {
    let load = || {
        let file = std::fs::File::open(path)?;
        // A growing vector would leave copies in memory, so this vector has its full capacity from
        // the start.
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

/// Reads a text file.
///
/// # Errors
/// The error of [`read`], or the file is not UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<Zeroizing<String>, Unusable> {
    let mut bytes = read(path)?;
    String::from_utf8(std::mem::take(&mut *bytes))
        .map(Zeroizing::new)
        .map_err(|error| {
            drop(Zeroizing::new(error.into_bytes()));
            Unusable::new(path, "not text in UTF-8")
        })
}

/// Watched files that are used together, and a digest of their contents at the last check.
///
/// Take the digests first, then read the files for use. In this order, a change between the two
/// steps is reported later. In the reverse order, the change is never reported.
#[derive(Debug, Clone)]
pub(crate) struct FollowedFiles {
    purpose: FileUse,
    paths: Vec<PathBuf>,
    /// One digest per file; `None`: the file could not be read.
    seen: Vec<Option<[u8; 32]>>,
    /// The digests of the contents in force.
    in_force: Vec<Option<[u8; 32]>>,
}

impl FollowedFiles {
    /// Takes the digests. Call this function before you read the files for use.
    pub(crate) fn look(purpose: FileUse, paths: &[&Path]) -> Self {
        let paths: Vec<_> = paths.iter().map(|path| (*path).to_owned()).collect();
        let seen = digests(&paths);
        Self {
            purpose,
            paths,
            in_force: seen.clone(),
            seen,
        }
    }

    /// Publishes the states of the files, after the owner of the files has read them with this
    /// result. If the result is an error, the contents in force stay in force, and each file that
    /// differs from its content in force has the error.
    pub(crate) fn publish<E: std::fmt::Display>(
        &mut self,
        states: &FileStates,
        result: &Result<(), E>,
    ) {
        if result.is_ok() {
            self.in_force.clone_from(&self.seen);
        }
        for ((path, seen), in_force) in self.paths.iter().zip(&self.seen).zip(&self.in_force) {
            let error = result.as_ref().err();
            let error = error.filter(|_| seen.is_none() || seen != in_force);
            states.set(self.purpose, path, error.map(ToString::to_string));
        }
    }

    /// Calls `read_again` each time one of the files has changed, and publishes the states of the
    /// files; never returns.
    pub(crate) async fn follow<E: std::fmt::Display>(
        &mut self,
        states: &FileStates,
        mut read_again: impl FnMut() -> Result<(), E>,
    ) {
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
                self.publish(states, &read_again());
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
        let mut files = FollowedFiles::look(FileUse::Credentials, &[file.path()]);
        std::fs::write(file.path(), "two").unwrap();
        let (states, mut changes) = (FileStates::default(), 0);
        let mut changed = || {
            changes += 1;
            Ok::<_, String>(())
        };
        let followed = files.follow(&states, &mut changed);
        let _ = tokio::time::timeout(3 * POLL_INTERVAL, followed).await;
        // A watch that is stopped and continued reports each change exactly once.
        let followed = files.follow(&states, &mut changed);
        let _ = tokio::time::timeout(3 * POLL_INTERVAL, followed).await;
        std::fs::write(file.path(), "three").unwrap();
        let followed = files.follow(&states, &mut changed);
        let _ = tokio::time::timeout(3 * POLL_INTERVAL, followed).await;
        assert_eq!(changes, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_whose_newest_content_is_not_in_force_has_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let [key, ca] = ["key", "ca"].map(|name| dir.path().join(name));
        std::fs::write(&key, "good").unwrap();
        std::fs::write(&ca, "good").unwrap();
        let mut files = FollowedFiles::look(FileUse::Credentials, &[&key, &ca]);
        let states = FileStates::default();
        files.publish(&states, &Ok::<_, String>(()));
        let read_again = || match std::fs::read(&key) {
            Ok(text) if text == b"good" => Ok(()),
            _ => Err("the key is bad"),
        };
        let mut errors = async || {
            let followed = files.follow(&states, read_again);
            let _ = tokio::time::timeout(3 * POLL_INTERVAL, followed).await;
            let status = states.status();
            let error = |path: &Path| {
                let path = path.display().to_string();
                let file = status.iter().find(|file| file.path == path).unwrap();
                file.error.clone()
            };
            (error(&key), error(&ca))
        };
        let bad = || Some("the key is bad".to_owned());
        assert_eq!(errors().await, (None, None));
        std::fs::write(&key, "bad").unwrap();
        assert_eq!(errors().await, (bad(), None));
        // A file that changes together with an unusable file is not in force either.
        std::fs::write(&ca, "newer").unwrap();
        assert_eq!(errors().await, (bad(), bad()));
        std::fs::remove_file(&key).unwrap();
        assert_eq!(errors().await, (bad(), bad()));
        std::fs::write(&key, "good").unwrap();
        assert_eq!(errors().await, (None, None));
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

//! The state of each file that the gateway follows, for `/status` and the metrics.
//!
//! Bounds: one entry for each file and use in the configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use muxtunnel_gateway_config::status::{File, FileUse};
use parking_lot::Mutex;

/// For each file, why its newest content is not in force. `None`: the newest content is in force.
#[derive(Debug, Default)]
pub(crate) struct FileStates(Mutex<BTreeMap<(FileUse, PathBuf), Option<String>>>);

impl FileStates {
    /// Sets the state of a file.
    pub(crate) fn set(&self, purpose: FileUse, path: &Path, error: Option<String>) {
        self.0.lock().insert((purpose, path.to_owned()), error);
    }

    /// Replaces all files of one use.
    pub(crate) fn replace(
        &self,
        purpose: FileUse,
        files: impl IntoIterator<Item = (PathBuf, Option<String>)>,
    ) {
        let mut states = self.0.lock();
        states.retain(|(known, _), _| *known != purpose);
        for (path, error) in files {
            // Several forwards may use parts of one file.
            let state = states.entry((purpose, path)).or_default();
            *state = state.take().or(error);
        }
    }

    /// The states as `/status` reports them.
    pub(crate) fn status(&self) -> Vec<File> {
        let states = self.0.lock();
        let file = |((purpose, path), error): (&(FileUse, PathBuf), &Option<String>)| File {
            path: path.display().to_string(),
            purpose: *purpose,
            error: error.clone(),
        };
        states.iter().map(file).collect()
    }
}

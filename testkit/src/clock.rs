//! Moves the system's time of a program, in either direction and while the program runs.
//!
//! The program preloads a library that adds an offset to CLOCK_REALTIME. Linux has no namespace for
//! this clock. The monotonic clock is unchanged.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that names the file with the offset in seconds.
pub const FILE_VARIABLE: &str = "MUXTUNNEL_TEST_CLOCK";
/// The variable that names the library.
pub const LIBRARY_VARIABLE: &str = "LD_PRELOAD";
/// Seconds of a day.
pub const DAY_SECONDS: i64 = 86_400;

/// Compiles the library in `folder`. Returns its path.
///
/// # Panics
/// If no C compiler is installed, or the library does not compile.
#[must_use]
pub fn library(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    std::fs::write(&source, include_str!("clock.c")).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
    let compiled = compiler.arg(&library).arg(&source).output();
    let compiled = compiled.expect("cc is needed: apt-get install gcc");
    assert!(compiled.status.success(), "{compiled:?}");
    library
}

/// The system's time of some programs.
#[derive(Debug)]
pub struct Clock(PathBuf);

impl Clock {
    /// A clock in `folder` that is right.
    #[must_use]
    pub fn new(folder: &Path, name: &str) -> Self {
        let clock = Self(folder.join(name));
        clock.set(0);
        clock
    }

    /// Moves the clock to this many days from the right time.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn set(&self, days: i64) {
        let staged = self.0.with_extension("staged");
        std::fs::write(&staged, (days * DAY_SECONDS).to_string()).unwrap();
        std::fs::rename(staged, &self.0).unwrap();
    }

    /// The environment of a program with this clock.
    ///
    /// # Panics
    /// If a path is not UTF-8.
    #[must_use]
    pub fn environment<'a>(&'a self, library: &'a Path) -> [(&'static str, &'a str); 2] {
        [
            (LIBRARY_VARIABLE, library.to_str().unwrap()),
            (FILE_VARIABLE, self.0.to_str().unwrap()),
        ]
    }
}

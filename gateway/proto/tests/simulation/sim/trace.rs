//! A hash of all actions of a run, to compare two runs of one seed. A replay of a single run prints
//! the actions line by line.

use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};

#[derive(Default)]
pub struct Trace {
    hasher: DefaultHasher,
    pub printed: bool,
}

impl Trace {
    pub fn note(&mut self, line: fmt::Arguments<'_>) {
        if self.printed {
            eprintln!("{line}");
        }
        // A write into a hasher cannot fail.
        let _ = self.write_fmt(line);
    }

    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }
}

impl Write for Trace {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.hasher.write(text.as_bytes());
        Ok(())
    }
}

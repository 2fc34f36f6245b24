//! Who is served: user names and passwords of a file.
//!
//! The file is read when a forward begins to listen, and again when a client says who it is and the file
//! has changed. One that cannot be read any more leaves those who were known. Bounds: 64 KiB.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::rc::Rc;
use std::time::SystemTime;

use muxtunnel_gateway_config::Auth;
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

use super::Judge;

/// Largest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Longest user name and longest password, bytes: what SOCKS5 can say (RFC 1929).
const TEXT_BYTES_MAX: usize = 255;

/// Those of one forward.
pub(crate) struct Users {
    auth: Auth,
    known: RefCell<Known>,
}

struct Known {
    version: Version,
    users: Vec<User>,
}

struct User {
    name: Vec<u8>,
    password: Zeroizing<Vec<u8>>,
}

/// When the file was written, and how long it is.
type Version = (Option<SystemTime>, u64);

/// Why a file of users cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsersError {
    #[error("{path} cannot be read: {source}")]
    Read {
        path: String,
        source: std::io::Error,
    },
    #[error("{path}: {problem}")]
    Content { path: String, problem: String },
}

impl Users {
    /// # Errors
    /// [`UsersError`]: the file cannot be read, or what is in it is not what is expected.
    pub(crate) fn new(auth: &Auth) -> Result<Rc<Self>, UsersError> {
        Ok(Rc::new(Self {
            auth: auth.clone(),
            known: RefCell::new(read(auth)?),
        }))
    }

    /// Where they are.
    pub(crate) fn auth(&self) -> &Auth {
        &self.auth
    }

    /// Takes over a file that has changed; one that cannot be used is looked at once.
    fn refresh(&self) {
        let file = std::fs::metadata(path(&self.auth));
        let Ok(version) = file.map(|file| (file.modified().ok(), file.len())) else {
            return;
        };
        if version == self.known.borrow().version {
            return;
        }
        match read(&self.auth) {
            Ok(known) => drop(self.known.replace(known)),
            Err(error) => {
                self.known.borrow_mut().version = version;
                tracing::warn!(%error, "The users of a forward stay as they were");
            }
        }
    }
}

impl Judge for Users {
    fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        self.refresh();
        let known = self.known.borrow();
        let any = known.users.iter().fold(Choice::from(0), |any, one| {
            any | one.name.ct_eq(user) & one.password.as_slice().ct_eq(password)
        });
        any.into()
    }
}

/// Nothing of a password.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").finish_non_exhaustive()
    }
}

fn path(auth: &Auth) -> &str {
    match auth {
        Auth::User { password_file, .. } => password_file,
        Auth::UsersFile(path) => path,
    }
}

fn read(auth: &Auth) -> Result<Known, UsersError> {
    let path = path(auth);
    let load = || {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        // Text that grows leaves copies behind: there is room for all from the first.
        let length = metadata.len().min(FILE_BYTES_MAX) as usize;
        let mut text = Zeroizing::new(String::with_capacity(length + 64));
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        std::io::Result::Ok(((metadata.modified().ok(), metadata.len()), text))
    };
    let (version, text) = load().map_err(|source| UsersError::Read {
        path: path.to_owned(),
        source,
    })?;
    let content = |problem: String| UsersError::Content {
        path: path.to_owned(),
        problem,
    };
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(content(format!("has more than {FILE_BYTES_MAX} bytes")));
    }
    let users = match auth {
        Auth::User { name, .. } => vec![user(name, text.trim_end_matches(['\r', '\n']))],
        Auth::UsersFile(_) => parse(&text),
    };
    let users: Option<Vec<User>> = users.into_iter().collect();
    match users {
        Some(users) if !users.is_empty() => Ok(Known { version, users }),
        Some(_) => Err(content("names no user".to_owned())),
        None => Err(content(format!(
            "is not name:password in each line, or has a name or a password that is not of 1 to {TEXT_BYTES_MAX} bytes"
        ))),
    }
}

fn parse(text: &str) -> Vec<Option<User>> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            line.split_once(':')
                .and_then(|(name, password)| user(name, password))
        })
        .collect()
}

fn user(name: &str, password: &str) -> Option<User> {
    let fits = |text: &str| (1..=TEXT_BYTES_MAX).contains(&text.len());
    (fits(name) && fits(password)).then(|| User {
        name: name.into(),
        password: Zeroizing::new(password.into()),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn of_file(file: &tempfile::NamedTempFile) -> Auth {
        Auth::UsersFile(file.path().to_str().unwrap().to_owned())
    }

    #[test]
    fn a_user_is_known_by_its_own_password_alone() {
        let file = file("# who\nalice:one:two\n\nbob:three\n");
        let users = Users::new(&of_file(&file)).unwrap();
        assert!(users.knows(b"alice", b"one:two") && users.knows(b"bob", b"three"));
        for (user, password) in [
            ("alice", "three"),
            ("alice", "one"),
            ("# who", ""),
            ("", ""),
        ] {
            assert!(
                !users.knows(user.as_bytes(), password.as_bytes()),
                "{user}:{password}"
            );
        }
    }

    #[test]
    fn a_password_file_may_end_its_line() {
        let file = file("secret\r\n");
        let auth = Auth::User {
            name: "alice".to_owned(),
            password_file: file.path().to_str().unwrap().to_owned(),
        };
        let users = Users::new(&auth).unwrap();
        assert!(users.knows(b"alice", b"secret") && !users.knows(b"alice", b"secret\n"));
    }

    #[test]
    fn a_changed_file_counts_and_a_broken_one_changes_nothing() {
        let mut file = file("alice:one\n");
        let users = Users::new(&of_file(&file)).unwrap();
        file.write_all(b"bob:two\n").unwrap();
        assert!(users.knows(b"alice", b"one") && users.knows(b"bob", b"two"));
        file.write_all(b"no colon\n").unwrap();
        assert!(users.knows(b"alice", b"one"));
        let looked_at = std::fs::metadata(file.path()).unwrap();
        assert_eq!(
            users.known.borrow().version,
            (looked_at.modified().ok(), looked_at.len())
        );
        std::fs::remove_file(file.path()).unwrap();
        assert!(users.knows(b"bob", b"two"));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_an_error_without_its_content() {
        for (text, expected) in [
            ("", "names no user"),
            ("secret", "is not name:password"),
            ("alice:", "is not name:password"),
            (&"a:b\n".repeat(20_000), "more than 65536 bytes"),
        ] {
            let error = Users::new(&of_file(&file(text))).unwrap_err().to_string();
            assert!(
                error.contains(expected) && !error.contains("secret"),
                "{error}"
            );
        }
        let missing = Auth::UsersFile("/no/such/file".to_owned());
        let error = Users::new(&missing).unwrap_err().to_string();
        assert!(error.contains("/no/such/file cannot be read"), "{error}");
    }
}

//! Authentication of clients by a file of user names and passwords.
//!
//! The file is read when a forward begins to listen, and when a client authenticates after the file
//! has changed. If the file becomes invalid, the previous users remain in force. All workers share
//! the parsed file. A password in the file is a bcrypt [`hash`] or plain text. The log warns about
//! plain text. The threads of the [`verifier`] verify hashes, so a client's [`Authentication`] may
//! have to wait. A verified password is cached until the file is read again, as a digest with a
//! random key. Bounds: 64 KiB for the file, and one cached digest per user.

mod hash;
mod verifier;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};

use hmac::{Hmac, KeyInit, Mac};
use muxtunnel_gateway_config::Auth;
use parking_lot::{Mutex, MutexGuard};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};
use tokio::time::Instant;
use zeroize::Zeroizing;

use self::hash::Hash;
use self::verifier::{Digest, Verifier};
use super::{Authenticator, Verdict};

/// Maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Maximum length of a user name and of a password, in bytes (SOCKS5, RFC 1929).
const TEXT_BYTES_MAX: usize = 255;

static VERIFIER: Verifier = Verifier::new();
/// The parsed files, by path and, for a file with a single password, by user. The number of
/// forwards that use files bounds the number of parsed files.
static SHARED: Mutex<Shared> = Mutex::new(BTreeMap::new());

type Shared = BTreeMap<Key, Weak<Known>>;
type Key = (String, Option<String>);

/// The users of one forward.
pub(crate) struct Users {
    auth: Auth,
    known: RefCell<Arc<Known>>,
    /// The version of the file at the last check.
    version: Cell<Version>,
    verifier: &'static Verifier,
}

/// The result of reading the file once.
struct Known {
    version: Version,
    users: Vec<User>,
    /// The highest cost of the file's hashes; `None`: all passwords are plain text.
    cost: Option<u32>,
    /// Computes digests with a random key.
    mac: Hmac<Sha256>,
}

struct User {
    name: Vec<u8>,
    password: Password,
}

enum Password {
    Plain(Zeroizing<Vec<u8>>),
    Hashed {
        hash: Hash,
        /// Digest of the user name and the password, set after the first successful verification.
        verified: OnceLock<Digest>,
    },
}

/// Identifies the content of a file. The value changes if the file is overwritten or replaced, even
/// by a file of the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    file: (u64, u64),
    changed: (i64, i64),
    length: u64,
}

impl From<&Metadata> for Version {
    fn from(file: &Metadata) -> Self {
        Self {
            file: (file.dev(), file.ino()),
            changed: (file.ctime(), file.ctime_nsec()),
            length: file.len(),
        }
    }
}

/// Why a users file is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsersError {
    #[error("cannot read {path}: {source}")]
    Read {
        path: String,
        source: std::io::Error,
    },
    #[error("{path}: {problem}")]
    Content { path: String, problem: String },
    /// A problem in the line `line`, counted from 1.
    #[error("{path}:{line}: {problem}")]
    Line {
        path: String,
        line: usize,
        problem: String,
    },
}

/// The users of a file that another thread than the workers has read. While the value exists, the
/// workers need not parse this version of the file again.
pub(crate) struct CheckedUsers(#[expect(dead_code, reason = "shared")] Arc<Known>);

impl CheckedUsers {
    /// # Errors
    /// [`UsersError`]: the file cannot be read, or its content is invalid.
    pub(crate) fn of(auth: &Auth) -> Result<Self, UsersError> {
        load(auth).map(Self)
    }
}

impl Users {
    /// # Errors
    /// [`UsersError`]: the file cannot be read, or its content is invalid.
    pub(crate) fn new(auth: &Auth) -> Result<Rc<Self>, UsersError> {
        Self::with(auth, &VERIFIER).map(Rc::new)
    }

    fn with(auth: &Auth, verifier: &'static Verifier) -> Result<Self, UsersError> {
        let known = load(auth)?;
        Ok(Self {
            auth: auth.clone(),
            version: known.version.into(),
            known: RefCell::new(known),
            verifier,
        })
    }

    /// The configuration of the users.
    pub(crate) fn auth(&self) -> &Auth {
        &self.auth
    }

    /// Starts the authentication of one client.
    pub(super) fn authentication(&self) -> Authentication<'_> {
        Authentication {
            users: self,
            pending: RefCell::default(),
            decided: Cell::default(),
        }
    }

    /// The users of the current file. If the current version of the file is invalid, the function
    /// reads this version only once, and returns the users of the last valid version.
    fn known(&self) -> Arc<Known> {
        let newest = match std::fs::metadata(self.auth.path())
            .as_ref()
            .map(Version::from)
        {
            Ok(version) if version == self.version.replace(version) => None,
            Ok(_) => load(&self.auth)
                .inspect_err(|error| {
                    tracing::warn!(%error, "Cannot reload the users of a forward; the previous users remain in force");
                })
                .ok()
                .or_else(|| newest(&self.auth)),
            Err(_) => newest(&self.auth),
        };
        if let Some(newest) = newest {
            self.known.replace(newest);
        }
        Arc::clone(&self.known.borrow())
    }
}

/// Omits the passwords.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").finish_non_exhaustive()
    }
}

/// The authentication of one client against the users of its forward.
pub(super) struct Authentication<'a> {
    users: &'a Users,
    /// The user name and password that have to be verified.
    pending: RefCell<Option<Claim>>,
    /// The result of the last verification, until `authenticate` has returned it.
    decided: Cell<Option<(Digest, Verdict)>>,
}

impl Authentication<'_> {
    /// Verifies the user name and password for which the authenticator returned
    /// [`Verdict::Pending`], until the time `until` at the latest. Afterwards, `authenticate`
    /// returns the verdict for them.
    pub(super) async fn verify(&self, until: Instant) {
        let Some(claim) = self.pending.take() else {
            return;
        };
        let digest = claim.digest;
        let verifier = self.users.verifier;
        let verdict = verifier.verdict(digest, move || claim.is_right(), until);
        self.decided.set(Some((digest, verdict.await)));
    }
}

impl Authenticator for Authentication<'_> {
    fn authenticate(&self, user: &[u8], password: &[u8]) -> Verdict {
        let claim = match Known::verify(&self.users.known(), user, password) {
            Ok(true) => return Verdict::Known,
            Ok(false) => return Verdict::Wrong,
            Err(claim) => claim,
        };
        match self.decided.take() {
            Some((digest, verdict)) if digest == claim.digest => verdict,
            _ => {
                self.pending.replace(Some(claim));
                Verdict::Pending
            }
        }
    }
}

/// A user name and a password that are not verified yet.
struct Claim {
    known: Arc<Known>,
    digest: Digest,
    /// Index of the user with this name.
    user: Option<usize>,
    password: Zeroizing<Vec<u8>>,
}

impl Claim {
    /// Verifies the claim. The verification takes the time of the highest cost in the file,
    /// regardless of whether the user name or the password is wrong.
    fn is_right(&self) -> bool {
        let highest = self.known.cost.unwrap_or_default();
        let user = self.user.and_then(|user| self.known.users.get(user));
        let mut own = None;
        if let Some(Password::Hashed { hash, verified }) = user.map(|user| &user.password) {
            if hash.is_of(&self.password) {
                // Another client may have verified the same password earlier.
                let _ = verified.set(self.digest);
                return true;
            }
            own = Some(hash.cost);
        }
        hash::spend(&self.password, hash::rest(own, highest));
        false
    }
}

impl Known {
    fn new(version: Version, users: Vec<User>) -> Self {
        let costs = users.iter().filter_map(|user| match &user.password {
            Password::Hashed { hash, .. } => Some(hash.cost),
            Password::Plain(_) => None,
        });
        let key = Zeroizing::new(rand::random::<[u8; 64]>());
        Self {
            version,
            cost: costs.max(),
            users,
            mac: Hmac::new((&*key).into()),
        }
    }

    /// Verifies a password without waiting. `Err`: the claim has to be verified.
    fn verify(known: &Arc<Self>, user: &[u8], password: &[u8]) -> Result<bool, Claim> {
        let digest = known.cost.map(|_| known.digest(user, password));
        let (mut named, mut is_right) = (None, Choice::from(0));
        for (index, one) in known.users.iter().enumerate() {
            let is_named = one.name.as_slice().ct_eq(user);
            if is_named.into() {
                named = Some(index);
            }
            is_right |= is_named & one.password.is(password, digest.as_ref());
        }
        match digest {
            _ if is_right.into() => Ok(true),
            Some(digest) if hash::may_be_hashed(password) => Err(Claim {
                known: Arc::clone(known),
                digest,
                user: named,
                password: Zeroizing::new(password.to_owned()),
            }),
            _ => Ok(false),
        }
    }

    fn digest(&self, user: &[u8], password: &[u8]) -> Digest {
        let mut mac = self.mac.clone();
        mac.update(&(user.len() as u64).to_be_bytes());
        mac.update(user);
        mac.update(password);
        mac.finalize().into_bytes().into()
    }

    /// Warns about plain text passwords.
    fn warn(&self, path: &str) {
        let is_plain = |user: &&User| matches!(user.password, Password::Plain(_));
        let passwords = self.users.iter().filter(is_plain).count();
        if passwords > 0 {
            tracing::warn!(
                file = path,
                passwords,
                "Passwords are plain text; replace them with hashes from `htpasswd -nB -C 10 NAME`"
            );
        }
    }
}

impl Password {
    /// Whether the stored or cached password is `password`, whose digest is `digest`.
    fn is(&self, password: &[u8], digest: Option<&Digest>) -> Choice {
        match (self, digest) {
            (Self::Plain(plain), _) => plain.as_slice().ct_eq(password),
            (Self::Hashed { verified, .. }, Some(digest)) => {
                verified.get().map_or(Choice::from(0), |verified| {
                    verified.as_slice().ct_eq(digest)
                })
            }
            (Self::Hashed { .. }, None) => Choice::from(0),
        }
    }
}

fn key(auth: &Auth) -> Key {
    let user = match auth {
        Auth::User { name, .. } => Some(name.clone()),
        Auth::UsersFile(_) => None,
    };
    (auth.path().to_owned(), user)
}

fn shared() -> MutexGuard<'static, Shared> {
    SHARED.lock()
}

/// The users of the last valid version of the file, which another worker may have read.
fn newest(auth: &Auth) -> Option<Arc<Known>> {
    shared().get(&key(auth)).and_then(Weak::upgrade)
}

/// The content of the file. If another worker has read this version of the file, that worker's
/// result is used.
fn load(auth: &Auth) -> Result<Arc<Known>, UsersError> {
    let path = auth.path();
    let read_error = |source| UsersError::Read {
        path: path.to_owned(),
        source,
    };
    let mut shared = shared();
    shared.retain(|_, known| known.strong_count() > 0);
    let file = File::open(path).map_err(read_error)?;
    let version = Version::from(&file.metadata().map_err(read_error)?);
    let key = key(auth);
    let known = shared.get(&key).and_then(Weak::upgrade);
    if let Some(known) = known.filter(|known| known.version == version) {
        return Ok(known);
    }
    // A string that grows would leave copies of the passwords in memory, so this string gets its
    // full capacity at once.
    let length = version.length.min(FILE_BYTES_MAX) as usize;
    let mut text = Zeroizing::new(String::with_capacity(length + 64));
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(read_error)?;
    let known = Arc::new(Known::new(version, parse(auth, &text)?));
    known.warn(path);
    shared.insert(key, Arc::downgrade(&known));
    Ok(known)
}

fn parse(auth: &Auth, text: &str) -> Result<Vec<User>, UsersError> {
    let path = auth.path();
    let content = |problem: &str| UsersError::Content {
        path: path.to_owned(),
        problem: problem.to_owned(),
    };
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(content("has more than 65536 bytes"));
    }
    let at = |index: usize, problem: String| UsersError::Line {
        path: path.to_owned(),
        line: index + 1,
        problem,
    };
    if let Auth::User { name, .. } = auth {
        let password = text.trim_end_matches(['\r', '\n']);
        let alone = alone(password).and_then(|()| user(name, password));
        return Ok(vec![alone.map_err(|problem| at(0, problem))?]);
    }
    let mut users = Vec::new();
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, password)) = line.split_once(':') else {
            return Err(at(index, "is not name:password".to_owned()));
        };
        if let Some(first) = lines.insert(name, index) {
            let problem = format!("repeats the user of line {}", first + 1);
            return Err(at(index, problem));
        }
        users.push(user(name, password).map_err(|problem| at(index, problem))?);
    }
    if users.is_empty() {
        return Err(content("contains no user"));
    }
    Ok(users)
}

/// In a file with a single password, rejects a user name before the hash.
fn alone(text: &str) -> Result<(), String> {
    let behind = text.split_once(':').map(|(_, hash)| Hash::parse(hash));
    match behind {
        Some(Ok(Some(_))) => Err(
            "has a name before the hash, but the field `auth.user` sets the name: remove the name and the colon"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Parses one user. `password` is a hash or plain text.
fn user(name: &str, password: &str) -> Result<User, String> {
    for (text, what) in [(name, "name"), (password, "password")] {
        if !(1..=TEXT_BYTES_MAX).contains(&text.len()) {
            let length = text.len();
            return Err(format!(
                "has a {what} of {length} bytes: expected 1 to {TEXT_BYTES_MAX}"
            ));
        }
    }
    let password = match Hash::parse(password)? {
        Some(hash) => Password::Hashed {
            hash,
            verified: OnceLock::new(),
        },
        None => Password::Plain(Zeroizing::new(password.into())),
    };
    let name = name.into();
    Ok(User { name, password })
}

#[cfg(test)]
mod tests;

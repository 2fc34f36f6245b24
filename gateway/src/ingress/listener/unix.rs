//! Listening Unix sockets. All workers of the process share one socket per path, since a path can
//! have only one socket.
//!
//! A socket has mode 0600. The process removes the file of a socket when the process closes the
//! socket. If the path already has a socket on which no process listens, the new socket replaces
//! that socket. If a process listens on that socket, binding fails.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::net::bind::BACKLOG;

/// Only the gateway's own user may connect. The folder can restrict access further.
const MODE: u32 = 0o600;

/// The sockets of the process, by path.
#[derive(Debug, Default)]
pub(crate) struct UnixListeners(Mutex<BTreeMap<String, Weak<Bound>>>);

/// A listening socket, which stays open until the last reference is dropped.
#[derive(Debug)]
pub(crate) struct Bound {
    path: String,
    /// Device and inode. When the socket closes, they show whether the file at the path is still
    /// this socket.
    file: (u64, u64),
    listener: UnixListener,
}

impl UnixListeners {
    /// Listens on `path`, or shares the socket of another worker.
    ///
    /// # Errors
    /// The error of bind(2), or an error if `path` is a socket in use or a file of another type.
    pub(crate) fn bind(&self, path: &str) -> Result<Arc<Bound>> {
        let mut known = self.0.lock();
        known.retain(|_, bound| bound.strong_count() > 0);
        if let Some(bound) = known.get(path).and_then(Weak::upgrade) {
            return Ok(bound);
        }
        let socket = match bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                check_stale(path)?;
                std::fs::remove_file(path)?;
                bind(path)?
            }
            bound => bound?,
        };
        socket.listen(BACKLOG.cast_signed())?;
        let bound = Arc::new(Bound {
            path: path.to_owned(),
            file: identity(path)?,
            listener: OwnedFd::from(socket).into(),
        });
        known.insert(path.to_owned(), Arc::downgrade(&bound));
        Ok(bound)
    }
}

impl Bound {
    /// Duplicates the socket.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn listener(&self) -> Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(path = self.path, %error, "Cannot remove a Unix socket");
        }
    }
}

/// Creates a socket, sets its mode, and only then binds it to `path`, so that no other user can
/// connect in between.
fn bind(path: &str) -> Result<Socket> {
    let file = File::from(OwnedFd::from(unix_socket()?));
    file.set_permissions(Permissions::from_mode(MODE))?;
    let socket = Socket::from(OwnedFd::from(file));
    socket.bind(&SockAddr::unix(path)?)?;
    Ok(socket)
}

fn unix_socket() -> Result<Socket> {
    Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)
}

/// Checks that no process listens on the socket at `path`.
fn check_stale(path: &str) -> Result<()> {
    let in_use = |text| Err(Error::new(ErrorKind::AddrInUse, text));
    if !Path::new(path).symlink_metadata()?.file_type().is_socket() {
        return in_use(
            "the path exists and is not a socket: choose another path, or delete the file",
        );
    }
    match unix_socket()?.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => in_use(
            "another process listens on this socket: choose another path, or end that process",
        ),
    }
}

fn identity(path: &str) -> Result<(u64, u64)> {
    let file = Path::new(path).symlink_metadata()?;
    Ok((file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn folder() -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket").to_str().unwrap().to_owned();
        (folder, path)
    }

    #[test]
    fn workers_share_a_socket_of_mode_0600_that_goes_with_the_last() {
        let (_folder, path) = folder();
        let listeners = UnixListeners::default();
        let (one, other) = (
            listeners.bind(&path).unwrap(),
            listeners.bind(&path).unwrap(),
        );
        assert!(Arc::ptr_eq(&one, &other));
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(one);
        assert!(UnixStream::connect(&path).is_ok());
        drop(other);
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let (_folder, path) = folder();
        drop(UnixListener::bind(&path).unwrap());
        let bound = UnixListeners::default().bind(&path).unwrap();
        let error = UnixListeners::default().bind(&path).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        assert!(UnixStream::connect(&path).is_ok());
        drop(bound);
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let (_folder, path) = folder();
        std::fs::write(&path, "precious").unwrap();
        let error = UnixListeners::default().bind(&path).unwrap_err();
        assert!(error.to_string().contains("not a socket"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_socket_that_took_its_place_is_not_removed() {
        let (_folder, path) = folder();
        let bound = UnixListeners::default().bind(&path).unwrap();
        std::fs::rename(&path, format!("{path}.old")).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(bound);
        assert!(Path::new(&path).exists());
    }
}

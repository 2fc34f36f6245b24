//! The process's limit of open files (RLIMIT_NOFILE), and the part of it that streams cannot use.
//!
//! Without free files the process could accept no connection of its admin port, dial no carrier,
//! resolve no name and read no configuration. Streams therefore use only a part of the limit
//! ([`Use`]). The gateway counts no files: the kernel gives each new file the lowest free number
//! (open(2)). So if a new file's number is at a bound or above, at least as many files are open.

use std::io::Error;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status;
use rustix::process::{Resource, Rlimit};
use socket2::{Domain, Socket, Type};
use tokio::net::UnixStream;

/// Maximum number of files that streams cannot use. A quarter of the limit, if this is less.
const RESERVE_MAX: u64 = 1024;
/// Minimum number of files that streams cannot use. Half of the limit, if this is less.
const RESERVE_MIN: u64 = 64;
/// The limit that counts if the system has none.
const UNLIMITED: u64 = i32::MAX as u64;

/// The purpose of a file. Each purpose has more files than the one before it. The admin port, dials
/// of carriers, the resolver and the configuration use the whole limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The connection to a client or a target, or a pipe between two connections.
    Stream,
    /// The connection to a client that is refused, until it has read its answer.
    Refusal,
    /// A connection that arrived at a port for carriers.
    Carrier,
}

/// The gateway refuses a file, because the rest of the limit is for other purposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the process may have {limit} open files (RLIMIT_NOFILE), and keeps the last {kept} of them for other purposes: close streams, or raise the limit"
)]
pub(crate) struct OutOfFiles {
    limit: u64,
    kept: u64,
}

/// The limit and its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenFiles {
    limit: u64,
    /// Number of files that streams cannot use.
    reserve: u64,
}

impl OpenFiles {
    fn of(limit: u64) -> Self {
        let reserve = (limit / 4).clamp(RESERVE_MIN, RESERVE_MAX).min(limit / 2);
        Self { limit, reserve }
    }

    /// The limit of this process at the first call.
    pub(crate) fn of_process() -> Self {
        static OF_PROCESS: OnceLock<OpenFiles> = OnceLock::new();
        *OF_PROCESS.get_or_init(|| {
            let limit = rustix::process::getrlimit(Resource::Nofile);
            Self::of(limit.current.unwrap_or(UNLIMITED))
        })
    }

    /// The lowest number of a file that is not for `purpose`.
    const fn bound(self, purpose: Use) -> u64 {
        self.limit - self.kept(purpose)
    }

    /// Number of files that are not for `purpose`.
    const fn kept(self, purpose: Use) -> u64 {
        match purpose {
            Use::Stream => self.reserve,
            Use::Refusal => self.reserve / 4 * 3,
            Use::Carrier => self.reserve / 4,
        }
    }

    /// The number of connections that may wait without a proof of their identity, at most `most`.
    pub(crate) fn strangers(self, most: usize) -> usize {
        Self::at_most(most, self.reserve / 2)
    }

    /// The number of connections of the admin port, at most `most`.
    pub(crate) fn for_admin(self, most: usize) -> usize {
        Self::at_most(most, self.reserve / 8)
    }

    /// The number of queries to name servers for peers, at most `most`.
    pub(crate) fn for_queries(self, most: usize) -> usize {
        Self::at_most(most, self.reserve / 4)
    }

    fn at_most(most: usize, files: u64) -> usize {
        usize::try_from(files).map_or(most, |files| files.clamp(1, most))
    }

    fn check(self, file: u64, purpose: Use) -> Result<(), OutOfFiles> {
        if file < self.bound(purpose) {
            return Ok(());
        }
        Err(OutOfFiles {
            limit: self.limit,
            kept: self.kept(purpose),
        })
    }
}

/// Checks that the new file may be used for `purpose`.
///
/// # Errors
/// [`OutOfFiles`]: the caller must close the file.
pub(crate) fn check(file: &impl AsFd, purpose: Use) -> Result<(), OutOfFiles> {
    let number = file.as_fd().as_raw_fd().unsigned_abs();
    OpenFiles::of_process().check(number.into(), purpose)
}

/// Creates the non-blocking socket of a stream.
///
/// # Errors
/// The error of socket(2), or [`OutOfFiles`] ([`is_out_of_files`]).
pub(crate) fn stream_socket(domain: Domain) -> std::io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(domain, kind, None)?;
    check(&socket, Use::Stream).map_err(Error::other)?;
    Ok(socket)
}

/// Creates a pair of connected sockets between a stream and this gateway.
///
/// # Errors
/// The error of socketpair(2), or [`OutOfFiles`] ([`is_out_of_files`]).
pub(crate) fn stream_pair() -> std::io::Result<(UnixStream, UnixStream)> {
    let (near, far) = UnixStream::pair()?;
    check(&near, Use::Stream).map_err(Error::other)?;
    check(&far, Use::Stream).map_err(Error::other)?;
    Ok((near, far))
}

/// Whether an operation failed because the process or the system has no files left for it.
pub(crate) fn is_out_of_files(error: &Error) -> bool {
    let of_system = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    let of_gateway = error
        .get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<OutOfFiles>);
    of_system || of_gateway
}

/// The code of an open that failed with `error`.
pub(crate) fn code(error: &Error) -> Code {
    match is_out_of_files(error) {
        true => Code::OpenFilesExhausted,
        false => Code::OpenFailed,
    }
}

/// Raises the soft limit of open files to the hard limit, since each connection needs an open file.
/// Call this function before any other function of this module.
/// The soft limit is low for programs that use select(2). muxgate does not use select(2).
pub(crate) fn raise() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "Cannot raise the limit of open files");
    }
}

/// The open files of the process, for its status.
pub(crate) fn status() -> status::OpenFiles {
    let files = OpenFiles::of_process();
    status::OpenFiles {
        open: count(),
        limit: files.limit,
        for_streams: files.bound(Use::Stream),
    }
}

/// Number of files that the process has open; 0: unknown.
fn count() -> u64 {
    const OPEN: &str = "/proc/self/fd";
    // Since Linux 6.2, the size of the folder is the number of open files.
    let size = std::fs::metadata(OPEN).map_or(0, |folder| folder.len());
    if size > 0 {
        return size;
    }
    std::fs::read_dir(OPEN).map_or(0, |files| files.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_purpose_has_more_files_than_the_one_before_it() {
        for limit in [16, 100, 256, 1024, 20_000, 1 << 20, UNLIMITED] {
            let files = OpenFiles::of(limit);
            let [streams, refusals, carriers] =
                [Use::Stream, Use::Refusal, Use::Carrier].map(|purpose| files.bound(purpose));
            assert!(0 < streams && streams < refusals, "{files:?}");
            assert!(refusals < carriers && carriers < limit, "{files:?}");
            assert!(files.check(streams - 1, Use::Stream).is_ok());
            assert!(files.check(streams, Use::Stream).is_err());
            assert!(files.check(streams, Use::Refusal).is_ok());
            let strangers = files.strangers(256) as u64;
            assert!(
                strangers > 0 && strangers <= carriers - streams,
                "{files:?}"
            );
        }
        assert_eq!(OpenFiles::of(256).bound(Use::Stream), 192);
        assert_eq!(OpenFiles::of(1 << 20).bound(Use::Stream), (1 << 20) - 1024);
        assert_eq!(OpenFiles::of(1 << 20).strangers(256), 256);
    }

    #[test]
    fn a_refused_file_is_known_by_its_error() {
        let refused = OpenFiles::of(256).check(192, Use::Stream).unwrap_err();
        assert!(is_out_of_files(&Error::other(refused)));
        assert!(is_out_of_files(&Error::from_raw_os_error(libc::EMFILE)));
        assert!(!is_out_of_files(&Error::other("another error")));
    }

    #[test]
    fn open_files_are_counted() {
        let before = count();
        let _file = std::fs::File::open("/proc/self/status").unwrap();
        assert!(before > 0 && count() > 0);
    }
}

//! A non-blocking duplex byte stream: the base of carriers, and the interface of local ends.
//!
//! The user of a duplex waits for readiness ([`readable`], [`writable`]), then reads or writes.
//! [`ByteStream`] implements tokio's traits for libraries that need them. Each call moves many
//! bytes, so the cost of `dyn` is negligible.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, Result};
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Number of bytes that are initialised for one read: four TLS records of 16 KiB, each with its
/// byte of content type. A library may lend a buffer of one megabyte, but one read fills only a
/// small part of the buffer.
const INITIALIZED_MAX: usize = 4 * ((16 << 10) + 1);

/// Maximum number of bytes that one read discards while the peer reads the close frame.
const DISCARD_BYTES: usize = 16 << 10;

/// Both directions of a connection. At most one task waits for each direction.
pub(crate) trait Duplex {
    /// Ready when [`Self::try_read`] may return bytes or the end.
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>>;

    /// Ready when [`Self::try_write`] may accept bytes, and the kernel has all bytes that were
    /// written earlier.
    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<()>>;

    /// Reads available bytes; returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`: no bytes are available until the next readiness. Any other error ends the
    /// connection.
    fn try_read(&self, bytes: &mut [u8]) -> Result<usize>;

    /// Works like [`Self::try_read`], but appends the bytes to `buffer`, whose free part need not
    /// be initialised.
    ///
    /// # Errors
    /// The errors of [`Self::try_read`].
    fn try_read_into(&self, buffer: &mut ReadBuf<'_>) -> Result<usize> {
        let room = buffer.remaining().min(INITIALIZED_MAX);
        let length = self.try_read(buffer.initialize_unfilled_to(room))?;
        buffer.advance(length);
        Ok(length)
    }

    /// Writes as many bytes of `slices` as possible. Returns the number of bytes.
    ///
    /// # Errors
    /// `WouldBlock`: no bytes are accepted until the next readiness. Any other error ends the
    /// connection.
    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize>;

    /// Ends the sending direction.
    ///
    /// # Errors
    /// The error of shutdown(2).
    fn finish(&self) -> Result<()>;
}

/// Waits until a read can return bytes or the end of the stream.
///
/// # Errors
/// The connection has failed.
pub(crate) async fn readable(duplex: &(impl Duplex + ?Sized)) -> Result<()> {
    poll_fn(|context| duplex.poll_readable(context)).await
}

/// Waits until a write can accept bytes, and the kernel has all bytes that were written earlier.
///
/// # Errors
/// The connection has failed.
pub(crate) async fn writable(duplex: &(impl Duplex + ?Sized)) -> Result<()> {
    poll_fn(|context| duplex.poll_writable(context)).await
}

/// Waits for bytes and reads them; returns 0 at the end of the stream.
///
/// # Errors
/// The connection has failed.
pub(crate) async fn read(duplex: &(impl Duplex + ?Sized), bytes: &mut [u8]) -> Result<usize> {
    ByteStream(duplex).read(bytes).await
}

/// Reads until `bytes` is full.
///
/// # Errors
/// The connection has failed. `UnexpectedEof`: the stream ended before `bytes` was full.
pub(crate) async fn read_exact(duplex: &(impl Duplex + ?Sized), bytes: &mut [u8]) -> Result<()> {
    ByteStream(duplex).read_exact(bytes).await.map(drop)
}

/// Call after [`Duplex::finish`]. Waits until the other end has ended its half, and discards what
/// arrives in between. Closing a socket with unread bytes would reset the connection, and the other
/// end would lose bytes.
///
/// # Errors
/// The connection has failed.
pub(crate) async fn linger(duplex: &(impl Duplex + ?Sized)) -> Result<()> {
    let mut discarded = vec![0; DISCARD_BYTES];
    while read(duplex, &mut discarded).await? > 0 {}
    Ok(())
}

/// Writes all of `bytes` to the kernel.
///
/// # Errors
/// The connection has failed.
pub(crate) async fn write_all(duplex: &(impl Duplex + ?Sized), bytes: &[u8]) -> Result<()> {
    let mut stream = ByteStream(duplex);
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// A [`Duplex`], owned or borrowed, that implements tokio's traits. A flush returns once the kernel
/// has the bytes.
#[derive(Debug)]
pub(crate) struct ByteStream<T>(pub(crate) T);

impl<T> AsyncRead for ByteStream<T>
where
    T: Deref<Target: Duplex> + Unpin,
{
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        loop {
            ready!(self.0.poll_readable(context))?;
            match self.0.try_read_into(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result.map(drop)),
            }
        }
    }
}

impl<T> AsyncWrite for ByteStream<T>
where
    T: Deref<Target: Duplex> + Unpin,
{
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        loop {
            ready!(self.0.poll_writable(context))?;
            match self.0.try_write(slices) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll_writable(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.0.poll_writable(context))?;
        Poll::Ready(self.0.finish())
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_testkit::socket::pair;

    use super::*;
    use crate::io::transport::Tcp;

    #[tokio::test]
    async fn bytes_pass_in_both_directions_and_an_end_is_told() {
        let (near, far) = pair().await;
        let (mut near, mut far) = (ByteStream(Tcp::boxed(near)), ByteStream(Tcp::boxed(far)));
        let sent: Vec<u8> = (0..8 << 20).map(|byte: u32| byte as u8).collect();
        let write = async {
            near.write_all(&sent).await.unwrap();
            near.flush().await.unwrap();
            near.shutdown().await.unwrap();
        };
        let mut came = Vec::new();
        let (_, all) = tokio::join!(write, far.read_to_end(&mut came));
        assert_eq!(all.unwrap(), sent.len());
        assert!(came == sent);
        far.write_all(b"back").await.unwrap();
        drop(far);
        let mut back = [0; 4];
        read_exact(&*near.0, &mut back).await.unwrap();
        assert_eq!(&back, b"back");
        assert_eq!(read(&*near.0, &mut back).await.unwrap(), 0);
        let early = read_exact(&*near.0, &mut back).await.unwrap_err();
        assert_eq!(early.kind(), ErrorKind::UnexpectedEof);
    }
}

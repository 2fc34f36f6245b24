use std::cell::Cell;
use std::rc::Rc;

use super::*;

/// A transport that accepts this many bytes.
#[derive(Debug)]
struct Below(Rc<Cell<usize>>);

impl Duplex for Below {
    fn poll_readable(&self, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Pending
    }

    fn poll_writable(&self, _: &mut Context<'_>) -> Poll<Result<()>> {
        match self.0.get() {
            0 => Poll::Pending,
            _ => Poll::Ready(Ok(())),
        }
    }

    fn try_read(&self, _: &mut [u8]) -> Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        let taken = length.min(self.0.get());
        self.0.set(self.0.get() - taken);
        match taken {
            0 => Err(ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }
}

impl Transport for Below {
    fn shut(&self) {}

    fn detach(self: Box<Self>) -> Result<Detached> {
        Err(ErrorKind::Unsupported.into())
    }
}

/// Records of up to 1,000 bytes without encryption.
#[derive(Debug)]
struct Bare;

impl Records for Bare {
    fn seal(&mut self, plain: &mut Gather<'_>, out: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while out.len() - filled >= 1000 {
            match plain.copy(&mut out[filled..filled + 1000]) {
                0 => break,
                length => filled += length,
            }
        }
        Ok(filled)
    }

    fn open(&mut self, _: &[u8], _: &mut [u8]) -> Result<Opened> {
        Ok(Opened::Incomplete)
    }

    fn close(&mut self, _: &mut [u8]) -> Result<usize> {
        Ok(0)
    }
}

/// Writes a little more than two full buffers to a kernel that accepts `room` bytes. Returns how
/// many bytes were accepted, and whether some of them are held back.
fn written(room: usize) -> (usize, bool) {
    let below = Box::new(Below(Rc::new(Cell::new(room))));
    let sealed = Sealed::boxed(below, Bare, None, &[], Vec::new());
    let bytes = vec![7; buffer::BUFFER_BYTES];
    let slices = [
        IoSlice::new(&bytes),
        IoSlice::new(&bytes),
        IoSlice::new(b"a bit"),
    ];
    let taken = sealed.try_write(&slices).unwrap();
    (taken, sealed.holds_back())
}

#[test]
fn a_full_buffer_is_no_full_kernel_and_a_full_kernel_is_told() {
    let all = 2 * buffer::BUFFER_BYTES + 5;
    assert_eq!(written(all), (all, false));
    // The transport accepts all bytes. The last byte waits in the buffer.
    assert_eq!(written(all - 1), (all, true));
    let (taken, held_back) = written(1000);
    assert!(taken <= buffer::BUFFER_BYTES && held_back, "{taken}");
}

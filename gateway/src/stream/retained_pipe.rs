//! Spliced payload that a session may have to retransmit.
//!
//! Each carrier has a queue of pipes. Before the carrier sends the content of a pipe, tee(2) adds
//! references to this content to the last pipe of the queue. They take as many slots as in the first
//! pipe: about 32 of 256 for a batch of 1 MiB on loopback, where a slot has 32 KiB. The peer
//! acknowledges payload in the order of transmission, so released payload is the oldest content of
//! its pipe.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::rc::{Rc, Weak};

use super::pipe::Pipe;

/// The last pipe of a carrier's queue. A pipe returns to the process when its last payload is
/// released.
#[derive(Debug, Default)]
pub(crate) struct RetainedPipes {
    last: RefCell<Weak<RetainedPipe>>,
}

impl RetainedPipes {
    /// Retains the content of `pipe`. `another` provides an empty pipe if the last one has too few
    /// slots. `None`: no pipe has room.
    pub(crate) fn retain(
        &self,
        pipe: &Pipe,
        another: impl FnOnce() -> Option<Pipe>,
    ) -> Option<RetainedPayload> {
        let last = self.last.borrow().upgrade();
        if let Some(payload) = last.and_then(|last| last.append(pipe)) {
            return Some(payload);
        }
        let next = Rc::new(RetainedPipe(RefCell::new(State::new(another()?))));
        let payload = Rc::clone(&next).append(pipe)?;
        *self.last.borrow_mut() = Rc::downgrade(&next);
        Some(payload)
    }
}

/// One pipe of the queue.
#[derive(Debug)]
struct RetainedPipe(RefCell<State>);

impl RetainedPipe {
    /// Adds the content of `pipe`; `None`: this pipe has too little room.
    fn append(self: Rc<Self>, pipe: &Pipe) -> Option<RetainedPayload> {
        let number = self.0.borrow_mut().append(pipe)?;
        Some(RetainedPayload { pipe: self, number })
    }
}

/// The content of one pipe that was sent. Dropping the value releases the content.
#[derive(Debug)]
pub(crate) struct RetainedPayload {
    pipe: Rc<RetainedPipe>,
    number: usize,
}

impl RetainedPayload {
    /// Returns the payload. Older payload of the same pipe is copied into memory.
    ///
    /// # Errors
    /// The error of read(2), now or earlier.
    pub(crate) fn read(self) -> std::io::Result<Vec<u8>> {
        self.pipe.0.borrow_mut().take(self.number)
    }
}

impl Drop for RetainedPayload {
    fn drop(&mut self) {
        self.pipe.0.borrow_mut().release(self.number);
    }
}

#[derive(Debug)]
struct State {
    /// `None` after an error, which leaves the position in the pipe unknown.
    pipe: Option<Pipe>,
    /// Whether the end of the pipe has a part of a payload. Content cannot be removed from the end of
    /// a pipe, so the pipe takes no further payload.
    closed: bool,
    /// The payloads, oldest first. A payload in the pipe has no copied payload after it.
    payloads: VecDeque<Payload>,
    /// Number of payloads that were removed from the front of `payloads`.
    removed: usize,
}

#[derive(Debug)]
enum Payload {
    /// This number of bytes in the pipe.
    Retained(usize),
    /// This number of bytes in the pipe, which are no longer needed.
    Released(usize),
    Copied(Vec<u8>),
    Gone,
}

impl State {
    fn new(pipe: Pipe) -> Self {
        Self {
            pipe: Some(pipe),
            closed: false,
            payloads: VecDeque::new(),
            removed: 0,
        }
    }

    fn append(&mut self, from: &Pipe) -> Option<usize> {
        if self.closed {
            return None;
        }
        let length = self.pipe.as_mut()?.tee_from(from).ok()?;
        self.closed = length < from.held();
        if self.closed {
            self.payloads.push_back(Payload::Released(length));
            self.discard_released();
            return None;
        }
        self.payloads.push_back(Payload::Retained(length));
        Some(self.removed + self.payloads.len() - 1)
    }

    /// Takes the payload of this number. Older payload is copied.
    fn take(&mut self, number: usize) -> std::io::Result<Vec<u8>> {
        let index = number - self.removed;
        for payload in self.payloads.range_mut(..=index) {
            let (&mut Payload::Retained(length) | &mut Payload::Released(length)) = payload else {
                continue;
            };
            let pipe = self.pipe.as_mut().ok_or(ErrorKind::BrokenPipe)?;
            let bytes = pipe.read(length).inspect_err(|_| self.pipe = None)?;
            *payload = match payload {
                Payload::Retained(_) => Payload::Copied(bytes),
                _ => Payload::Gone,
            };
        }
        match std::mem::replace(&mut self.payloads[index], Payload::Gone) {
            Payload::Copied(bytes) => Ok(bytes),
            _ => Err(ErrorKind::NotFound.into()),
        }
    }

    fn release(&mut self, number: usize) {
        let payload = &mut self.payloads[number - self.removed];
        *payload = match *payload {
            Payload::Retained(length) => Payload::Released(length),
            _ => Payload::Gone,
        };
        self.discard_released();
    }

    /// Discards the released payload that is next in the pipe.
    fn discard_released(&mut self) {
        let mut released = 0;
        for payload in &mut self.payloads {
            match *payload {
                Payload::Retained(_) => break,
                Payload::Released(length) => {
                    released += length;
                    *payload = Payload::Gone;
                }
                Payload::Copied(_) | Payload::Gone => {}
            }
        }
        if let Some(pipe) = &mut self.pipe
            && released > 0
            && pipe.discard(released).is_err()
        {
            self.pipe = None;
        }
        while let Some(Payload::Gone) = self.payloads.front() {
            self.payloads.pop_front();
            self.removed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muxtunnel_testkit::socket::pair;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;

    use super::super::pipe::{Filled, Held, Pipes, Way};
    use super::*;

    /// Makes pipes with given content, and retains them as one carrier does.
    struct Carrier {
        client: TcpStream,
        from: TcpStream,
        pipes: Arc<Pipes>,
        held: Held,
        retained: RetainedPipes,
    }

    impl Carrier {
        async fn new() -> Self {
            let (client, from) = pair().await;
            client.set_nodelay(true).unwrap();
            Self {
                client,
                from,
                pipes: Arc::default(),
                held: Held::default(),
                retained: RetainedPipes::default(),
            }
        }

        fn pipe(&self) -> Option<Pipe> {
            self.pipes.take(Way::ToCarrier, &self.held, 1)
        }

        /// A pipe with `pieces`, each in a slot of its own.
        async fn filled(&mut self, pieces: &[&[u8]]) -> Pipe {
            let mut pipe = self.pipe().unwrap();
            for piece in pieces {
                self.client.write_all(piece).await.unwrap();
                self.from.readable().await.unwrap();
                let filled = pipe.fill(&self.from, piece.len()).unwrap();
                assert_eq!(filled, Filled::Bytes(piece.len()));
            }
            pipe
        }

        async fn retain(&mut self, bytes: &[u8]) -> RetainedPayload {
            let pipe = self.filled(&[bytes]).await;
            self.retained.retain(&pipe, || self.pipe()).unwrap()
        }

        fn in_pipe(payload: &RetainedPayload) -> usize {
            payload.pipe.0.borrow().pipe.as_ref().map_or(0, Pipe::held)
        }
    }

    #[tokio::test]
    async fn payloads_share_a_pipe_which_returns_with_the_last() {
        let mut carrier = Carrier::new().await;
        let first = carrier.retain(b"first").await;
        let second = carrier.retain(b"second").await;
        assert_eq!((carrier.pipes.used(), Carrier::in_pipe(&second)), (1, 11));
        drop(first);
        assert_eq!((carrier.pipes.used(), Carrier::in_pipe(&second)), (1, 6));
        let third = carrier.retain(b"3").await;
        drop(second);
        assert_eq!((carrier.pipes.used(), Carrier::in_pipe(&third)), (1, 1));
        drop(third);
        assert_eq!(carrier.pipes.used(), 0);
    }

    #[tokio::test]
    async fn payload_is_read_in_any_order() {
        let mut carrier = Carrier::new().await;
        let acknowledged = carrier.retain(b"acknowledged").await;
        let first = carrier.retain(b"first").await;
        let second = carrier.retain(b"second").await;
        let third = carrier
            .retain(b"third, which is longer than the others")
            .await;
        drop(acknowledged);
        assert_eq!(second.read().unwrap(), b"second");
        assert_eq!(Carrier::in_pipe(&third), 38);
        let fourth = carrier.retain(b"fourth").await;
        assert_eq!(first.read().unwrap(), b"first");
        assert_eq!(fourth.read().unwrap(), b"fourth");
        assert_eq!(
            third.read().unwrap(),
            b"third, which is longer than the others"
        );
        assert_eq!(carrier.pipes.used(), 0);
    }

    #[tokio::test]
    async fn payload_for_which_a_pipe_has_too_few_slots_goes_to_the_next_pipe() {
        let mut carrier = Carrier::new().await;
        let pieces = [&b"x"[..]; 100];
        let mut payloads = Vec::new();
        for used in [1, 1, 2, 2] {
            let pipe = carrier.filled(&pieces).await;
            let payload = carrier.retained.retain(&pipe, || carrier.pipe());
            payloads.push(payload.unwrap());
            drop(pipe);
            assert_eq!(carrier.pipes.used(), used);
        }
        // The first pipe has 256 slots. 56 of them have a part of the third payload.
        assert_eq!(Carrier::in_pipe(&payloads[0]), 256);
        let pipe = carrier.filled(&pieces).await;
        assert!(carrier.retained.retain(&pipe, || None).is_none());
        let second = payloads.remove(1);
        drop(payloads.remove(0));
        assert_eq!(Carrier::in_pipe(&second), 156);
        assert_eq!(second.read().unwrap(), [b'x'; 100]);
        drop(pipe);
        assert_eq!(carrier.pipes.used(), 1);
        for payload in payloads {
            assert_eq!(payload.read().unwrap(), [b'x'; 100]);
        }
    }

    #[tokio::test]
    async fn a_pipe_with_a_part_of_a_payload_takes_no_other_payload() {
        let mut carrier = Carrier::new().await;
        let pieces = [&b"x"[..]; 100];
        let mut payloads = Vec::new();
        for is_whole in [true, true, false] {
            let pipe = carrier.filled(&pieces).await;
            let another = || carrier.pipe().filter(|_| is_whole);
            let payload = carrier.retained.retain(&pipe, another);
            assert_eq!(payload.is_some(), is_whole);
            payloads.extend(payload);
        }
        let second = payloads.remove(1);
        // The pipe has 100 free slots again.
        payloads.clear();
        assert_eq!(Carrier::in_pipe(&second), 156);
        let next = carrier.retain(b"next").await;
        assert_eq!(
            (Carrier::in_pipe(&second), Carrier::in_pipe(&next)),
            (156, 4)
        );
        assert_eq!(second.read().unwrap(), [b'x'; 100]);
        assert_eq!(next.read().unwrap(), b"next");
        assert_eq!(carrier.pipes.used(), 0);
    }

    #[tokio::test]
    async fn payload_is_never_taken_from_an_unknown_position() {
        let mut carrier = Carrier::new().await;
        let first = carrier.retain(b"first").await;
        let second = carrier.retain(b"second").await;
        {
            let mut state = first.pipe.0.borrow_mut();
            // As if another reader had taken some bytes.
            state.pipe.as_mut().unwrap().read(8).unwrap();
        }
        assert!(second.read().is_err());
        let third = carrier.retain(b"third").await;
        assert!(first.read().is_err());
        assert_eq!(third.read().unwrap(), b"third");
    }
}

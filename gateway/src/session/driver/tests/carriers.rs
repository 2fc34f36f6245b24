//! Carriers that fall silent, that have another peer, or that are no longer trusted.

use std::io::IoSlice;
use std::task::{Context, Poll};

use tokio::net::UnixStream;

use super::*;
use crate::io::duplex::Duplex;
use crate::io::proof::Proof;
use crate::io::transport::{Detached, Path, Unix};
use crate::session::mux::NoCarrier;

#[tokio::test(start_paused = true)]
async fn where_no_tcp_is_below_a_carrier_that_falls_silent_is_lost_and_one_that_answers_is_not() {
    let test = async {
        let (near, mut far) = UnixStream::pair().unwrap();
        let carrier = (Unix::boxed(near, "/x"), &mut far);
        let (driver, runs) = agreed_on(carrier, &Rc::default(), Rc::default(), parameters(1)).await;
        for _ in 0..10 {
            let (
                Decoded::Frame {
                    frame: Frame::Ping(value),
                    ..
                },
                _,
            ) = frame(&mut far).await
            else {
                panic!("nothing is requested");
            };
            far.write_all(&codec::encode(&Frame::Pong(value)))
                .await
                .unwrap();
        }
        assert!(!driver.has_ended());
        let silent = now();
        let end = runs.await.unwrap();
        assert!(matches!(end, SessionEnd::GivenUp(_)), "{end}");
        let seconds = now().duration_since(silent).as_secs();
        assert!((15..=25).contains(&seconds), "{seconds} s");
    };
    let tasks = LocalSet::new();
    let in_time = tokio::time::timeout(Duration::from_secs(600), tasks.run_until(test));
    in_time.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_requested_answer_is_owed_until_it_arrives_and_is_no_reason_to_move_packets() {
    let test = async {
        let (near, mut far) = pair().await;
        let carrier = (Tcp::boxed(near), &mut far);
        let (driver, _runs) =
            agreed_on(carrier, &Rc::default(), Rc::default(), parameters(1)).await;
        assert!(!driver.owes_an_answer());
        driver.ask();
        assert!(driver.owes_an_answer() && driver.answers());
        // A second request does not hide that the first one has no answer.
        driver.ask();
        let (Decoded::Frame { frame, .. }, _) = frame(&mut far).await else {
            panic!("nothing is requested");
        };
        let Frame::Ping(value) = frame else {
            panic!("{frame:?}");
        };
        assert!(driver.owes_an_answer());
        let pong = codec::encode(&Frame::Pong(value));
        far.write_all(&pong).await.unwrap();
        while driver.owes_an_answer() {
            tokio::task::yield_now().await;
        }
        assert!(driver.answers());
    };
    LocalSet::new().run_until(test).await;
}

/// A carrier over TCP whose other end is a proxy: the kernel gets its acknowledgements, and no peer
/// answers.
#[tokio::test(start_paused = true)]
async fn a_carrier_over_tcp_whose_peer_is_silent_is_probed_after_the_configured_time_and_then_lost()
{
    let test = async {
        let (near, mut far) = pair().await;
        let carrier = (Tcp::boxed(near), &mut far);
        let (driver, runs) = agreed_on(carrier, &Rc::default(), Rc::default(), parameters(1)).await;
        let begun = now();
        // A PING with another value measures the round trip.
        let is_probe = |decoded: &Decoded| {
            matches!(
                decoded,
                Decoded::Frame {
                    frame: Frame::Ping(0),
                    ..
                }
            )
        };
        while !is_probe(&frame(&mut far).await.0) {}
        let silence = now().duration_since(begun);
        assert!(silence >= driver.config.liveness, "{silence:?}");
        let end = runs.await.unwrap();
        assert!(matches!(end, SessionEnd::GivenUp(_)), "{end}");
        let answer = now().duration_since(begun + silence).as_secs();
        assert!((15..=17).contains(&answer), "{answer} s");
    };
    let tasks = LocalSet::new();
    let in_time = tokio::time::timeout(Duration::from_secs(120), tasks.run_until(test));
    in_time.await.unwrap();
}

/// A socket whose peer has proved an identity.
#[derive(Debug)]
struct Proved(Box<dyn Transport>, Proof);

impl Duplex for Proved {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.0.poll_readable(context)
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.0.poll_writable(context)
    }

    fn try_read(&self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0.try_read(bytes)
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> std::io::Result<usize> {
        self.0.try_write(slices)
    }

    fn finish(&self) -> std::io::Result<()> {
        self.0.finish()
    }
}

impl Transport for Proved {
    fn shut(&self) {
        self.0.shut();
    }

    fn path(&self) -> Option<&dyn Path> {
        self.0.path()
    }

    fn proof(&self) -> Option<&Proof> {
        Some(&self.1)
    }

    fn detach(self: Box<Self>) -> std::io::Result<Detached> {
        self.0.detach()
    }
}

#[tokio::test]
async fn a_further_carrier_has_to_lead_to_who_is_at_the_end_of_the_first() {
    let test = async {
        let (driver, _far) = established(&Rc::default()).await;
        let (near, _other) = pair().await;
        let proof = Proof::of("somebody".to_owned());
        let proved: Box<dyn Transport> = Box::new(Proved(Tcp::boxed(near), proof));
        let stranger = driver.add(proved.into(), Vec::new(), None);
        assert!(matches!(stranger, Err(NoCarrier::Stranger(_))));
        let (near, _another) = pair().await;
        let known = driver.add(Tcp::boxed(near).into(), Vec::new(), None);
        assert!(!matches!(known, Err(NoCarrier::Stranger(_))));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn streams_of_a_last_carrier_that_is_trusted_no_more_are_revoked() {
    in_time(async {
        let (driver, mut far) = established(&Rc::default()).await;
        let (ended, end) = tokio::sync::oneshot::channel();
        let local = Local::of_client("tcp://x:1", RefCell::new(Some(ended)));
        let _client = opened(&driver, local).await;
        take_up(&driver, &mut far).await;
        let carriers = driver.carriers.all();
        carriers[0].distrust(SessionEnd::Revoked("its authority is gone".to_owned()));
        assert_eq!(end.await, Ok(Reason::Revoked));
    })
    .await;
}

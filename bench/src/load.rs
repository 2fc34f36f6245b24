//! `muxbench load`: opens short connections at a steady rate, and long streams, to one address. A
//! [`Report`] counts the outcome of each connection.
//!
//! Faults may occur behind the address. So every connection has a time limit, and ends either
//! completely or with a [`Failure`]. The report counts every connection, even if others fail. The
//! load does not judge the result. [`target`](crate::target) answers the connections.
//!
//! The load separates its own failures from those of the target: a time limit counts only the time
//! in which the load itself runs ([`within`]), and the report counts connections that the load's
//! machine could not begin in a counter of their own.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{anyhow, bail};
use muxtunnel_bench_api::load::{Failure, Report};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::task::LocalSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::cli::LoadArgs;
use crate::pattern::Pattern;
use crate::target::{ANSWER_BYTES, ANSWER_OFFSET, BLOCK_BYTES, Header, REQUEST_BYTES};

/// Time-out of a short connection. At 200 connections per second, at most 1,000 exist at once.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// A long stream is lost if no byte arrives for this long.
const SILENCE: Duration = Duration::from_secs(30);
/// Unit of time limits.
const TICK: Duration = Duration::from_millis(50);
/// Pause between two blocks of a long stream, and before a lost stream is replaced.
const PAUSE: Duration = Duration::from_millis(100);
/// Source ports of long streams, used in turn, outside the kernel's range for short connections.
/// After a deleted pod has reset a stream, the kernel's connection tracking still forwards packets
/// from that source port to the pod for 10 s. Every Service has this effect.
const STREAM_PORTS: Range<u16> = 12_000..32_000;
/// The target is steady after this many complete connections in a row.
const STEADY_OPENS: u64 = 20;
/// Time-out for the target to become steady.
const STEADY_WITHIN: Duration = Duration::from_secs(60);

/// A load.
#[derive(Debug)]
pub struct Load {
    to: SocketAddr,
    opens_per_second: u32,
    streams: u32,
    duration: Duration,
    open_within: Duration,
    silence: Duration,
    pattern: Pattern,
}

/// Resolves `name`, with retries, because the name of a new Service resolves only after a short
/// time.
async fn resolved(name: &str) -> anyhow::Result<SocketAddr> {
    let deadline = Instant::now() + STEADY_WITHIN;
    loop {
        let (problem, is_final) = match lookup_host(name).await {
            Ok(mut addresses) => match addresses.next() {
                Some(address) => return Ok(address),
                None => (anyhow!("{name} has no address"), false),
            },
            Err(error) => {
                let is_no_name = error.kind() == io::ErrorKind::InvalidInput;
                let text = format!("cannot resolve {name}");
                (anyhow!(error).context(text), is_no_name)
            }
        };
        if is_final || Instant::now() > deadline {
            return Err(problem);
        }
        sleep(PAUSE).await;
    }
}

impl Load {
    /// The load that the flags describe.
    ///
    /// # Errors
    /// If the name of the target cannot be resolved within a minute.
    pub async fn new(args: &LoadArgs) -> anyhow::Result<Self> {
        Ok(Self {
            to: resolved(&args.connect).await?,
            opens_per_second: args.opens_per_second,
            streams: args.streams,
            duration: args.duration,
            open_within: OPEN_WITHIN,
            silence: SILENCE,
            pattern: Pattern::new(ANSWER_BYTES.max(BLOCK_BYTES)),
        })
    }

    /// Waits until the target answers, with one connection after the other. A Service accepts
    /// connections a short time after its pods are ready.
    ///
    /// # Errors
    /// If the target does not answer within a minute, with the failure of the last connection.
    pub async fn steady(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + STEADY_WITHIN;
        let mut in_a_row = 0;
        while in_a_row < STEADY_OPENS {
            match self.open(in_a_row).await {
                Ok(()) => in_a_row += 1,
                Err(how) if Instant::now() > deadline => {
                    bail!("{} does not answer: {how:?}", self.to)
                }
                Err(_) => {
                    in_a_row = 0;
                    sleep(PAUSE).await;
                }
            }
        }
        Ok(())
    }

    /// Runs the load until its time is over or `stop` completes. Returns the report when all
    /// connections have ended.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Report {
        let load = Rc::new(self);
        let report = Rc::new(RefCell::new(Report::default()));
        let until = Rc::new(Cell::new(Instant::now() + load.duration));
        let mut stop = pin!(stop);
        LocalSet::new()
            .run_until(async {
                let mut tasks: Vec<_> = (0..load.streams)
                    .map(|place| {
                        let (load, report) = (Rc::clone(&load), Rc::clone(&report));
                        let until = Rc::clone(&until);
                        tokio::task::spawn_local(async move {
                            load.keep_stream(place, &until, &report).await;
                        })
                    })
                    .collect();
                let mut turns = interval(Duration::from_secs(1) / load.opens_per_second);
                // A late tick follows at once, so the number of opens does not depend on how busy
                // the machine is.
                turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
                let opens = load.duration.as_secs() * u64::from(load.opens_per_second);
                for number in 0..opens {
                    tokio::select! {
                        biased;
                        () = &mut stop => {
                            until.set(Instant::now());
                            break;
                        }
                        _ = turns.tick() => {}
                    }
                    {
                        let mut report = report.borrow_mut();
                        report.begun += 1;
                        report.last_begun_unix_ms = unix_ms();
                    }
                    let (load, report) = (Rc::clone(&load), Rc::clone(&report));
                    tasks.push(tokio::task::spawn_local(async move {
                        load.count_open(number, &report).await;
                    }));
                }
                for task in tasks {
                    // The result is an error only if the task has panicked. The panic has been
                    // printed, and the connection is not counted.
                    let _ = task.await;
                }
            })
            .await;
        report.take()
    }

    async fn count_open(&self, number: u64, report: &RefCell<Report>) {
        let (began, began_unix_ms) = (Instant::now(), unix_ms());
        let outcome = self.open(number).await;
        let mut report = report.borrow_mut();
        report.opens += 1;
        match outcome {
            Ok(()) => {
                let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                report.slowest_ms = report.slowest_ms.max(took);
            }
            Err(Ended::Failed(how)) => Report::count(&mut report.failed, how, began_unix_ms),
            Err(Ended::NotBegun) => report.own += 1,
        }
    }

    /// Runs one short connection to its end.
    async fn open(&self, number: u64) -> Result<(), Ended> {
        let exchange = async {
            let mut stream = TcpStream::connect(self.to).await?;
            stream.set_nodelay(true)?;
            let request = self.pattern.at(number as usize, 0, REQUEST_BYTES);
            let header = Header::Short(number).encode();
            stream.write_all(&[&header, request].concat()).await?;
            let mut answer = Vec::with_capacity(ANSWER_BYTES + 1);
            let most = ANSWER_BYTES as u64 + 1;
            stream.take(most).read_to_end(&mut answer).await?;
            io::Result::Ok(answer)
        };
        let answer = within(self.open_within, exchange).await?;
        let wrong = self.pattern.wrong(
            number as usize,
            ANSWER_OFFSET,
            &answer[..answer.len().min(ANSWER_BYTES)],
        );
        match answer.len() {
            _ if wrong > 0 => Err(Failure::Wrong.into()),
            0..ANSWER_BYTES => Err(Failure::Short.into()),
            ANSWER_BYTES => Ok(()),
            _ => Err(Failure::Wrong.into()),
        }
    }

    /// Keeps one long stream open until the load ends.
    async fn keep_stream(&self, place: u32, until: &Cell<Instant>, report: &RefCell<Report>) {
        let mut number = u64::from(place);
        while Instant::now() < until.get() {
            let stream = self.connect_stream(number).await;
            number += u64::from(self.streams);
            match stream {
                // A failed open is not a lost stream. The short connections count failed opens.
                Err(_) => {}
                Ok(stream) => {
                    report.borrow_mut().streams += 1;
                    let Err(how) = self.stream(stream, number, until).await else {
                        return;
                    };
                    let mut report = report.borrow_mut();
                    match how {
                        Ended::Failed(how) => Report::count(&mut report.lost, how, unix_ms()),
                        Ended::NotBegun => report.own += 1,
                    }
                }
            }
            sleep(PAUSE).await;
        }
    }

    async fn connect_stream(&self, number: u64) -> io::Result<TcpStream> {
        let (from, socket) = match self.to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), TcpSocket::new_v4()?),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), TcpSocket::new_v6()?),
        };
        let ports = STREAM_PORTS;
        let place = number % u64::from(ports.end - ports.start);
        let port = ports.start + u16::try_from(place).unwrap_or_default();
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(from, port))?;
        socket.connect(self.to).await
    }

    /// Runs one long stream until its time is over: sends blocks, which must return byte for byte,
    /// and then ends the stream.
    async fn stream(
        &self,
        mut stream: TcpStream,
        number: u64,
        until: &Cell<Instant>,
    ) -> Result<(), Ended> {
        let failed = |error: io::Error| ended(&error);
        stream.set_nodelay(true).map_err(failed)?;
        let header = Header::Long(number).encode();
        stream.write_all(&header).await.map_err(failed)?;
        let mut offset = 0;
        while Instant::now() < until.get() {
            let block = self.pattern.at(number as usize, offset, BLOCK_BYTES);
            let mut back = [0; BLOCK_BYTES];
            let exchange = async {
                stream.write_all(block).await?;
                stream.read_exact(&mut back).await
            };
            within(self.silence, exchange).await?;
            if self.pattern.wrong(number as usize, offset, &back) > 0 {
                return Err(Failure::Wrong.into());
            }
            offset += BLOCK_BYTES as u64;
            sleep(PAUSE).await;
        }
        stream.shutdown().await.map_err(failed)?;
        match within(self.silence, stream.read(&mut [0])).await? {
            0 => Ok(()),
            _ => Err(Failure::Wrong.into()),
        }
    }
}

/// How a connection ended, if it did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Failed(Failure),
    /// The load's own machine had no port, file or memory for the connection.
    NotBegun,
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Waits for an exchange for at most `most` of the time in which this process runs: a tick that is
/// late counts as one tick. A busy machine that gives the load no processor therefore fails no
/// connection.
async fn within<T>(
    most: Duration,
    exchange: impl Future<Output = io::Result<T>>,
) -> Result<T, Ended> {
    let mut exchange = pin!(exchange);
    let ticks = most.as_millis().div_ceil(TICK.as_millis());
    for _ in 0..ticks {
        tokio::select! {
            biased;
            done = &mut exchange => return done.map_err(|error| ended(&error)),
            () = sleep(TICK) => {}
        }
    }
    Err(Failure::TimedOut.into())
}

fn ended(error: &io::Error) -> Ended {
    // EMFILE, ENFILE, ENOBUFS and ENOMEM
    let is_lacking = matches!(error.raw_os_error(), Some(24 | 23 | 105 | 12));
    if is_lacking || error.kind() == io::ErrorKind::AddrNotAvailable {
        return Ended::NotBegun;
    }
    failure(error).into()
}

fn failure(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Refused,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => Failure::Reset,
        io::ErrorKind::TimedOut => Failure::TimedOut,
        io::ErrorKind::UnexpectedEof => Failure::Short,
        _ => Failure::Broken,
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::net::TcpListener;

    use super::*;
    use crate::target;

    /// A load that lasts a second, with ten short connections and two long streams.
    async fn load(to: SocketAddr) -> Load {
        let args = LoadArgs {
            connect: to.to_string(),
            opens_per_second: 10,
            streams: 2,
            duration: Duration::from_secs(1),
        };
        Load::new(&args).await.unwrap()
    }

    #[tokio::test]
    async fn a_name_is_resolved_and_what_is_none_is_told_at_once() {
        assert_eq!(resolved("localhost:7").await.unwrap().port(), 7);
        let begun = Instant::now();
        let problem = resolved("no-port").await.unwrap_err();
        assert!(format!("{problem:#}").starts_with("cannot resolve no-port"));
        assert!(begun.elapsed() < STEADY_WITHIN);
    }

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// The report of a load whose target sends `answer` to each connection and ends the connection.
    /// `None`: the target never answers.
    async fn seen(answer: Option<Vec<u8>>, reset: bool) -> Report {
        let (listener, address) = listener().await;
        let mut load = load(address).await;
        load.open_within = Duration::from_millis(300);
        load.silence = Duration::from_millis(300);
        let serve = async {
            let mut held = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let Some(answer) = &answer else {
                    held.push(stream);
                    continue;
                };
                let mut request = [0; Header::BYTES + REQUEST_BYTES];
                stream.read_exact(&mut request).await.unwrap();
                if reset {
                    stream.set_zero_linger().unwrap();
                } else {
                    stream.write_all(answer).await.unwrap();
                    held.push(stream);
                    if let Some(stream) = held.last_mut() {
                        stream.shutdown().await.unwrap();
                    }
                }
            }
        };
        tokio::select! {
            report = load.run(pending()) => report,
            () = serve => unreachable!(),
        }
    }

    fn only(
        failures: &std::collections::BTreeMap<Failure, muxtunnel_bench_api::load::Failures>,
    ) -> Vec<Failure> {
        failures.keys().copied().collect()
    }

    #[tokio::test]
    async fn everything_is_complete_where_nothing_breaks() {
        let (listener, address) = listener().await;
        let load = load(address).await;
        let report = tokio::select! {
            report = async { load.steady().await.unwrap(); load.run(pending()).await } => report,
            ended = target::serve(listener) => panic!("{ended:?}"),
        };
        assert_eq!((report.opens, report.failed_opens()), (10, 0), "{report:?}");
        assert_eq!(
            (report.streams, report.lost_streams()),
            (2, 0),
            "{report:?}"
        );
    }

    #[tokio::test]
    async fn a_load_that_is_stopped_accounts_for_what_it_began() {
        let (listener, address) = listener().await;
        let mut load = load(address).await;
        load.duration = Duration::from_secs(3600);
        let (began, stop) = (unix_ms(), sleep(Duration::from_millis(500)));
        let report = tokio::select! {
            report = load.run(stop) => report,
            ended = target::serve(listener) => panic!("{ended:?}"),
        };
        assert!(report.begun > 0, "{report:?}");
        assert_eq!(
            (report.opens, report.failed_opens()),
            (report.begun, 0),
            "{report:?}"
        );
        assert_eq!(
            (report.streams, report.lost_streams()),
            (2, 0),
            "{report:?}"
        );
        assert!(report.last_begun_unix_ms >= began, "{report:?}");
    }

    #[tokio::test]
    async fn a_load_without_processor_time_fails_no_connection() {
        let exchange = async {
            sleep(TICK / 2).await;
            // The load gets no processor for longer than the limit.
            std::thread::sleep(TICK * 6);
            sleep(TICK).await;
            io::Result::Ok(())
        };
        assert_eq!(within(TICK * 4, exchange).await, Ok(()));
        let never = pending::<io::Result<()>>();
        assert_eq!(within(TICK * 2, never).await, Err(Failure::TimedOut.into()));
    }

    #[test]
    fn what_the_own_machine_lacks_is_no_failure_of_the_target() {
        for (errno, expected) in [
            (24, Ended::NotBegun),
            (23, Ended::NotBegun),
            (99, Ended::NotBegun),
            (105, Ended::NotBegun),
            (12, Ended::NotBegun),
            (104, Failure::Reset.into()),
            (111, Failure::Refused.into()),
            (113, Failure::Broken.into()),
        ] {
            assert_eq!(
                ended(&io::Error::from_raw_os_error(errno)),
                expected,
                "{errno}"
            );
        }
    }

    #[tokio::test]
    async fn nobody_there_is_a_refusal_each_time() {
        let (listener, address) = listener().await;
        drop(listener);
        let report = load(address).await.run(pending()).await;
        assert_eq!(report.opens, 10);
        assert_eq!(report.failed[&Failure::Refused].count, 10);
        assert_eq!(report.streams, 0);
    }

    #[tokio::test]
    async fn cuts_are_told_from_early_ends_wrong_bytes_and_silence() {
        let report = seen(Some(Vec::new()), true).await;
        assert_eq!(only(&report.failed), [Failure::Reset]);
        assert_eq!(only(&report.lost), [Failure::Reset]);
        assert!(report.streams > 2, "a lost stream is replaced");

        let report = seen(Some(Vec::new()), false).await;
        assert_eq!(only(&report.failed), [Failure::Short]);

        let report = seen(Some(vec![7; ANSWER_BYTES]), false).await;
        assert_eq!(only(&report.failed), [Failure::Wrong]);
        assert_eq!(only(&report.lost), [Failure::Wrong]);

        let report = seen(None, false).await;
        assert_eq!(report.failed[&Failure::TimedOut].count, 10);
        assert_eq!(only(&report.lost), [Failure::TimedOut]);
    }

    #[tokio::test]
    async fn a_target_tells_a_wrong_request() {
        let (listener, address) = listener().await;
        let ask = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let header = Header::Short(3).encode();
            let request = [&header[..], &[1; REQUEST_BYTES]].concat();
            stream.write_all(&request).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer.len()
        };
        tokio::select! {
            length = ask => assert_eq!(length, ANSWER_BYTES + 1),
            ended = target::serve(listener) => panic!("{ended:?}"),
        }
    }
}

//! Two network namespaces joined by a veth pair. The test creates and removes them.

// Clippy's exception for tests does not apply to helpers of integration tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use muxtunnel_testkit::namespace::{End, Namespace};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The round trip over two one-way delays of 50 ms.
pub(crate) const RTT: Duration = Duration::from_millis(100);

/// Half of the one-way delay: no delayed packet is that fast.
const UNDELAYED: Duration = Duration::from_millis(25);

/// Greatest number of measurements until a result is as expected. On a busy machine, answers can be
/// late although the emulation is correct.
const MEASUREMENTS_MAX: usize = 20;

/// Tests that measure times run one at a time, because the load of one test would disturb another.
static TURN: Mutex<()> = Mutex::new(());

/// Two sites joined by a link, `eth0` at both.
pub(crate) struct Link {
    pub(crate) left: Site,
    pub(crate) right: Site,
    /// Folder for reports and logs of this test.
    pub(crate) folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// A network namespace and its addresses on the link.
pub(crate) struct Site {
    namespace: Namespace,
    pub(crate) ipv4: IpAddr,
    pub(crate) ipv6: IpAddr,
}

impl Link {
    pub(crate) fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let [left, right] = [1u8, 2].map(|host| Site {
            namespace: Namespace::new().unwrap(),
            ipv4: Ipv4Addr::new(10, 64, 0, host).into(),
            ipv6: Ipv6Addr::new(0xfd64, 0, 0, 0, 0, 0, 0, host.into()).into(),
        });
        Namespace::link([&left, &right].map(|site| End {
            namespace: &site.namespace,
            interface: "eth0".to_owned(),
            addresses: vec![format!("{}/24", site.ipv4), format!("{}/64", site.ipv6)],
        }))
        .unwrap();
        let folder = tempfile::tempdir().unwrap();
        Self {
            left,
            right,
            folder,
            _turn: turn,
        }
    }

    pub(crate) fn report(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// `line` has words separated by single spaces.
fn command(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    command
}

impl Site {
    /// Runs `work` inside the namespace.
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        self.namespace.enter(work).unwrap()
    }

    /// Runs `line`, which must succeed. Returns its standard output.
    pub(crate) fn output(&self, line: &str) -> String {
        self.namespace.run(&mut command(line)).unwrap()
    }

    /// Runs `line`. Returns its exit status and its standard error.
    pub(crate) fn refusal(&self, line: &str) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = self.enter(|| command(line).output()).unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    }

    /// Number of TCP segments that this site has retransmitted, over all connections.
    pub(crate) fn retransmitted(&self) -> u64 {
        let table = self.output("cat /proc/net/snmp");
        let mut lines = table.lines().filter(|line| line.starts_with("Tcp:"));
        let [names, values] = [(); 2].map(|()| lines.next().unwrap().split(' '));
        let (_, value) = names
            .zip(values)
            .find(|(name, _)| *name == "RetransSegs")
            .unwrap();
        value.parse().unwrap()
    }

    /// The rules of the mangle table of both families.
    pub(crate) fn rules(&self) -> String {
        self.output("iptables -t mangle -S") + &self.output("ip6tables -t mangle -S")
    }

    /// Starts `muxwan run` and waits for its report.
    pub(crate) fn muxwan(&self, flags: &str, report: &Path) -> Muxwan {
        let line = format!("{} {flags} --report {}", run_line(), report.display());
        let mut command = command(&line);
        command.stdout(Stdio::piped());
        let mut child = self.enter(|| command.spawn()).unwrap();
        let mut text = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut text)
            .unwrap();
        assert!(
            !text.is_empty(),
            "muxwan ended without a report: {:?}",
            child.wait()
        );
        Muxwan {
            child,
            report: serde_json::from_str(&text).unwrap(),
        }
    }
}

/// A running `muxwan`.
pub(crate) struct Muxwan {
    child: Child,
    /// The report that muxwan wrote.
    pub(crate) report: serde_json::Value,
}

impl Muxwan {
    /// Sends SIGTERM and returns the exit status.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM)
    }

    /// Sends SIGKILL, so that the process cannot clean up.
    pub(crate) fn kill(&mut self) {
        assert_eq!(self.signal(Signal::SIGKILL), None);
    }

    fn signal(&mut self, signal: Signal) -> Option<i32> {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Muxwan {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn run_line() -> String {
    format!("{} run", env!("CARGO_BIN_EXE_muxwan"))
}

/// Asserts that the fastest of 20 exchanges takes as long as the delay, and at most 3 % longer. A
/// busy machine slows most exchanges down, but not the fastest one.
pub(crate) fn assert_delayed(link: &Link, to: IpAddr, port: u16) {
    let is_near = |fastest: Duration| {
        assert!(fastest >= RTT, "{fastest:?} is faster than {RTT:?}");
        fastest <= RTT * 103 / 100
    };
    assert_some_measurement(link, to, port, is_near, "is not within 3 % of 100 ms");
}

pub(crate) fn assert_undelayed(link: &Link, to: IpAddr, port: u16) {
    let is_fast = |fastest| fastest < UNDELAYED;
    let complaint = "although packets must not be delayed";
    assert_some_measurement(link, to, port, is_fast, complaint);
}

fn assert_some_measurement(
    link: &Link,
    to: IpAddr,
    port: u16,
    is_good: impl Fn(Duration) -> bool,
    complaint: &str,
) {
    let mut fastest = Duration::MAX;
    for _ in 0..MEASUREMENTS_MAX {
        let times = round_trips(link, to, port);
        fastest = times.into_iter().min().unwrap();
        if is_good(fastest) {
            return;
        }
    }
    panic!("the fastest RTT of {fastest:?} to {to} port {port} {complaint}");
}

/// Exchanges one byte over TCP from left to right, 20 times. Returns the time of each exchange.
pub(crate) fn round_trips(link: &Link, to: IpAddr, port: u16) -> Vec<Duration> {
    let listener = link
        .right
        .enter(|| TcpListener::bind(SocketAddr::new(to, port)).unwrap());
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut byte = [0];
            while stream.read(&mut byte).unwrap() == 1 {
                stream.write_all(&byte).unwrap();
            }
        });
        let mut stream = link.left.enter(|| TcpStream::connect(address).unwrap());
        stream.set_nodelay(true).unwrap();
        (0..20)
            .map(|_| {
                let start = Instant::now();
                stream.write_all(&[1]).unwrap();
                stream.read_exact(&mut [0]).unwrap();
                start.elapsed()
            })
            .collect()
    })
}

/// Sends `bytes` over TCP from left to right. Returns the time between the first and the last byte
/// at the receiver.
pub(crate) fn transfer(link: &Link, to: IpAddr, port: u16, bytes: u64) -> Duration {
    let listener = link
        .right
        .enter(|| TcpListener::bind(SocketAddr::new(to, port)).unwrap());
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let received = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0]).unwrap();
            let start = Instant::now();
            let rest = std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
            assert_eq!(rest + 1, bytes);
            start.elapsed()
        });
        let mut stream = link.left.enter(|| TcpStream::connect(address).unwrap());
        let mut payload = std::io::repeat(0x5a).take(bytes);
        std::io::copy(&mut payload, &mut stream).unwrap();
        drop(stream);
        received.join().unwrap()
    })
}

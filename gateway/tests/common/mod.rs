//! A pair of muxgate processes on loopback, and a target.

pub mod agent;
pub mod aioquic;
pub mod authority;
pub mod ends;
pub mod envoy;
pub mod frames;
pub mod herd;
pub mod http3;
pub mod interop;
pub mod meeting;
pub mod middlebox;
pub mod namespace;
pub mod path;
pub mod peer;
pub mod rules;
pub mod secured;
pub mod slow_link;
pub mod slow_path;
pub mod spellings;
pub mod tools;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

pub use muxtunnel_testkit::pattern::pattern;
pub use muxtunnel_testkit::port::free_port;
pub use muxtunnel_testkit::wait::{PATIENCE, until};
pub(crate) use rules::rule;

use namespace::Namespace;

/// The native protocol over KCP, as a value for tests that are run with each protocol.
pub const OVER_KCP: &str = "Native\ntransport: KCP";

const CONFIG: &str = "config.yaml";
const LOG: &str = "log";

/// A running muxgate, which is killed on drop.
pub struct Gate {
    child: Child,
    pub admin: u16,
    /// The host of the admin port.
    host: &'static str,
    /// The folder of the configuration and the log.
    dir: tempfile::TempDir,
}

impl Gate {
    /// Starts `muxgate ARGS... --admin 127.0.0.1:PORT`. By default, it has one worker, so that a
    /// test finds all sessions on the same worker.
    pub fn with_flags(args: &[&str]) -> Self {
        Self::with_environment(args, &[])
    }

    /// Starts a gateway like [`Self::with_flags`]. Only the variables in `set` specify proxies: the
    /// environment has no other proxy variables.
    pub fn with_environment(args: &[&str], set: &[(&str, &str)]) -> Self {
        let admin = free_port();
        let one_worker = (!args.contains(&"--workers")).then_some(["--workers", "1"]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_muxgate"));
        command
            .args(args)
            .args(["--admin", &format!("127.0.0.1:{admin}")])
            .args(one_worker.iter().flatten());
        for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        command.envs(set.iter().copied());
        Self::start(command, admin, tempfile::tempdir().unwrap())
    }

    /// Starts an exit that accepts carriers on port `carrier` of loopback and may dial `allow`.
    pub fn exit(protocol: &str, carrier: u16, allow: &[&str]) -> Self {
        let (protocol, transport) = flags_of(protocol);
        let listen = format!("127.0.0.1:{carrier}");
        let security = secured::flags(&protocol, "exit");
        let mut args = vec!["exit", "--protocol", &protocol, "--listen", &listen];
        args.extend(["--transport", &transport]);
        args.extend(security.iter().map(String::as_str));
        allow
            .iter()
            .for_each(|target| args.extend(["--allow", target]));
        Self::with_flags(&args)
    }

    /// Starts an entry that connects to the exit on `carrier`. `forwards` has the port and the
    /// target of each forward.
    pub fn entry(protocol: &str, carrier: u16, forwards: &[(u16, SocketAddr)]) -> Self {
        let (protocol, transport) = flags_of(protocol);
        let connect = format!("127.0.0.1:{carrier}");
        let forwards: Vec<_> = forwards
            .iter()
            .map(|(port, target)| format!("{port}:{target}"))
            .collect();
        let security = secured::flags(&protocol, "entry");
        let mut args = vec!["entry", "--protocol", &protocol, "--connect", &connect];
        args.extend(["--transport", &transport]);
        args.extend(security.iter().map(String::as_str));
        forwards
            .iter()
            .for_each(|forward| args.extend(["--forward", forward.as_str()]));
        Self::with_flags(&args)
    }

    /// Starts `muxgate run --config FILE` with `yaml`, in which `ADMIN` is replaced by the admin
    /// address. By default, it has one worker.
    pub fn with_file(yaml: &str) -> Self {
        Self::with_file_and(&[], yaml)
    }

    /// Works as [`Self::with_file`], with these variables in the environment.
    pub fn with_file_and(set: &[(&str, &str)], yaml: &str) -> Self {
        let (admin, dir, config) = configured(yaml);
        let mut command = Command::new(env!("CARGO_BIN_EXE_muxgate"));
        command.envs(set.iter().copied());
        command.arg("run").arg("--config").arg(config);
        Self::start(command, admin, dir)
    }

    /// Works as [`Self::with_file`], with this limit of open files (RLIMIT_NOFILE).
    pub fn with_open_files(limit: u64, yaml: &str) -> Self {
        let (admin, dir, config) = configured(yaml);
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={limit}:{limit}"));
        command.args([env!("CARGO_BIN_EXE_muxgate"), "run", "--config"]);
        command.arg(config);
        Self::start(command, admin, dir)
    }

    /// Works as [`Self::with_file`], in the control group with this directory.
    pub fn in_group(group: &std::path::Path, yaml: &str) -> Self {
        let (admin, dir, config) = configured(yaml);
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]);
        command.arg(group);
        command.args([env!("CARGO_BIN_EXE_muxgate"), "run", "--config"]);
        command.arg(config);
        Self::start(command, admin, dir)
    }

    /// Starts `muxgate ARGS...` in a network namespace. The admin port listens on `host`, which is
    /// an address of the namespace.
    pub fn within(namespace: &Namespace, host: &'static str, args: &[&str]) -> Self {
        let admin = free_port();
        let mut command = namespace.command(env!("CARGO_BIN_EXE_muxgate"));
        command.args(args).args(["--admin", &at(host, admin)]);
        // Each queue of an interface has a worker.
        if !args.contains(&"--queues") {
            command.args(["--workers", "1"]);
        }
        let dir = tempfile::tempdir().unwrap();
        let gate = namespace.enter(|| Self::spawn(host, command, admin, dir));
        gate.until_it_answers()
    }

    /// Starts `muxgate ARGS...` that is expected to fail, so it has no admin port.
    pub fn without_admin(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muxgate"));
        command.args(args);
        Self::spawn("", command, 0, tempfile::tempdir().unwrap())
    }

    fn start(command: Command, admin: u16, dir: tempfile::TempDir) -> Self {
        Self::spawn("127.0.0.1", command, admin, dir).until_it_answers()
    }

    fn until_it_answers(self) -> Self {
        until("the admin port answers", || {
            TcpStream::connect((self.host, self.admin)).is_ok()
        });
        self
    }

    fn spawn(host: &'static str, mut command: Command, admin: u16, dir: tempfile::TempDir) -> Self {
        let log = File::create(dir.path().join(LOG)).unwrap();
        Self {
            child: command.stderr(log).spawn().unwrap(),
            admin,
            host,
            dir,
        }
    }

    /// The log of the gateway.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join(LOG)).unwrap()
    }

    /// Waits for a log line that contains all of `parts`, and returns this line.
    pub fn line(&self, parts: &[&str]) -> String {
        let mut found = None;
        until(&format!("the log has a line with {parts:?}"), || {
            let log = self.log();
            let line = log
                .lines()
                .find(|line| parts.iter().all(|part| line.contains(part)));
            found = line.map(str::to_owned);
            found.is_some()
        });
        found.unwrap()
    }

    pub fn rewrite(&self, yaml: &str) {
        let config = self.dir.path().join(CONFIG);
        let text = filled_in(yaml, self.admin);
        let staged = config.with_extension("new");
        std::fs::write(&staged, text).unwrap();
        std::fs::rename(staged, config).unwrap();
    }

    /// Status code and body of `GET path`.
    pub fn get(&self, path: &str) -> (u16, String) {
        let mut tcp = TcpStream::connect((self.host, self.admin)).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            tcp,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        tcp.read_to_string(&mut answer).unwrap();
        let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer
            .split_once("\r\n\r\n")
            .map(|(_, body)| body.to_owned())
            .unwrap_or_default();
        (code, body)
    }

    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.get("/status").1).unwrap()
    }

    /// The reason why the exit does not listen for this entry's first forward. `None`: the exit
    /// listens.
    pub fn listen_problem(&self) -> Option<String> {
        let status = self.status();
        // The admin port answers before the workers have begun.
        let Some(forward) = status["forwards"].get(0) else {
            return Some("the entry has no forward yet".to_owned());
        };
        forward["error"].as_str().map(str::to_owned)
    }

    /// Waits until the exit listens for this entry's first forward.
    pub fn until_listening(&self) {
        until("the exit listens", || self.listen_problem().is_none());
    }

    pub fn until_ready(self) -> Self {
        until("the gateway is ready", || self.get("/readyz").0 == 200);
        self
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let done = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(done.success());
        // The kernel stops the threads of a process one after the other.
        if name == "STOP" {
            until("all threads are stopped", || {
                self.threads().all(|stat| stat.contains(") T "))
            });
        }
    }

    /// The file `stat` of each thread (proc_pid_stat(5)).
    fn threads(&self) -> impl Iterator<Item = String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok())
    }

    pub fn wait(self) -> ExitStatus {
        self.wait_for_log().0
    }

    /// Waits for the end of the process. Returns the exit status and the whole log.
    pub fn wait_for_log(mut self) -> (ExitStatus, String) {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, self.log());
            }
            assert!(start.elapsed() < PATIENCE, "muxgate did not end in time");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let completed = |line: &&str| line.contains(COMPLETED);
            let left_out = log.lines().filter(completed).count();
            eprintln!(
                "log of the gateway with admin port {}, without {left_out} lines of completed streams:",
                self.admin
            );
            log.lines()
                .filter(|line| !completed(line))
                .for_each(|line| eprintln!("{line}"));
        }
    }
}

/// A log line with this text reports a stream that ended in order.
const COMPLETED: &str = "reason=\"completed\"";

/// The values of `--protocol` and `--transport` for a protocol that is written as in a
/// configuration file, such as [`OVER_KCP`].
fn flags_of(protocol: &str) -> (String, String) {
    let (protocol, transport) = protocol
        .split_once("\ntransport: ")
        .unwrap_or((protocol, "tcp"));
    (protocol.to_lowercase(), transport.to_lowercase())
}

/// Formats `host:port`, with an IPv6 address in brackets.
pub fn at(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// An admin port, and a folder with the configuration `yaml`.
fn configured(yaml: &str) -> (u16, tempfile::TempDir, PathBuf) {
    let admin = free_port();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join(CONFIG);
    std::fs::write(&config, filled_in(yaml, admin)).unwrap();
    (admin, dir, config)
}

fn filled_in(yaml: &str, admin: u16) -> String {
    let workers = if yaml.contains("workers:") {
        ""
    } else {
        "workers: 1\n"
    };
    let yaml = secured::filled_in(yaml);
    workers.to_owned() + &yaml.replace("ADMIN", &format!("127.0.0.1:{admin}"))
}

/// An entry and an exit with a forward to a target.
pub struct Pair {
    pub entry: Gate,
    pub exit: Gate,
    pub forward: SocketAddr,
}

impl Pair {
    pub fn to(protocol: &str, target: SocketAddr) -> Self {
        let (carrier, forward) = (free_port(), free_port());
        let exit = Gate::exit(protocol, carrier, &[&target.to_string()]);
        let entry = Gate::entry(protocol, carrier, &[(forward, target)]).until_ready();
        Self {
            entry,
            exit,
            forward: SocketAddr::from((Ipv4Addr::LOCALHOST, forward)),
        }
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.forward)
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    tcp.set_write_timeout(Some(PATIENCE)).unwrap();
    tcp
}

/// A listener on loopback and its address.
pub fn target() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A listener whose backlog is full, so that a further connection gets no answer.
pub fn full_target() -> (TcpListener, Vec<socket2::Socket>) {
    let socket = || {
        let (domain, kind) = (socket2::Domain::IPV4, socket2::Type::STREAM);
        socket2::Socket::new(domain, kind.nonblocking(), None).unwrap()
    };
    let listener = socket();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = |_| {
        let client = socket();
        // Ignores the result: the connection is in progress, or the full backlog leaves it without
        // an answer.
        let _ = client.connect(&address);
        client
    };
    let waiting = (0..4).map(connect).collect();
    (listener.into(), waiting)
}

pub fn accept(listener: &TcpListener) -> TcpStream {
    // On Linux, the receive timeout of a listening socket also bounds accept(2).
    let socket = socket2::SockRef::from(listener);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let (tcp, _) = listener.accept().expect("no connection arrived in time");
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    tcp.set_write_timeout(Some(PATIENCE)).unwrap();
    tcp
}

/// Sends from a separate thread, so that a full socket does not block the test.
pub fn send_in_background(
    tcp: &TcpStream,
    bytes: Vec<u8>,
    finish: bool,
) -> std::thread::JoinHandle<()> {
    let mut tcp = tcp.try_clone().unwrap();
    std::thread::spawn(move || {
        tcp.write_all(&bytes).unwrap();
        if finish {
            tcp.shutdown(std::net::Shutdown::Write).unwrap();
        }
    })
}

/// Reads all bytes up to a clean end of file.
pub fn read_all(mut tcp: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    tcp.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Transfers `bytes` bytes in both directions at once over one stream.
pub fn assert_bulk(client: &TcpStream, server: TcpStream, bytes: usize) {
    let (up, down) = (pattern(1, bytes), pattern(2, bytes));
    let senders = [
        send_in_background(client, up.clone(), true),
        send_in_background(&server, down.clone(), true),
    ];
    let at_server = std::thread::spawn(move || read_all(&server));
    assert!(read_all(client) == down);
    assert!(at_server.join().unwrap() == up);
    for sender in senders {
        sender.join().unwrap();
    }
}

/// Reads until the connection ends. Returns the number of bytes before an end of file, or the error
/// of a reset.
pub fn end_of(mut tcp: &TcpStream) -> std::io::Result<usize> {
    let mut total = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match tcp.read(&mut buffer)? {
            0 => return Ok(total),
            length => total += length,
        }
    }
}

/// Closes a connection by a reset.
pub fn reset(tcp: TcpStream) {
    socket2::SockRef::from(&tcp)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

pub fn assert_reset(tcp: &TcpStream) {
    match end_of(tcp) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("expected a reset, got {other:?}"),
    }
}

/// Asserts a reset or an end of file, without bytes before it: OpenSSH forwards a reset as an end of
/// file, and Envoy cannot reset a client whose CONNECT was refused. A connection that is still open
/// after the read time-out is a failure.
pub fn assert_reset_or_end(tcp: &TcpStream) {
    match end_of(tcp) {
        Ok(0) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("expected a reset or an end of file, got {other:?}"),
    }
}

/// The value of a counter on the metrics page.
pub fn metric(gate: &Gate, name: &str) -> u64 {
    let (_, page) = gate.get("/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix(name));
    let value = value.unwrap_or_else(|| panic!("no {name} in\n{page}"));
    value.trim().parse().unwrap()
}

/// Asserts that the gateway has never used more than 64 MiB of memory.
pub fn assert_small(gate: &Gate) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gate.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.unwrap().trim().trim_end_matches(" kB").parse::<u64>();
    assert!(kib.unwrap() < 64 << 10, "{status}");
}

//! What is compared: a direct connection, our gateways, and the peers found on this machine.
//!
//! Owns the ports, the command lines and the processes of each [`System`]. A system is up when an
//! exchange through it to the echo server has worked. A new peer starts here.

use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Where the iperf server listens.
pub(crate) const IPERF_PORT: u16 = muxtunnel_bench_api::IPERF_PORT;
/// Where the echo server listens.
pub(crate) const ECHO_PORT: u16 = muxtunnel_bench_api::ECHO_PORT;

/// How long a system may take until the first exchange works.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// The pause between two attempts at it.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(50);
/// How long an attempt waits for the answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// One of the systems that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    /// No gateway at all.
    Direct,
    /// A pair of our gateways with the JMUX protocol.
    MuxgateJmux,
    /// A pair of jetsocat processes.
    Jetsocat,
}

/// The programs to be run.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) muxgate: PathBuf,
    pub(crate) jetsocat: PathBuf,
}

impl System {
    /// All systems, in the order of the table; the first is what the others are divided by.
    pub(crate) const ALL: [Self; 3] = [Self::Direct, Self::MuxgateJmux, Self::Jetsocat];

    /// The name in the table and in the JSON lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::MuxgateJmux => "muxgate-jmux",
            Self::Jetsocat => "jetsocat",
        }
    }

    /// Whether a missing program is a row of the table and no failure: peers are optional.
    pub(crate) fn is_peer(self) -> bool {
        self == Self::Jetsocat
    }

    /// Where iperf's client connects to.
    pub(crate) fn iperf_port(self) -> u16 {
        IPERF_PORT + self.offset()
    }

    /// Where the ping-pong connects to.
    pub(crate) fn echo_port(self) -> u16 {
        ECHO_PORT + self.offset()
    }

    fn carrier_port(self) -> u16 {
        6000 + self.offset()
    }

    fn offset(self) -> u16 {
        match self {
            Self::Direct => 0,
            Self::MuxgateJmux => 100,
            Self::Jetsocat => 200,
        }
    }

    /// The command lines of the side that dials the servers and of the side that clients connect to,
    /// in the order of their start. Empty for a direct connection.
    fn commands(self, programs: &Programs) -> Vec<(PathBuf, Vec<String>)> {
        let carrier = self.carrier_port();
        let (iperf, echo) = (self.iperf_port(), self.echo_port());
        let lines = match self {
            Self::Direct => return Vec::new(),
            Self::MuxgateJmux => [
                format!(
                    "exit --protocol jmux --security none --listen 127.0.0.1:{carrier} \
                     --allow 127.0.0.1:{IPERF_PORT} --allow 127.0.0.1:{ECHO_PORT}"
                ),
                format!(
                    "entry --protocol jmux --security none --connect 127.0.0.1:{carrier} \
                     --forward {iperf}:127.0.0.1:{IPERF_PORT} --forward {echo}:127.0.0.1:{ECHO_PORT}"
                ),
            ],
            Self::Jetsocat => [
                format!("jmux-proxy tcp-listen://127.0.0.1:{carrier} --allow-all --log-term"),
                format!(
                    "jmux-proxy tcp://127.0.0.1:{carrier} \
                     tcp-listen://127.0.0.1:{iperf}/127.0.0.1:{IPERF_PORT} \
                     tcp-listen://127.0.0.1:{echo}/127.0.0.1:{ECHO_PORT} --log-term"
                ),
            ],
        };
        let program = match self {
            Self::Jetsocat => &programs.jetsocat,
            _ => &programs.muxgate,
        };
        lines
            .map(|line| {
                (
                    program.clone(),
                    line.split(' ').map(str::to_owned).collect(),
                )
            })
            .into()
    }

    /// Starts the system's processes, with their output in `logs`, and waits until it carries bytes.
    ///
    /// # Errors
    /// `not found` when the program is missing; else what failed, with the name of the log.
    pub(crate) fn start(self, programs: &Programs, logs: &Path) -> Result<Running> {
        let mut running = Running {
            system: self,
            processes: Vec::new(),
        };
        for (index, (program, arguments)) in self.commands(programs).into_iter().enumerate() {
            let path = logs.join(format!("{}-{}.log", self.name(), ["exit", "entry"][index]));
            let log = File::create(&path).with_context(|| format!("making {}", path.display()))?;
            let child = Command::new(&program)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn();
            match child {
                Ok(child) => running.processes.push(child),
                Err(error) if error.kind() == ErrorKind::NotFound => bail!("not found"),
                Err(error) => return Err(error).context(format!("starting {}", program.display())),
            }
            if index == 0 {
                wait_for(
                    || listens(self.carrier_port()),
                    "its carrier's port to listen",
                )
                .with_context(|| format!("see {}", path.display()))?;
            }
        }
        wait_for(
            || exchange(self.echo_port()).is_ok(),
            "an exchange through it",
        )
        .with_context(|| format!("see {}", logs.display()))?;
        Ok(running)
    }
}

/// The processes of a system; they end with this value.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) system: System,
    processes: Vec<Child>,
}

impl Running {
    /// The process ids of both sides.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Child::id).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // An error says that it has ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Asks again and again, up to [`START_TIMEOUT`].
fn wait_for(mut is_so: impl FnMut() -> bool, what: &str) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    while !is_so() {
        if Instant::now() >= deadline {
            bail!("waited {START_TIMEOUT:?} for {what}");
        }
        thread::sleep(ATTEMPT_INTERVAL);
    }
    Ok(())
}

/// Whether a socket listens on this port; connecting to find out could use up a peer's one carrier.
fn listens(port: u16) -> bool {
    std::fs::read_to_string("/proc/net/tcp").is_ok_and(|table| lists_listener(&table, port))
}

/// `table`: `/proc/net/tcp`, where state 0A is LISTEN.
fn lists_listener(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let local = fields.get(1).and_then(|address| address.rsplit_once(':'));
        local.is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port))
            && fields.get(3) == Some(&"0A")
    })
}

fn exchange(port: u16) -> std::io::Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, ATTEMPT_TIMEOUT)?;
    stream.set_read_timeout(Some(ATTEMPT_TIMEOUT))?;
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(system: System) -> Vec<String> {
        let programs = Programs {
            muxgate: "muxgate".into(),
            jetsocat: "jetsocat".into(),
        };
        system
            .commands(&programs)
            .into_iter()
            .map(|(program, arguments)| format!("{} {}", program.display(), arguments.join(" ")))
            .collect()
    }

    #[test]
    fn a_direct_connection_has_no_processes() {
        assert!(lines(System::Direct).is_empty());
        assert_eq!(System::Direct.iperf_port(), IPERF_PORT);
    }

    #[test]
    fn the_gateways_forward_both_servers_over_one_carrier() {
        assert_eq!(
            lines(System::MuxgateJmux),
            [
                "muxgate exit --protocol jmux --security none --listen 127.0.0.1:6100 \
                 --allow 127.0.0.1:5001 --allow 127.0.0.1:5002",
                "muxgate entry --protocol jmux --security none --connect 127.0.0.1:6100 \
                 --forward 5101:127.0.0.1:5001 --forward 5102:127.0.0.1:5002",
            ]
        );
    }

    #[test]
    fn the_peer_runs_with_its_users_command_line() {
        assert_eq!(
            lines(System::Jetsocat),
            [
                "jetsocat jmux-proxy tcp-listen://127.0.0.1:6200 --allow-all --log-term",
                "jetsocat jmux-proxy tcp://127.0.0.1:6200 tcp-listen://127.0.0.1:5201/127.0.0.1:5001 \
                 tcp-listen://127.0.0.1:5202/127.0.0.1:5002 --log-term",
            ]
        );
    }

    #[test]
    fn a_program_that_is_not_installed_is_not_found() {
        let programs = Programs {
            muxgate: "muxgate".into(),
            jetsocat: "/no/such/program".into(),
        };
        let folder = tempfile::tempdir().unwrap();
        let error = System::Jetsocat
            .start(&programs, folder.path())
            .unwrap_err();
        assert_eq!(error.to_string(), "not found");
    }

    #[test]
    fn a_listening_port_is_told_from_a_connected_one() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                        0: 0100007F:1838 00000000:0000 0A 00000000:00000000\n\
                        1: 0100007F:1839 0100007F:1838 01 00000000:00000000\n";
        assert!(lists_listener(table, 6200));
        assert!(!lists_listener(table, 6201));
    }
}

//! aioquic, from the PyPI package of that name, as either end of HTTP/3
//! (gateway/tests/aioquic/proxy.py).

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::common::authority::Files;
use crate::common::tools::Running;
use crate::common::{free_port, until};

/// A Python interpreter with aioquic.
const PYTHON: &str = "aioquic-python";

/// A running instance.
pub struct Aioquic {
    process: Mutex<Running>,
    /// The address on which the instance listens.
    pub address: SocketAddr,
    output: PathBuf,
    _dir: tempfile::TempDir,
}

pub fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

impl Aioquic {
    /// Starts an entry. For each connection, the entry sends a CONNECT for `target` to `exit`.
    /// `files` are the entry's own files. `name` is the name of the exit.
    pub fn entry(exit: SocketAddr, target: SocketAddr, files: &Files, name: &str) -> Self {
        Self::entry_that_may_fail(exit, target, files, name).until_ready()
    }

    /// Works like [`Self::entry`], but does not require that the entry starts.
    pub fn entry_that_may_fail(
        exit: SocketAddr,
        target: SocketAddr,
        files: &Files,
        name: &str,
    ) -> Self {
        let listen = loopback();
        let mut args = vec!["entry".to_owned()];
        args.extend([exit, listen, target].map(|address| address.to_string()));
        args.extend(["--name", name, "--ca"].map(str::to_owned));
        args.push(files.ca.display().to_string());
        Self::start(args, files, listen)
    }

    /// Starts an exit that dials the requested targets, or denies all of them.
    pub fn exit(files: &Files, denies: bool) -> Self {
        let listen = loopback();
        let mut args = vec!["exit".to_owned(), listen.to_string()];
        args.extend(denies.then(|| "--deny".to_owned()));
        Self::start(args, files, listen).until_ready()
    }

    fn start(args: Vec<String>, files: &Files, address: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("output");
        let log = File::create(&output).unwrap();
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/aioquic/proxy.py");
        let process = Command::new(PYTHON)
            .arg(program)
            .args(args)
            .arg("--certificate")
            .arg(&files.certificate)
            .arg("--key")
            .arg(&files.key)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{PYTHON}: {error}: run e2e/peers, which installs aioquic, and put ~/.cache/muxtunnel/bin on the PATH")
            });
        Self {
            process: Mutex::new(Running(process)),
            address,
            output,
            _dir: dir,
        }
    }

    fn until_ready(self) -> Self {
        self.says("ready");
        self
    }

    /// Waits for a line that contains `text`. Returns the last such line.
    pub fn says(&self, text: &str) -> String {
        let mut found = None;
        until(&format!("aioquic says {text:?}"), || {
            let output = std::fs::read_to_string(&self.output).unwrap();
            assert!(!output.contains("Traceback"), "{output}");
            found = output
                .lines()
                .rfind(|line| line.contains(text))
                .map(str::to_owned);
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits until the process has ended.
    pub fn ends(&self) {
        until("aioquic ends", || {
            let mut process = self.process.lock().unwrap();
            process.0.try_wait().unwrap().is_some()
        });
    }
}

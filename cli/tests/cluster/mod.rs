//! Runs the program with an API server in memory, which the program reaches over HTTP.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared by tests"
)]

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use muxtunnel_testkit::api_server::FakeApi;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The server and a kubeconfig for it.
pub(crate) struct Cluster {
    api: FakeApi,
    folder: TempDir,
}

impl Deref for Cluster {
    type Target = FakeApi;

    fn deref(&self) -> &FakeApi {
        &self.api
    }
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let api = FakeApi::default();
        let folder = tempfile::tempdir().unwrap();
        write_kubeconfig(folder.path(), api.listen());
        Self { api, folder }
    }

    /// The path of a file of this test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Stores an object of `tests/objects`, to which `change` was applied.
    pub(crate) fn object(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = format!("{}/tests/objects/{file}", env!("CARGO_MANIFEST_DIR"));
        let mut object: Value =
            serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        change(&mut object);
        let [namespace, name] =
            ["namespace", "name"].map(|field| object["metadata"][field].as_str().unwrap());
        let kind = object["kind"].as_str().unwrap().to_ascii_lowercase();
        // The plural of MuxRendezvous has no further letter.
        let plural = format!("{}s", kind.trim_end_matches('s'));
        let key = format!("{plural}/{name}@{namespace}");
        self.put(&key, object);
    }

    /// `METHOD path` and body of each write, without access reviews.
    pub(crate) fn written(&self) -> Vec<(String, Value)> {
        self.requests()
            .into_iter()
            .filter(|request| request.method != "GET")
            .map(|request| (format!("{} {}", request.method, request.uri), request.body))
            .collect()
    }

    /// The command that runs the program with the command line `line`.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muxtunnel"));
        command
            .args(shlex::split(line).unwrap())
            .env("KUBECONFIG", self.file("kubeconfig"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs the program with a command line.
    pub(crate) fn run(&self, line: &str) -> Ran {
        Ran::from(self.command(line).output().unwrap())
    }
}

fn write_kubeconfig(folder: &Path, server: SocketAddr) {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "shop"}},
            {"name": "far", "context": {"cluster": "c", "user": "u", "namespace": "backend"}},
            {"name": "nowhere", "context": {"cluster": "n", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": format!("http://{server}")}},
            // The port of tcpmux has no listener.
            {"name": "n", "cluster": {"server": "http://127.0.0.1:1"}},
        ],
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(folder.join("kubeconfig"), config.to_string()).unwrap();
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Standard output as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

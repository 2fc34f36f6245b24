//! The programs of this machine that tests call: kubectl, helm, docker, our command line and scripts of this checkout.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

/// The top folder of this checkout.
#[must_use]
pub fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a program to its end and returns what it printed.
///
/// # Errors
/// If it cannot be started (it is missing: `make install` brings it) or fails; with what it printed.
pub async fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Result<String> {
    run_with(&[], program, arguments).await
}

/// Runs a program with further variables in its environment; see [`run`].
///
/// # Errors
/// As [`run`].
pub async fn run_with(
    environment: &[(&str, &str)],
    program: impl AsRef<Path>,
    arguments: &[&str],
) -> Result<String> {
    let program = program.as_ref();
    let name = program.display();
    let output = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(checkout())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {name}; `make install` installs what the tests need, and `eval \"$(e2e/cluster/cluster env)\"` puts it on the PATH"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!(
            "{name} {} ended with {}:\n{text}{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(text)
}

/// What our command line printed, and how it ended.
#[derive(Debug)]
pub struct Ran {
    /// Its exit status.
    pub status: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs `muxtunnel`, which cargo has built beside the tests, to its end, well or not.
///
/// # Errors
/// If it is not built, or was killed.
pub async fn muxtunnel(arguments: &[&str]) -> Result<Ran> {
    // This test is in the folder `deps` beside it.
    let test = env::current_exe().context("the path of this test")?;
    let folder = test.parent().and_then(Path::parent);
    let program = folder.context("cargo's target folder")?.join("muxtunnel");
    let output = Command::new(&program)
        .args(arguments)
        .current_dir(checkout())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| {
            let program = program.display();
            format!("cannot run {program}; `cargo build -p muxtunnel-cli` builds it")
        })?;
    let status = output.status.code().context("muxtunnel was killed")?;
    Ok(Ran {
        status,
        out: String::from_utf8(output.stdout)?,
        err: String::from_utf8(output.stderr)?,
    })
}

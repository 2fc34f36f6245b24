//! The programs that tests call: kubectl, helm, docker, `muxtunnel` and scripts of this checkout.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

/// The top folder of this checkout.
#[must_use]
pub fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a program to its end. Returns its output.
///
/// # Errors
/// If the program is missing (`make install` installs it) or fails. The message contains its
/// output.
pub async fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Result<String> {
    run_with(&[], program, arguments).await
}

/// Runs a program with additional environment variables. See [`run`].
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
        .with_context(|| format!("cannot run {name}: run `make install`, which installs it, and `eval \"$(e2e/cluster/cluster env)\"`, which adds it to the PATH"))?;
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

/// The output and the exit status of `muxtunnel`.
#[derive(Debug)]
pub struct Ran {
    /// Exit status.
    pub status: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs `muxtunnel` to its end, and returns its output and exit status. Cargo builds `muxtunnel`
/// and the tests in the same target folder.
///
/// # Errors
/// If `muxtunnel` is not built, or was killed.
pub async fn muxtunnel(arguments: &[&str]) -> Result<Ran> {
    muxtunnel_with(&[], arguments).await
}

/// The path of `muxtunnel`.
///
/// # Errors
/// If the path of this test is unknown.
pub fn muxtunnel_program() -> Result<PathBuf> {
    // The program of this test is in the folder `deps`. `muxtunnel` is in the parent folder of
    // `deps`.
    let test = env::current_exe().context("the path of this test")?;
    let folder = test.parent().and_then(Path::parent);
    Ok(folder.context("cargo's target folder")?.join("muxtunnel"))
}

/// Runs `muxtunnel` with additional environment variables. See [`muxtunnel`].
///
/// # Errors
/// As [`muxtunnel`].
pub async fn muxtunnel_with(environment: &[(&str, &str)], arguments: &[&str]) -> Result<Ran> {
    let program = muxtunnel_program()?;
    let output = Command::new(&program)
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(checkout())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| {
            let program = program.display();
            format!("cannot run {program}: run `cargo build -p muxtunnel-cli`")
        })?;
    let status = output.status.code().context("muxtunnel was killed")?;
    Ok(Ran {
        status,
        out: String::from_utf8(output.stdout)?,
        err: String::from_utf8(output.stderr)?,
    })
}

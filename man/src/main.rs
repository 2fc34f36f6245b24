//! `mangen FOLDER` writes the manual pages of all programs into a folder.

use std::path::PathBuf;

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.context("expected a folder: mangen FOLDER")?;
    let written = muxtunnel_man::write(&folder)?;
    println!("{written} pages in {}", folder.display());
    Ok(())
}

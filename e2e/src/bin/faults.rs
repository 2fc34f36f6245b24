//! `faults [WORD]...`: causes all faults, or only faults whose names contain a WORD, in the cluster
//! of `make install`. The program prints the table. It also writes the table and the outcomes (as
//! lines of JSON) to the folder `faults` in cargo's target folder. Exit status: 0 if all faults
//! succeeded, 1 if some failed, 2 if no name contains a WORD.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use muxtunnel_e2e::faults::{ALL, Fault, table};
use muxtunnel_e2e::{none_is_deleted, tools};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let words: Vec<String> = env::args().skip(1).collect();
    let asked = |fault: &&Fault| {
        words.is_empty() || words.iter().any(|word| fault.name.contains(word.as_str()))
    };
    let faults: Vec<&Fault> = ALL.iter().filter(asked).collect();
    if faults.is_empty() {
        eprintln!("no fault's name contains one of these words; the faults are:");
        for fault in ALL {
            eprintln!("  {}", fault.name);
        }
        return Ok(ExitCode::from(2));
    }
    let folder = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| tools::checkout().join("target"), PathBuf::from);
    let folder = folder.join("faults");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut lines = String::new();
    let mut outcomes = Vec::new();
    for fault in faults {
        eprintln!("== {} ==", fault.name);
        none_is_deleted(fault.scale.cluster).await?;
        let outcome = fault.run().await;
        let line = match &outcome {
            Ok(outcome) => json!({"fault": fault.name, "runs": fault.runs, "outcome": outcome}),
            Err(error) => {
                json!({"fault": fault.name, "runs": fault.runs, "error": format!("{error:#}")})
            }
        };
        println!("{line}");
        lines.push_str(&format!("{line}\n"));
        // Writes the file after each fault, because a later fault may end this program.
        fs::write(folder.join("outcomes.jsonl"), &lines)?;
        outcomes.push((fault, outcome));
    }
    let text = table(&outcomes);
    fs::write(folder.join("table.txt"), &text)?;
    println!("\n{text}");
    let all = outcomes.iter().all(|(_, outcome)| outcome.is_ok());
    Ok(if all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

//! Documentation pages whose commands a test runs: fenced blocks of `sh`, and blocks of `text` with
//! their output.

use anyhow::{Result, ensure};

/// A block of commands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// The commands, for bash.
    pub commands: String,
    /// Lines that the output of the commands must contain.
    pub prints: Vec<String>,
}

/// The steps of a page, in order: each block of `sh` with the blocks of `text` up to the next step.
///
/// # Errors
/// If a block has another language or is not closed, or if a block of `text` precedes the first
/// block of `sh`.
pub fn steps(page: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            continue;
        };
        let mut block: Vec<&str> = Vec::new();
        loop {
            match lines.next() {
                Some("```") => break,
                Some(line) => block.push(line),
                None => anyhow::bail!("the block ```{language} is not closed"),
            }
        }
        match (language, steps.last_mut()) {
            ("sh", _) => steps.push(Step {
                commands: block.join("\n"),
                prints: Vec::new(),
            }),
            ("text", Some(step)) => step.prints.extend(block.into_iter().map(str::to_owned)),
            _ => anyhow::bail!("unexpected block ```{language}"),
        }
    }
    ensure!(!steps.is_empty(), "the page has no block ```sh");
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_block_of_commands_and_what_it_prints() {
        let page = "# Page\n```sh\none\ntwo\n```\nprints\n```text\nfirst\n```\nand\n```text\nsecond\n```\n\n```sh\nthree\n```\n";
        let step = |commands: &str, prints: &[&str]| Step {
            commands: commands.to_owned(),
            prints: prints.iter().map(|line| (*line).to_owned()).collect(),
        };
        let wanted = [step("one\ntwo", &["first", "second"]), step("three", &[])];
        assert_eq!(steps(page).unwrap(), wanted);
    }

    #[test]
    fn blocks_that_no_test_would_run_are_errors() {
        for (page, error) in [
            ("# Page\n", "the page has no block ```sh"),
            ("```sh\none\n", "the block ```sh is not closed"),
            ("```bash\none\n```\n", "unexpected block ```bash"),
            ("```text\none\n```\n", "unexpected block ```text"),
        ] {
            assert_eq!(steps(page).unwrap_err().to_string(), error, "{page}");
        }
    }

    #[test]
    fn the_quickstart_installs_sends_a_request_and_cleans_up() {
        let steps = steps(include_str!("../../docs/quickstart.md")).unwrap();
        let first = &steps.first().unwrap().commands;
        assert!(first.starts_with("helm install muxtunnel "), "{first}");
        let last = &steps.last().unwrap().commands;
        assert!(last.contains("helm uninstall muxtunnel "), "{last}");
        let sends = steps.iter().find(|step| step.commands.contains("curl "));
        assert_eq!(sends.unwrap().prints, ["Hello from web"]);
    }
}

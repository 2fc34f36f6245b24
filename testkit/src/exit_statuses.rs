//! The table of exit statuses in `docs/cli.md`, checked against the constants of a program.

/// Asserts that the rows of `program` in the table are exactly `statuses`, in this order.
///
/// # Panics
/// The rows differ, or the page cannot be read.
pub fn assert_documented(program: &str, statuses: &[(u8, &str)]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (_, section) = page.split_once("\n## Exit statuses\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let first = format!("| `{program}` | ");
    let rows: Vec<_> = section
        .lines()
        .filter(|line| line.starts_with(&first))
        .collect();
    let expected: Vec<_> = statuses
        .iter()
        .map(|(status, meaning)| format!("{first}{status} | {meaning} |"))
        .collect();
    assert_eq!(rows, expected, "docs/cli.md, exit statuses of {program}");
}

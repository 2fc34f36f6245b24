//! `explain`: a code's cause and remedy, without a cluster.

use muxtunnel_codes::Code;
use serde::Serialize;

use crate::args::ExplainArgs;
use crate::end::{Ended, Failure};
use crate::output::{Document, Style, Terminal};
use crate::table;

/// Prints one code, or all codes.
pub(crate) fn run(args: &ExplainArgs, terminal: &Terminal) -> Result<Ended, Failure> {
    match &args.code {
        Some(typed) => {
            let code = find(typed).map_err(Failure::Usage)?;
            terminal.print(&CodeEntry::new(code), args.output)?;
        }
        None => terminal
            .with_headers(!args.no_headers)
            .print(&CodeList::all(), args.output)?,
    }
    Ok(Ended::Good)
}

/// Finds a code by `MT0308`, `mt308`, `308` or `SysctlForbidden`. The error names the nearest code.
fn find(typed: &str) -> Result<Code, String> {
    let digits = typed.trim_start_matches(['m', 'M', 't', 'T']);
    let number: Option<u16> = digits.parse().ok();
    let found = match number {
        Some(number) => Code::from_number(number),
        None => Code::ALL
            .iter()
            .copied()
            .find(|code| code.reason().eq_ignore_ascii_case(typed)),
    };
    found.ok_or_else(|| {
        let nearest = match number {
            Some(number) => nearest(|code| usize::from(code.number().abs_diff(number))),
            None => nearest(|code| {
                strsim::levenshtein(&code.reason().to_lowercase(), &typed.to_lowercase())
            }),
        };
        format!(
            "code {typed} not found{}; `explain` without a code lists all codes of version {}",
            nearest.map_or_else(String::new, |code| format!(
                ", the nearest is {code} ({})",
                code.reason()
            )),
            env!("CARGO_PKG_VERSION")
        )
    })
}

fn nearest(distance: impl Fn(&Code) -> usize) -> Option<Code> {
    Code::ALL.iter().copied().min_by_key(distance)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CodeEntry {
    code: String,
    reason: &'static str,
    cause: &'static str,
    remedy: &'static str,
    page: String,
}

impl CodeEntry {
    fn new(code: Code) -> Self {
        Self {
            code: code.to_string(),
            reason: code.reason(),
            cause: code.cause(),
            remedy: code.remedy(),
            page: code.anchor(),
        }
    }
}

impl Document for CodeEntry {
    const KIND: &'static str = "Code";

    fn text(&self, style: Style) -> String {
        let Self {
            code,
            reason,
            cause,
            remedy,
            page,
        } = self;
        format!(
            "{code}  {reason}\n\n  Cause:   {}\n  Remedy:  {}\n  Page:    {page}",
            table::wrapped(cause, 11, style.columns),
            table::wrapped(remedy, 11, style.columns),
        )
    }
}

#[derive(Serialize)]
struct CodeList {
    items: Vec<CodeEntry>,
}

impl CodeList {
    fn all() -> Self {
        Self {
            items: Code::ALL.iter().copied().map(CodeEntry::new).collect(),
        }
    }
}

impl Document for CodeList {
    const KIND: &'static str = "CodeList";

    fn text(&self, style: Style) -> String {
        let row = |entry: &CodeEntry| {
            [entry.code.as_str(), entry.reason, entry.cause]
                .map(str::to_owned)
                .to_vec()
        };
        table::draw(
            &["CODE", "REASON", "CAUSE"],
            self.items.iter().map(row).collect(),
            style,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{COLUMNS, Format, rendered};

    #[test]
    fn a_code_is_found_however_it_is_written() {
        for typed in [
            "MT0308",
            "mt0308",
            "MT308",
            "308",
            "SysctlForbidden",
            "sysctlforbidden",
        ] {
            assert_eq!(find(typed), Ok(Code::SysctlForbidden), "{typed}");
        }
    }

    #[test]
    fn what_is_no_code_is_answered_with_the_nearest() {
        let number = find("MT0309999").unwrap_err();
        assert!(number.starts_with("code MT0309999 not found"), "{number}");
        for (typed, nearest) in [
            ("MT0312", "MT0310"),
            ("SysctlForbiden", "MT0308 (SysctlForbidden)"),
            ("0", "MT0101"),
        ] {
            let said = find(typed).unwrap_err();
            let wanted = format!("code {typed} not found, the nearest is {nearest}");
            assert!(said.starts_with(&wanted), "{said}");
        }
    }

    #[test]
    fn every_code_fits_the_width_and_has_its_page() {
        for code in Code::ALL {
            let document = CodeEntry::new(*code);
            let text = rendered(&document, Format::Table, Style::default()).unwrap();
            assert!(
                text.lines().all(|line| line.chars().count() <= COLUMNS),
                "{text}"
            );
            assert!(text.contains(&code.anchor()));
        }
        let list = rendered(&CodeList::all(), Format::Table, Style::default()).unwrap();
        assert!(
            list.lines().all(|line| line.chars().count() <= COLUMNS),
            "{list}"
        );
    }
}

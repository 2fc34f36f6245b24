//! The output of `check`: categories with a line for each check, and findings with their fixes.

use clap::ValueEnum;
use serde::Serialize;

use super::{Check, Finding, Verdict};
use crate::args::Category;
use crate::end::Ended;
use crate::output::{Document, Style};
use crate::table::{commands, wrapped};

/// Indentation of a finding's texts, in columns.
const INDENT: usize = 13;

/// The results of all checks.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Whether there are no findings.
    success: bool,
    categories: Vec<CategoryReport>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CategoryReport {
    name: String,
    checks: Vec<CheckReport>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckReport {
    description: String,
    result: Outcome,
    /// Why the check was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    finding: Option<FindingReport>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Outcome {
    Good,
    Skipped,
    Warning,
    Finding,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FindingReport {
    code: String,
    reason: String,
    cause: String,
    fix: String,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            success: true,
            categories: Vec::new(),
        }
    }
}

impl Report {
    /// Adds the results of a category.
    pub(super) fn add(&mut self, category: Category, checks: Vec<Check>) {
        let checks: Vec<_> = checks.into_iter().map(CheckReport::from).collect();
        self.success &= !checks.iter().any(|check| check.result == Outcome::Finding);
        let name = category.to_possible_value();
        self.categories.push(CategoryReport {
            name: name.map_or_else(String::new, |value| value.get_name().to_owned()),
            checks,
        });
    }

    /// The exit status.
    pub(super) fn ended(&self) -> Ended {
        if self.success {
            Ended::Good
        } else {
            Ended::Findings
        }
    }

    fn count(&self, outcome: Outcome) -> usize {
        let checks = self.categories.iter().flat_map(|category| &category.checks);
        checks.filter(|check| check.result == outcome).count()
    }
}

impl From<Check> for CheckReport {
    fn from(check: Check) -> Self {
        let (result, skipped, finding) = match check.verdict {
            Verdict::Good => (Outcome::Good, None, None),
            Verdict::Skipped(why) => (Outcome::Skipped, Some(why), None),
            Verdict::Warning(finding) => (Outcome::Warning, None, Some(finding)),
            Verdict::Finding(finding) => (Outcome::Finding, None, Some(finding)),
        };
        Self {
            description: check.description,
            result,
            skipped,
            finding: finding.map(FindingReport::from),
        }
    }
}

impl From<Finding> for FindingReport {
    fn from(finding: Finding) -> Self {
        let Finding {
            code,
            reason,
            cause,
            fix,
        } = finding;
        Self {
            code,
            reason,
            cause,
            fix,
        }
    }
}

impl Document for Report {
    const KIND: &'static str = "CheckReport";

    fn text(&self, style: Style) -> String {
        let mut lines = Vec::new();
        for category in &self.categories {
            lines.push(category.name.clone());
            lines.push("-".repeat(category.name.len()));
            lines.extend(category.checks.iter().map(|check| check.text(style)));
            lines.push(String::new());
        }
        let count = |outcome, one: &str| {
            let count = self.count(outcome);
            format!("{count} {one}{}", if count == 1 { "" } else { "s" })
        };
        lines.push(format!(
            "{} good, {} skipped, {}, {}",
            self.count(Outcome::Good),
            self.count(Outcome::Skipped),
            count(Outcome::Warning, "warning"),
            count(Outcome::Finding, "finding"),
        ));
        lines.join("\n")
    }
}

impl CheckReport {
    fn text(&self, style: Style) -> String {
        let mark = match self.result {
            Outcome::Good => style.good("  ok"),
            Outcome::Skipped => "skip".to_owned(),
            Outcome::Warning => style.warning("warn"),
            Outcome::Finding => style.bad("FAIL"),
        };
        let mut text = format!("{mark}  {}", wrapped(&self.description, 6, style.columns));
        if let Some(why) = &self.skipped {
            text.push_str(&format!("\n      {}", wrapped(why, 6, style.columns)));
        }
        if let Some(finding) = &self.finding {
            let cause = format!("{}: {}", finding.reason, finding.cause);
            text.push_str(&format!(
                "\n      {} {}\n      {:7}{}",
                finding.code,
                wrapped(&cause, INDENT, style.columns),
                "fix:",
                commands(&finding.fix, INDENT, style.columns),
            ));
        }
        text
    }
}

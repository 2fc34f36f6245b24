//! The output of `check`: categories with a line for each check, and findings with their fixes.

use clap::ValueEnum;
use serde::Serialize;

use super::{Check, Verdict};
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
    checks: Vec<Check>,
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
        let is_finding = |check: &Check| matches!(check.verdict, Verdict::Finding(_));
        self.success &= !checks.iter().any(is_finding);
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

    fn count(&self, is_counted: fn(&Verdict) -> bool) -> usize {
        let checks = self.categories.iter().flat_map(|category| &category.checks);
        checks.filter(|check| is_counted(&check.verdict)).count()
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
        let counted =
            |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let warnings = self.count(|verdict| matches!(verdict, Verdict::Warning(_)));
        let findings = self.count(|verdict| matches!(verdict, Verdict::Finding(_)));
        lines.push(format!(
            "{} good, {} skipped, {}, {}",
            self.count(|verdict| matches!(verdict, Verdict::Good)),
            self.count(|verdict| matches!(verdict, Verdict::Skipped { .. })),
            counted(warnings, "warning"),
            counted(findings, "finding"),
        ));
        lines.join("\n")
    }
}

impl Check {
    fn text(&self, style: Style) -> String {
        let mark = match self.verdict {
            Verdict::Good => style.good("  ok"),
            Verdict::Skipped { .. } => "skip".to_owned(),
            Verdict::Warning(_) => style.warning("warn"),
            Verdict::Finding(_) => style.bad("FAIL"),
        };
        let text = format!("{mark}  {}", wrapped(&self.description, 6, style.columns));
        match &self.verdict {
            Verdict::Good => text,
            Verdict::Skipped { skipped } => {
                format!("{text}\n      {}", wrapped(skipped, 6, style.columns))
            }
            Verdict::Warning(finding) | Verdict::Finding(finding) => {
                let cause = format!("{}: {}", finding.reason, finding.cause);
                format!(
                    "{text}\n      {} {}\n      {:7}{}",
                    finding.code,
                    wrapped(&cause, INDENT, style.columns),
                    "fix:",
                    commands(&finding.fix, INDENT, style.columns),
                )
            }
        }
    }
}

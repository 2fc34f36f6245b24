//! `check`: checks one category after another for faults.
//!
//! Each category is a file, which reads objects from the API server and passes them to pure
//! functions. These functions return [`Check`]s. A finding has a code, a cause and a command that
//! fixes it ([`fix`]). A check that cannot run is reported as skipped, with the reason. [`report`]
//! prints the checks.

mod cluster;
mod fix;
mod installation;
mod namespace;
mod node;
mod probe;
mod report;
mod tunnels;
mod udp_buffers;
mod version;

use clap::ValueEnum;
use k8s_openapi::jiff::Timestamp;
use muxtunnel_codes::Code;
use serde::Serialize;

use crate::args::{Category, CheckArgs, ClusterArgs};
use crate::cluster::{self as connection, Cluster, failed, refusal};
use crate::end::{Ended, Failure};
use crate::output::Terminal;
use fix::Right;
use report::Report;

/// One check with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    /// The statement that is checked.
    description: String,
    /// The result.
    #[serde(flatten)]
    verdict: Verdict,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "camelCase")]
enum Verdict {
    /// The statement is true.
    Good,
    /// The check could not run, or was not necessary. The text is the reason.
    Skipped { skipped: String },
    /// A possible problem, although everything works.
    Warning(Finding),
    /// A fault that needs a fix.
    Finding(Finding),
}

/// A fault: its code, its cause and its fix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    /// `MT####`. The field is a text, because a newer operator may report a code that this program
    /// does not know.
    code: String,
    /// The code's name.
    reason: String,
    /// The cause of this fault.
    cause: String,
    /// The command that fixes the fault, or shows its cause.
    fix: String,
}

impl Check {
    fn good(description: impl Into<String>) -> Self {
        Self {
            description: description.into(),
            verdict: Verdict::Good,
        }
    }

    fn skipped(description: impl Into<String>, why: impl Into<String>) -> Self {
        let skipped = why.into();
        Self {
            description: description.into(),
            verdict: Verdict::Skipped { skipped },
        }
    }

    fn finding(description: impl Into<String>, finding: Finding) -> Self {
        Self {
            description: description.into(),
            verdict: Verdict::Finding(finding),
        }
    }

    fn warning(description: impl Into<String>, finding: Finding) -> Self {
        Self {
            description: description.into(),
            verdict: Verdict::Warning(finding),
        }
    }
}

impl Finding {
    fn new(code: Code, cause: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            code: code.to_string(),
            reason: code.reason().to_owned(),
            cause: cause.into(),
            fix: fix.into(),
        }
    }
}

/// The input of a category.
struct Scope<'a> {
    cluster: &'a Cluster,
    args: &'a CheckArgs,
    now: Timestamp,
}

impl Scope<'_> {
    /// The namespace whose tunnels are checked; `None`: all namespaces.
    fn namespace(&self) -> Option<&str> {
        (!self.args.all_namespaces).then_some(self.cluster.namespace.as_str())
    }
}

/// Runs the requested checks and prints their results.
pub(crate) async fn run(
    args: &CheckArgs,
    to: &ClusterArgs,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    let cluster = connection::connect(to).await?;
    let scope = Scope {
        cluster: &cluster,
        args,
        now: Timestamp::now(),
    };
    let mut report = Report::default();
    let ended = fill(&scope, &mut report).await?;
    terminal.print(&report, args.output)?;
    Ok(ended)
}

async fn fill(scope: &Scope<'_>, report: &mut Report) -> Result<Ended, Failure> {
    // All other checks need the API server.
    let version = match cluster::reach(scope.cluster).await {
        Ok(version) => version,
        Err(check) => {
            report.add(Category::Cluster, vec![check]);
            return Ok(Ended::Told);
        }
    };
    for category in categories(scope.args) {
        let checks = match category {
            Category::Cluster => cluster::run(scope, &version).await?,
            Category::Installation => installation::run(scope).await?,
            Category::Node => node::run(scope).await?,
            Category::Namespace => namespace::run(scope).await?,
            Category::Tunnels => tunnels::run(scope).await?,
        };
        report.add(category, checks);
    }
    Ok(report.ended())
}

/// The categories to check: the categories of `--only`, otherwise all categories that apply.
fn categories(args: &CheckArgs) -> Vec<Category> {
    let all = Category::value_variants().iter().copied();
    let installed = [Category::Installation, Category::Tunnels];
    let is_asked = |category: &Category| match args.only.as_slice() {
        [] => !(args.pre && installed.contains(category)),
        only => only.contains(category),
    };
    all.filter(is_asked).collect()
}

/// Returns the objects. If the user has no right to read them, returns a skipped check. For nodes,
/// namespaces, definitions and tunnels, the category `cluster` reports how to grant that right.
///
/// # Errors
/// Any other failure of the API server.
fn readable<T>(
    answer: kube::Result<T>,
    description: &str,
    right: &Right<'_>,
) -> Result<Result<T, Check>, Failure> {
    match answer {
        Ok(answer) => Ok(Ok(answer)),
        Err(error) if refusal(&error) == Some(403) => {
            let why = format!("you may not {}", right.name());
            Ok(Err(Check::skipped(description, why)))
        }
        Err(error) => Err(Failure::Failed(failed(
            &format!("cannot {} {}", right.verb, right.resource),
            error,
        ))),
    }
}

#[cfg(test)]
mod tests;

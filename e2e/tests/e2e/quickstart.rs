//! The commands of `docs/quickstart.md` run in order, as they are on the page.

use anyhow::{Context, Result, ensure};
use muxtunnel_e2e::page::{self, Step};
use muxtunnel_e2e::{Cluster, tools, turn};

/// The second cluster, because the page installs the chart and removes it.
const CLUSTER: Cluster = Cluster::Second;

/// The namespace of the page.
const NAMESPACE: &str = "quickstart";

#[tokio::test]
async fn the_commands_of_the_quickstart_run_in_order_as_they_are_on_the_page() -> Result<()> {
    let _turn = turn::alone().await?;
    let path = tools::checkout().join("docs/quickstart.md");
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| format!("reading {}", path.display()))?;
    let steps = page::steps(&text)?;
    // The page begins without an installation.
    let uninstall = [
        "uninstall",
        "muxtunnel",
        "--namespace=muxtunnel-system",
        "--wait",
    ];
    CLUSTER.run("helm", &uninstall).await?;
    let outcome = run(&steps).await;
    if outcome.is_err() {
        dump().await;
    }
    // The tests after this one need the operator, whatever was found.
    let delete = ["delete", "namespace", NAMESPACE, "--ignore-not-found"];
    let deleted = CLUSTER.run("kubectl", &delete).await;
    CLUSTER.install().await?;
    outcome?;
    deleted?;
    Ok(())
}

/// Runs each step in a bash of its own, which ends at the first command that fails.
async fn run(steps: &[Step]) -> Result<()> {
    for step in steps {
        let bash = ["-euo", "pipefail", "-c", &step.commands];
        let printed = CLUSTER.run("bash", &bash).await?;
        for line in &step.prints {
            ensure!(
                printed.lines().any(|printed| printed == line),
                "{}\nprinted no line {line:?}:\n{printed}",
                step.commands
            );
        }
    }
    let left = ["get", "namespace", NAMESPACE, "--ignore-not-found"];
    let left = CLUSTER.run("kubectl", &left).await?;
    ensure!(left.is_empty(), "the page leaves its namespace:\n{left}");
    Ok(())
}

/// Prints what the namespace has and what the operator logged. Best effort: the test failed already.
async fn dump() {
    let namespace = format!("--namespace={NAMESPACE}");
    for question in [
        &["get", "all,muxtunnels,events", &namespace, "--output=wide"][..],
        &["get", "muxtunnels", &namespace, "--output=yaml"],
        &[
            "logs",
            "deployment/muxtunnel",
            "--namespace=muxtunnel-system",
            "--tail=60",
        ],
    ] {
        match CLUSTER.run("kubectl", question).await {
            Ok(text) => eprintln!("--- kubectl {}\n{text}", question.join(" ")),
            Err(error) => eprintln!("--- {error:#}"),
        }
    }
}

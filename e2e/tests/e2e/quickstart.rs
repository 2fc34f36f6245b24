//! Runs the commands of `docs/quickstart.md` in order and unchanged.

use anyhow::{Context, Result, ensure};
use muxtunnel_e2e::page::{self, Step};
use muxtunnel_e2e::{Cluster, definitions, tools, turn};

/// The second cluster, because the page installs and removes the chart.
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
    // Removes the chart first, because the page begins without an installation.
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
    // Later tests need the operator, even if this test fails.
    let delete = ["delete", "namespace", NAMESPACE, "--ignore-not-found"];
    let deleted = CLUSTER.run("kubectl", &delete).await;
    CLUSTER.install().await?;
    outcome?;
    deleted?;
    Ok(())
}

/// Runs the commands of each step in a separate bash, which exits at the first failed command.
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

/// Prints the objects of the namespace and the operator's log. Ignores errors, because the test has
/// already failed.
async fn dump() {
    let namespace = format!("--namespace={NAMESPACE}");
    let own = definitions::kinds().unwrap_or_default();
    let all = format!("{own},all,events");
    for question in [
        &["get", &all, &namespace, "--output=wide"][..],
        &["get", &own, &namespace, "--output=yaml"],
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

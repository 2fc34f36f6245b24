//! `token revoke`: raises the number of the join generation, with which the exit's trust in former bundles ends.

use std::io::BufRead;

use anyhow::{Context, anyhow};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde::Serialize;
use serde_json::json;

use super::context_flag;
use crate::args::{ClusterArgs, RevokeArgs};
use crate::cluster::{self, failed};
use crate::end::{Ended, Failure};
use crate::object::{self, Tunnel};
use crate::output::{API_VERSION, Document, Style, Terminal};

/// Of the exit's MuxTunnel; 0 where it is not there.
const GENERATION: &str = "muxtunnel.dev/join-generation";

pub(crate) async fn run(
    args: &RevokeArgs,
    to: &ClusterArgs,
    program: &str,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    if !args.yes && !terminal.stdin {
        let message = "standard input is no terminal, so nobody can be asked; give --yes";
        return Err(Failure::Usage(message.to_owned()));
    }
    let cluster = cluster::connect(to).await?;
    let tunnel = super::exit(&cluster, &args.name).await?;
    let (namespace, name) = (&cluster.namespace, &args.name);
    let generation = next(&tunnel)?;
    if !args.yes && !confirmed(namespace, name)? {
        return Err(Failure::Failed(anyhow!("nothing was changed")));
    }
    // The version that was read: of two who revoke at once, one is told.
    let patch = json!({"metadata": {
        "resourceVersion": tunnel.resource_version(),
        "annotations": {GENERATION: generation.to_string()},
    }});
    object::api(&cluster.client, Some(namespace))
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map_err(|error| failed(&format!("cannot annotate {namespace}/{name}"), error))?;
    let next = format!(
        "{program} token issue {name} -n {namespace}{} --output {name}.join.yaml",
        context_flag(&cluster)
    );
    let revoked = Revoked {
        api_version: API_VERSION,
        kind: "TokenRevoked",
        namespace: namespace.clone(),
        name: name.clone(),
        generation,
        next,
    };
    terminal.print(&revoked, args.format.format)?;
    Ok(Ended::Good)
}

/// The number after the tunnel's own.
fn next(tunnel: &Tunnel) -> Result<u32, Failure> {
    let now = match tunnel.annotations().get(GENERATION) {
        None => 0,
        Some(text) => text.parse::<u32>().with_context(|| {
            format!("the annotation {GENERATION} is {text:?}, not a number; correct it first")
        })?,
    };
    // Of a signed number of 32 bits, as the operator reads it.
    let next = now
        .checked_add(1)
        .filter(|next| i32::try_from(*next).is_ok());
    Ok(next.with_context(|| {
        format!(
            "the annotation {GENERATION} is {now}, there is no greater one; make the tunnel anew"
        )
    })?)
}

fn confirmed(namespace: &str, name: &str) -> anyhow::Result<bool> {
    eprint!(
        "All entries that joined {namespace}/{name} lose their carriers, and every bundle issued so far is worthless. Go on? [y/N] "
    );
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Revoked {
    api_version: &'static str,
    kind: &'static str,
    namespace: String,
    name: String,
    generation: u32,
    next: String,
}

impl Document for Revoked {
    fn text(&self, _: Style) -> String {
        format!(
            "{}/{}: join generation {}. The exit takes nobody who joined by a former bundle.\n\
             Once the operator has published a new one:\n\n    {}",
            self.namespace, self.name, self.generation, self.next
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel(generation: Option<&str>) -> Tunnel {
        let annotations = generation.map(|text| json!({GENERATION: text}));
        let metadata = json!({"name": "web", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"side": "Exit"}})).unwrap()
    }

    #[test]
    fn the_generation_only_rises() {
        assert_eq!(next(&tunnel(None)).unwrap(), 1);
        assert_eq!(next(&tunnel(Some("41"))).unwrap(), 42);
        for bad in ["x", "-1", "2147483647", "4294967295"] {
            assert!(next(&tunnel(Some(bad))).is_err(), "{bad}");
        }
    }
}

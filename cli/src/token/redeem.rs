//! `token redeem`: checks a bundle and applies it as a Secret in the entry's cluster.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde::Serialize;

use super::bundle::{Bundle, LENGTH_MAX};
use crate::args::{ClusterArgs, RedeemArgs};
use crate::check::operators;
use crate::cluster::{self, failed};
use crate::end::{Ended, Failure};
use crate::output::{API_VERSION, Document, Style, Terminal};
use crate::time::distance;

/// Field manager. The program applies without force, so it never overwrites fields of other
/// managers.
const MANAGER: &str = "muxtunnel-cli";
/// The file name for standard input.
const STDIN: &str = "-";
/// The operator of the chart's defaults, used if no operator is found, or if the user may not list
/// operators.
const OPERATOR: &str = "muxtunnel-system:muxtunnel";

pub(crate) async fn run(
    args: &RedeemArgs,
    to: &ClusterArgs,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    let now = Timestamp::now();
    let file = args.file.display();
    let text = read(&args.file).with_context(|| format!("cannot read {file}"))?;
    let bundle =
        Bundle::parse(&text, now).with_context(|| format!("{file} is not a join bundle"))?;
    let cluster = cluster::connect(to).await?;
    let namespace = cluster.namespace.as_str();
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), namespace);
    let manifest = bundle.manifest(&args.name, Some(namespace));
    let doing = format!(
        "cannot apply the Secret {} in namespace {namespace}",
        args.name
    );
    secrets
        .patch(
            &args.name,
            &PatchParams::apply(MANAGER),
            &Patch::Apply(&manifest),
        )
        .await
        .map_err(|error| failed(&doing, error))?;
    // Reads the operators only for the name of their service account. If the user may not list
    // operators, the command prints the name of the chart's defaults.
    let seen = operators(&cluster.client, None).await.unwrap_or_default();
    let redeemed = Redeemed {
        api_version: API_VERSION,
        kind: "TokenRedeemed",
        namespace: namespace.to_owned(),
        secret_name: args.name.clone(),
        peer: bundle.exit,
        identity: bundle.entry,
        address: bundle.address,
        fingerprint: bundle.fingerprint,
        expires: bundle.expires,
        operator: seen
            .first()
            .and_then(account)
            .unwrap_or_else(|| OPERATOR.to_owned()),
        now,
    };
    terminal.print(&redeemed, args.format.format)?;
    Ok(Ended::Good)
}

/// Reads at most [`LENGTH_MAX`] bytes of text.
fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some(STDIN) => std::io::stdin()
            .take(LENGTH_MAX + 1)
            .read_to_string(&mut text)?,
        _ => File::open(path)?
            .take(LENGTH_MAX + 1)
            .read_to_string(&mut text)?,
    };
    if u64::try_from(read)? > LENGTH_MAX {
        return Err(anyhow!("the file is longer than {LENGTH_MAX} bytes"));
    }
    Ok(text)
}

/// `NAMESPACE:NAME` of an operator's service account.
fn account(operator: &Deployment) -> Option<String> {
    let pod = operator.spec.as_ref()?.template.spec.as_ref()?;
    Some(format!(
        "{}:{}",
        operator.namespace()?,
        pod.service_account_name.as_ref()?
    ))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Redeemed {
    api_version: &'static str,
    kind: &'static str,
    namespace: String,
    secret_name: String,
    peer: String,
    identity: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    fingerprint: String,
    expires: Timestamp,
    /// The service account that needs the right to read the Secret, `NAMESPACE:NAME`.
    operator: String,
    #[serde(skip)]
    now: Timestamp,
}

impl Document for Redeemed {
    fn text(&self, _: Style) -> String {
        let Self {
            namespace,
            secret_name,
            operator,
            ..
        } = self;
        let address = self.address.as_deref();
        let role = format!("muxtunnel-join-{secret_name}");
        [
            format!("Secret:       {secret_name} in namespace {namespace}"),
            format!("Exit:         {} at {}", self.peer, address.unwrap_or("a rendezvous")),
            format!("Entry:        {}", self.identity),
            "Fingerprint of the exit's authority. It must equal the fingerprint that `token issue` printed:".to_owned(),
            format!("  {}", self.fingerprint),
            format!("Expires:      {} ({})", self.expires, distance(self.expires, self.now)),
            String::new(),
            "Let the operator of this cluster read the Secret, unless the chart's join.namespaces permits it \
             already:".to_owned(),
            String::new(),
            format!("    kubectl -n {namespace} create role {role} --verb=get \\"),
            format!("      --resource=secrets --resource-name={secret_name}"),
            format!("    kubectl -n {namespace} create rolebinding {role} --role={role} \\"),
            format!("      --serviceaccount={operator}"),
            String::new(),
            format!("Set in the MuxTunnel of side Entry in namespace {namespace}:"),
            String::new(),
            "    spec:".to_owned(),
            "      side: Entry".to_owned(),
            "      carrier:".to_owned(),
            format!("        joinFrom: {{secretName: {secret_name}}}"),
        ]
        .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_greatest_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        let most = usize::try_from(LENGTH_MAX).unwrap();
        std::fs::write(&path, vec![b'a'; most]).unwrap();
        assert_eq!(read(&path).unwrap().len(), most);
        std::fs::write(&path, vec![b'a'; most + 1]).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("longer than"));
    }
}

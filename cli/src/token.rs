//! `token`: joins the entry of a tunnel in one cluster to its exit in another.
//!
//! The exit's operator publishes a join bundle as a Secret. [`issue`] writes the bundle as a
//! manifest. [`redeem`] checks the manifest and applies it in the entry's cluster. [`revoke`] makes
//! the exit reject entries with former bundles. The pure module [`bundle`] parses and checks
//! bundles.

mod bundle;
pub(crate) mod issue;
pub(crate) mod redeem;
pub(crate) mod revoke;

use anyhow::anyhow;

use crate::cluster::Cluster;
use crate::end::Failure;
use crate::object::{self, Tunnel};

/// Reads the tunnel of side Exit.
async fn exit(cluster: &Cluster, name: &str) -> Result<Tunnel, Failure> {
    let namespace = cluster.namespace.as_str();
    let tunnel = object::api(&cluster.client, Some(namespace))
        .get(name)
        .await
        .map_err(|error| object::not_read(namespace, name, error))?;
    match object::side(&tunnel) {
        "Exit" => Ok(tunnel),
        side => Err(Failure::Failed(anyhow!(
            "{namespace}/{name} is of side {side}; only a MuxTunnel of side Exit has a join bundle"
        ))),
    }
}

/// ` --context far`, or an empty text without a requested context.
fn context_flag(cluster: &Cluster) -> String {
    let context = cluster.context.as_ref();
    context.map_or_else(String::new, |context| format!(" --context {context}"))
}

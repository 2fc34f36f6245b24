//! The kinds of muxtunnel.dev in a cluster, from the definitions that the chart installs.

use anyhow::Result;
use muxtunnel_crds::schema::definitions;

/// The names of the definitions, such as `muxtunnels.muxtunnel.dev`. kubectl also takes them for kinds.
///
/// # Errors
/// If a definition could not be generated.
pub fn names() -> Result<Vec<String>> {
    let all = definitions()?.into_iter();
    Ok(all
        .filter_map(|(_, definition)| definition.metadata.name)
        .collect())
}

/// All kinds, as `kubectl get` takes them.
///
/// # Errors
/// As [`names`].
pub fn kinds() -> Result<String> {
    Ok(names()?.join(","))
}

//! The API server refuses the same objects as the local tests of `crds`, with the same messages.

use anyhow::{Context, Result};
use muxtunnel_e2e::admission::{every_bad_object_is_refused, table, try_create};
use muxtunnel_e2e::{PodSecurity, turn, with_temp_ns};
use serde_json::Value;

#[tokio::test]
async fn every_bad_object_is_refused_with_the_expected_sentence() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("admission", PodSecurity::Restricted, async |ns| {
        every_bad_object_is_refused(ns).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn every_good_object_is_accepted() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("admission", PodSecurity::Restricted, async |ns| {
        for (path, text) in table("good_objects")? {
            let object: Value = serde_yaml::from_str(&text)?;
            try_create(ns, &object)
                .await?
                .with_context(|| format!("{}", path.display()))?;
        }
        Ok(())
    })
    .await
}

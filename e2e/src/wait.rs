//! Waits for conditions, always with a deadline and a description of the condition.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use kube::runtime::wait::await_condition;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Interval between two calls of [`until`]'s `poll`.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Watches the object `name` until `holds` returns true for the object. Returns the object.
///
/// # Errors
/// If this takes longer than `within`. The message contains `what` and the last state of the
/// object.
pub async fn for_object<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    within: Duration,
    holds: impl Fn(&K) -> bool,
) -> Result<K>
where
    K: Clone + Debug + Send + DeserializeOwned + Resource + serde::Serialize + 'static,
{
    let condition = |object: Option<&K>| object.is_some_and(&holds);
    let waited = tokio::time::timeout(within, await_condition(api.clone(), name, condition)).await;
    if let Ok(object) = waited {
        return object
            .with_context(|| format!("watching {name} for: {what}"))?
            .with_context(|| format!("{name} is gone"));
    }
    let last = match api.get_opt(name).await {
        Ok(Some(object)) => serde_yaml::to_string(&object)?,
        Ok(None) => "(it does not exist)".to_owned(),
        Err(error) => format!("(it cannot be read: {error})"),
    };
    Err(anyhow!(
        "timed out after {} s waiting for: {what}. {name} is:\n{last}",
        within.as_secs()
    ))
}

/// Calls `poll` repeatedly until it returns a value.
///
/// # Errors
/// If `poll` fails, or returns no value within `within`. The message contains `what`.
pub async fn until<T>(
    what: &str,
    within: Duration,
    mut poll: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(answer) = poll().await? {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            return Err(anyhow!(
                "timed out after {} s waiting for: {what}",
                within.as_secs()
            ));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

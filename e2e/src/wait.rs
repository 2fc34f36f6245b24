//! Waiting for something to become true, always with a deadline and with words for what was awaited.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use kube::runtime::wait::await_condition;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// How often [`until`] asks again.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Watches the object `name` until `holds` is true of it, and returns it.
///
/// # Errors
/// If that takes longer than `within`, with `what` was awaited and the object as it was last.
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
        "not within {} s: {what}. {name} is:\n{last}",
        within.as_secs()
    ))
}

/// Asks `poll` again and again until it has an answer.
///
/// # Errors
/// If `poll` fails, or has no answer `within` the time; the message says `what` was awaited.
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
            return Err(anyhow!("not within {} s: {what}", within.as_secs()));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

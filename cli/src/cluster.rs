//! Access to an API server: kubeconfig, context and namespace, and error texts.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::args::ClusterArgs;

/// Time-out of a connection to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out of an answer. Lists take longest.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A cluster, with the namespace and context of the flags.
#[derive(Clone)]
pub struct Cluster {
    /// Client of the API server.
    pub client: Client,
    /// The namespace for objects without a given namespace.
    pub namespace: String,
    /// The requested context. `None`: the current context of the kubeconfig.
    pub context: Option<String>,
    /// Host and port of the API server.
    pub server: String,
}

/// A namespace in words; `None`: all namespaces.
#[must_use]
pub fn place(namespace: Option<&str>) -> String {
    namespace.map_or("any namespace".to_owned(), |name| {
        format!("namespace {name}")
    })
}

/// Reads the kubeconfig. Sends no request.
///
/// # Errors
/// If there is no kubeconfig, or it does not have the context.
pub async fn connect(args: &ClusterArgs) -> Result<Cluster> {
    let options = KubeConfigOptions {
        context: args.context.clone(),
        ..KubeConfigOptions::default()
    };
    let mut config = match &args.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .with_context(|| format!("cannot use the kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options).await?
        }
        None if args.context.is_some() => Config::from_kubeconfig(&options).await?,
        // Without a kubeconfig, uses the token of a pod if the program runs in a pod.
        None => Config::infer()
            .await
            .context("found no valid kubeconfig: set --kubeconfig or KUBECONFIG")?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    let namespace = match &args.namespace {
        Some(namespace) => namespace.clone(),
        None => config.default_namespace.clone(),
    };
    let authority = config.cluster_url.authority();
    let server = authority.map_or_else(String::new, ToString::to_string);
    Ok(Cluster {
        server,
        client: Client::try_from(config).context("cannot use the kubeconfig's cluster")?,
        namespace,
        context: args.context.clone(),
    })
}

/// A failed request, in one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
struct RequestFailed {
    sentence: String,
    /// The HTTP status of the refusal, if the API server answered.
    refusal: Option<u16>,
}

/// An error of a request in one sentence. `doing`: the failed action.
#[must_use]
pub fn failed(doing: &str, error: kube::Error) -> anyhow::Error {
    failed_with_hint(doing, error, "")
}

/// Like [`failed`], with `hint` at the end of the sentence.
#[must_use]
pub fn failed_with_hint(doing: &str, error: kube::Error, hint: &str) -> anyhow::Error {
    RequestFailed {
        sentence: format!("{doing}: {}{hint}", in_words(&error)),
        refusal: refusal(&error),
    }
    .into()
}

/// Whether the same request can succeed later: the API server did not answer, or is overloaded or
/// broken.
#[must_use]
pub fn can_pass(error: &anyhow::Error) -> bool {
    let failed = error.downcast_ref::<RequestFailed>();
    failed.is_some_and(|failed| failed.refusal.is_none_or(is_passing))
}

/// Whether a refusal with this HTTP status is temporary.
#[must_use]
pub fn is_passing(status: u16) -> bool {
    status >= 500 || status == 429
}

/// The message of the API server, or the reason why it did not answer.
#[must_use]
pub fn in_words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        other => chain(other),
    }
}

/// An error with its causes. A cause that the error's own text contains is not repeated.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// The HTTP status of the API server's refusal.
#[must_use]
pub fn refusal(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_refusal_does_not_pass_and_an_overload_does() {
        let error = |status| {
            let mut refused = kube::core::Status::failure("no", "Reason");
            refused.code = status;
            failed("cannot query", kube::Error::Api(refused.boxed()))
        };
        for (status, passes) in [(403, false), (404, false), (429, true), (503, true)] {
            assert_eq!(can_pass(&error(status)), passes, "{status}");
        }
        assert!(!can_pass(&anyhow!("a file")));
    }

    #[test]
    fn a_cause_is_said_once() {
        let cause = serde_json::from_str::<u8>("x").map_err(kube::Error::SerdeError);
        let said = in_words(&cause.unwrap_err());
        assert_eq!(said.matches("expected value").count(), 1, "{said}");
    }
}

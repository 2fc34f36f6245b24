//! `--wait`: reads a tunnel until a condition is true for its current spec, and then connects to the
//! tunnel.

use std::time::Duration;

use muxtunnel_crds::tunnel_condition;
use tokio::time::{Instant, timeout_at};

use super::connect::connect;
use crate::args::WaitFor;
use crate::cluster::{Cluster, in_words};
use crate::end::Failure;
use crate::object::{self, Tunnel};
use crate::poll::{self, Waited};

/// Time-out of the read of the last Event.
const EVENTS_WITHIN: Duration = Duration::from_secs(5);

/// Reads a tunnel, until the condition of `--wait` is true and this host can connect to its entry.
///
/// # Errors
/// If the tunnel cannot be read, or after the time-out. With `--wait`, the function retries if the
/// API server does not answer, is overloaded or is broken. After another refusal it does not retry.
pub(super) async fn read(
    cluster: &Cluster,
    name: &str,
    wanted: WaitFor,
    timeout: muxtunnel_crds::Duration,
) -> Result<Tunnel, Failure> {
    let namespace = cluster.namespace.as_str();
    let api = object::api(&cluster.client, Some(namespace));
    let not_read = |error| Failure::Failed(object::not_read(namespace, name, error));
    let type_ = match wanted {
        WaitFor::Ready => tunnel_condition::READY,
        WaitFor::Available => tunnel_condition::AVAILABLE,
        WaitFor::None => return api.get(name).await.map_err(not_read),
    };
    let deadline = Instant::now() + timeout.as_std();
    let mut last = None;
    let judge = |tunnel: Tunnel| match object::holds(&tunnel, type_) {
        true => Ok(tunnel),
        false => {
            let state = object::state(&tunnel, type_);
            last = Some(tunnel);
            Err(state)
        }
    };
    let subject = format!("{namespace}/{name}");
    let read = async || api.get(name).await;
    let waited = poll::until(&subject, deadline, read, judge).await;
    match waited.map_err(not_read)? {
        Waited::Done(tunnel) => {
            connect(&tunnel, deadline).await?;
            Ok(tunnel)
        }
        Waited::TimedOut(state) => {
            let event = last_event(cluster, last.as_ref()).await;
            Err(Failure::TimedOut(format!(
                "{subject} is not {type_} after {timeout}: {state}{event}"
            )))
        }
    }
}

/// The last Event, for the message of a time-out.
async fn last_event(cluster: &Cluster, tunnel: Option<&Tunnel>) -> String {
    let Some(tunnel) = tunnel else {
        return String::new();
    };
    let events = timeout_at(
        Instant::now() + EVENTS_WITHIN,
        object::events(&cluster.client, tunnel),
    )
    .await;
    match events {
        Ok(Ok(events)) => events.last().map_or_else(String::new, |event| {
            format!("\nlast Event: {}", object::in_a_line(event))
        }),
        Ok(Err(error)) => format!("\nthe tunnel's Events cannot be read: {}", in_words(&error)),
        Err(_) => {
            "\nthe tunnel's Events cannot be read: the API server has not answered".to_owned()
        }
    }
}

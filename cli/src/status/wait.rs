//! `--wait`: reads an object until a condition is true for its current spec, and then connects to the
//! entry of a MuxTunnel.

use std::time::Duration;

use muxtunnel_crds::condition;
use tokio::time::{Instant, timeout_at};

use super::connect::connect;
use crate::args::{ObjectName, WaitFor};
use crate::cluster::{Cluster, in_words};
use crate::duration::Duration as Timeout;
use crate::end::Failure;
use crate::object::{self, Gateways};
use crate::poll::{self, Waited};

/// Time-out of the read of the last Event.
const EVENTS_WITHIN: Duration = Duration::from_secs(5);

/// Reads an object, until the condition of `--wait` is true and this host can connect to its entry.
///
/// # Errors
/// If the object cannot be read, or after the time-out. With `--wait`, the function retries if the
/// API server does not answer, is overloaded or is broken. After another refusal it does not retry.
pub(super) async fn read(
    cluster: &Cluster,
    object: &ObjectName,
    wanted: WaitFor,
    timeout: Timeout,
) -> Result<Gateways, Failure> {
    let ObjectName { kind, name } = object;
    let type_ = match wanted {
        WaitFor::Ready => condition::READY,
        WaitFor::Available => condition::AVAILABLE,
        WaitFor::None => return Ok(object::get(cluster, *kind, name).await?),
    };
    let namespace = cluster.namespace.as_str();
    let api = object::api(&cluster.client, *kind, Some(namespace));
    let not_read = |error| Failure::Failed(object::not_read(*kind, namespace, name, error));
    let deadline = Instant::now() + timeout.as_std();
    let mut last = None;
    let judge = |object: Gateways| match object::holds(&object, type_) {
        true => Ok(object),
        false => {
            let state = object::state(&object, type_);
            last = Some(object);
            Err(state)
        }
    };
    let subject = format!("{namespace}/{name}");
    let read = async || api.get(name).await;
    let waited = poll::until(&subject, deadline, read, judge).await;
    match waited.map_err(not_read)? {
        Waited::Done(object) => {
            connect(&object, deadline).await?;
            Ok(object)
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
async fn last_event(cluster: &Cluster, object: Option<&Gateways>) -> String {
    let Some(object) = object else {
        return String::new();
    };
    let events = timeout_at(
        Instant::now() + EVENTS_WITHIN,
        object::events(&cluster.client, object),
    )
    .await;
    match events {
        Ok(Ok(events)) => events.last().map_or_else(String::new, |event| {
            format!("\nlast Event: {}", object::in_a_line(event))
        }),
        Ok(Err(error)) => format!("\nthe object's Events cannot be read: {}", in_words(&error)),
        Err(_) => {
            "\nthe object's Events cannot be read: the API server has not answered".to_owned()
        }
    }
}

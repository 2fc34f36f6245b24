//! Tasks that nobody awaits, but whose panic must not remain without effect.

use std::convert::Infallible;
use std::panic::resume_unwind;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

use super::unwind;

/// Tasks that an owner starts. A panic of a task continues in the owner ([`Self::fail`]).
#[derive(Debug, Clone)]
pub(crate) struct Tasks {
    /// The message of the last panic.
    panic: watch::Sender<Option<String>>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            panic: watch::Sender::new(None),
        }
    }
}

impl Tasks {
    /// Starts a task, which continues if the handle is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
        let panic = self.panic.clone();
        tokio::task::spawn_local(async move {
            if let Err(message) = unwind::unwound(task).await {
                panic.send_replace(Some(message));
            }
        })
    }

    /// Panics once a task has panicked; otherwise never returns.
    pub(crate) async fn fail(&self) -> Infallible {
        let mut panic = self.panic.subscribe();
        // `wait_for` cannot fail: the sender is in `self`.
        let message = match panic.wait_for(Option::is_some).await {
            Ok(message) => message.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        };
        resume_unwind(Box::new(message))
    }
}

/// Returns the result of a finished task; `None`: the task was aborted. A panic of the task
/// continues in the caller.
pub(crate) fn joined<T>(result: Result<T, JoinError>) -> Option<T> {
    match result {
        Ok(result) => Some(result),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::{JoinSet, LocalSet};

    use super::*;

    /// A bound for hangs.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_panic_of_a_task_is_a_panic_of_its_owner() {
        let test = async {
            let tasks = Tasks::default();
            tasks.spawn(async {}).await.unwrap();
            let panics = async {
                tokio::task::yield_now().await;
                std::panic::panic_any("a fault of a task".to_owned());
            };
            drop(tasks.spawn(panics));
            let failed = tokio::time::timeout(PATIENCE, unwind::unwound(tasks.fail())).await;
            assert_eq!(failed.unwrap().unwrap_err(), "a fault of a task");
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn a_panic_continues_where_the_task_is_joined_and_an_abort_does_not() {
        let test = async {
            let mut tasks: JoinSet<u8> = JoinSet::new();
            tasks.spawn_local(async { 7 });
            assert_eq!(joined(tasks.join_next().await.unwrap()), Some(7));
            tasks.spawn_local(std::future::pending()).abort();
            assert_eq!(joined(tasks.join_next().await.unwrap()), None);
            tasks.spawn_local(async { std::panic::panic_any("a fault".to_owned()) });
            let result = tasks.join_next().await.unwrap();
            assert_eq!(unwind::caught(|| joined(result)), Err("a fault".to_owned()));
        };
        LocalSet::new().run_until(test).await;
    }
}

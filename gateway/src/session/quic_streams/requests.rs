//! The first messages of the peer's streams. Each of them is read by a task of its own, so that a
//! slow stream does not delay another stream.

use tokio::task::JoinSet;

use crate::base::tasks::joined;

/// The tasks that read the first messages. Dropping the value aborts the tasks.
pub(crate) struct Requests<A>(JoinSet<Option<A>>);

impl<A> Default for Requests<A> {
    fn default() -> Self {
        Self(JoinSet::new())
    }
}

impl<A: 'static> Requests<A> {
    /// Starts a task whose result is an open, or `None`.
    pub(crate) fn read(&mut self, reading: impl Future<Output = Option<A>> + 'static) {
        self.0.spawn_local(reading);
    }

    /// Returns the next open. A caller may drop the future and call again. A panic of a task
    /// continues in the caller, and so ends the session.
    pub(crate) async fn next(&mut self) -> A {
        while let Some(result) = self.0.join_next().await {
            if let Some(Some(asked)) = joined(result) {
                return asked;
            }
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::LocalSet;

    use super::*;
    use crate::base::unwind::unwound;

    /// A bound for hangs.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_panic_of_a_reader_reaches_its_session() {
        let test = async {
            let mut requests = Requests::default();
            requests.read(async { None });
            requests.read(async { Some(7) });
            assert_eq!(requests.next().await, 7);
            requests.read(async { std::panic::panic_any("a fault of a reader".to_owned()) });
            let next = tokio::time::timeout(PATIENCE, unwound(requests.next())).await;
            assert_eq!(next.unwrap().unwrap_err(), "a fault of a reader");
        };
        LocalSet::new().run_until(test).await;
    }
}

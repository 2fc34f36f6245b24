//! Catches a panic of one task, so that the panic ends only the task's owner.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

/// Runs `task` to its end. Returns its result, or the message of its panic.
pub(crate) async fn unwound<T>(task: impl Future<Output = T>) -> Result<T, String> {
    let mut task = Box::pin(task);
    let polled = poll_fn(|cx| {
        caught(|| task.as_mut().poll(cx))
            .map_or_else(|panic| Poll::Ready(Err(panic)), |poll| poll.map(Ok))
    });
    polled.await
}

/// Returns the result of `call`, or the message of its panic.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|cause| message(&*cause))
}

fn message(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<&str>().copied();
    let text = text.or_else(|| cause.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}

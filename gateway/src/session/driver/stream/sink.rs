//! Moves payload from the inbox to the local socket.

use std::io::ErrorKind;
use std::rc::Rc;

use muxtunnel_proto::ResetCode;

use super::{Driver, StreamIo, fail, turn};
use crate::base::pace::Turn;
use crate::io::duplex;
use crate::session::shell::now;
use crate::stream::local_stream::{CUT_DELIVERY_MAX, End};

/// Runs until this direction of the stream has ended.
pub(super) async fn run(driver: &Rc<Driver>, io: &StreamIo) -> End {
    loop {
        if io.delivers() {
            return deliver_rest(driver, io).await;
        }
        if io.life.is_over() {
            return End::Cut;
        }
        if !io.is_open() {
            // With several carriers, payload may arrive before the answer to the open.
            io.sink_wake.notified().await;
        } else if !io.inbox.borrow().is_empty() {
            if let Err(error) = write_inbox(driver, io).await {
                return fail(driver, io, &error);
            }
        } else if io.has_all() && io.life.has_source_ended() {
            // Both halves have ended, so the gateway closes the socket next. The close also tells
            // the local end that the peer's half has ended.
            return End::Clean;
        } else if io.has_all() {
            return match io.socket.finish() {
                Ok(()) => End::Clean,
                Err(error) => fail(driver, io, &error),
            };
        } else {
            tokio::select! {
                biased;
                () = io.sink_wake.notified() => {}
                // The source notices a failure of the local socket as long as the source runs.
                () = io.socket.failed(), if io.life.has_source_ended() => {
                    return fail(driver, io, &io.socket.take_failure());
                }
            }
        }
    }
}

/// Writes a part of the inbox. The function returns early if the stream was cut.
async fn write_inbox(driver: &Rc<Driver>, io: &StreamIo) -> std::io::Result<()> {
    tokio::select! {
        biased;
        writable = duplex::writable(&*io.socket) => writable?,
        () = io.sink_wake.notified() => return Ok(()),
    }
    let mut paced = None;
    if let Some(pace) = io.account.down() {
        let Some(turn) = turn(pace, io, &io.sink_wake).await else {
            return Ok(());
        };
        paced = Some(turn);
    }
    let limit = paced.as_ref().map_or(usize::MAX, Turn::most);
    let written = io.inbox.borrow_mut().write(&*io.socket, limit);
    if let (Some(turn), Ok(length)) = (paced, &written) {
        turn.charge(*length);
    }
    match written {
        Ok(length) => {
            io.account.received(&driver.telemetry, length);
            driver.update(|session| session.sink_took(now(), io.id, length));
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// Delivers the received bytes of a cut stream up to the first gap, within a time limit.
async fn deliver_rest(driver: &Rc<Driver>, io: &StreamIo) -> End {
    let deliver = async {
        while !io.inbox.borrow().is_empty() {
            if write_inbox(driver, io).await.is_err() {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(CUT_DELIVERY_MAX, deliver).await;
    io.forget_arrived();
    driver.update(|session| session.reset(io.id, ResetCode::Cancelled));
    End::Cut
}

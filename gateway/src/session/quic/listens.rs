//! Listeners that the entry requests from the exit on one connection.

use muxtunnel_proto::{ListenError, ListenId, ListenWord, Priority, Refusal};

use super::{Quic, violation};
use crate::io::transport::Side;
use crate::session::bridge::link::{Hears, Listens};
use crate::session::end::SessionEnd;

impl Quic {
    /// Handles a message of the peer about a listener.
    ///
    /// # Errors
    /// The peer may not send this message.
    pub(super) fn heard_of_listener(
        &self,
        word: ListenWord,
        hears: &dyn Hears<Self>,
    ) -> Result<(), SessionEnd> {
        let heard = self.listens.borrow_mut().hear(word, self.goes_away.get());
        let event = heard.map_err(|error| violation(error.to_string()))?;
        if let Some(event) = event {
            hears.listened(event);
        }
        Ok(())
    }
}

impl Listens for Quic {
    fn listen(
        &self,
        listen: ListenId,
        address: &str,
        priority: Priority,
    ) -> Result<(), ListenError> {
        self.listens
            .borrow_mut()
            .ask_as(listen, address, priority)?;
        if self.side == Side::Dials {
            // The exit may open streams only now: before the entry requests a listener, the exit
            // has no reason to open streams.
            let quic = self.traffic.connection.quic();
            quic.set_max_concurrent_bi_streams(self.streams_max.into());
        }
        self.control_due.notify_one();
        Ok(())
    }

    fn unlisten(&self, listen: ListenId) {
        self.listens.borrow_mut().give_up(listen);
        self.control_due.notify_one();
    }

    fn listening(&self, listen: ListenId, address: &str) {
        self.listens.borrow_mut().answer(listen, address);
        self.control_due.notify_one();
    }

    fn end_listen(&self, listen: ListenId, refusal: &Refusal) {
        self.listens.borrow_mut().refuse(listen, refusal.clone());
        self.control_due.notify_one();
    }
}

#[cfg(test)]
mod tests;

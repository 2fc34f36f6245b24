//! Listeners that the entry asks the exit for, on one connection.

use muxtunnel_proto::{ListenError, ListenId, ListenWord, Priority, Refusal};

use super::{Quic, violation};
use crate::io::transport::Side;
use crate::session::bridge::link::{Hears, Listens};
use crate::session::end::SessionEnd;

impl Quic {
    /// The peer speaks of a listener.
    ///
    /// # Errors
    /// It must not say that.
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
            // Until then the exit has nothing to open streams for.
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

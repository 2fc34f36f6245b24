//! IP packets: frames that are not retained, not repeated and not subject to credit.
//!
//! Datagrams use only the express carrier, so packets arrive in the order in which they were sent.
//! A packet that the carrier does not deliver is lost, as on any link. The session's driver bounds
//! and schedules waiting packets.

use super::NativeSession;
use super::codec::datagram_header;
use crate::session::{CarrierId, DATAGRAM_BYTES_MAX, FrameHeader, Session};

impl NativeSession {
    pub(super) fn datagram(&mut self, id: CarrierId, length: usize) -> Option<FrameHeader> {
        let fits = (1..=DATAGRAM_BYTES_MAX).contains(&length);
        if !fits || !self.takes_datagrams(id) {
            return None;
        }
        // `length` is at most DATAGRAM_BYTES_MAX, so it fits u32.
        let header = datagram_header(length as u32);
        if self.agreed.resume
            && let Some(carrier) = self.carriers.get_mut(&id)
        {
            carrier.log.push_passing(header.len() + length);
        }
        Some(FrameHeader::new(header))
    }
}

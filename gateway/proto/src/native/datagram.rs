//! IP packets beside streams: frames that are never kept, repeated or held back by credit.
//!
//! They go on the express carrier alone, so that what one carrier keeps in order arrives in order. A packet that the
//! carrier does not deliver is lost, as on any link. The session's driver bounds and schedules packets that wait.

use super::NativeSession;
use super::codec::datagram_header;
use crate::session::{CarrierId, DATAGRAM_BYTES_MAX, FrameHeader, Session};

impl NativeSession {
    pub(super) fn datagram(&mut self, id: CarrierId, length: usize) -> Option<FrameHeader> {
        let fits = (1..=DATAGRAM_BYTES_MAX).contains(&length);
        if !fits || !self.takes_datagrams(id) {
            return None;
        }
        // It fits u32: it is at most DATAGRAM_BYTES_MAX.
        let header = datagram_header(length as u32);
        if self.agreed.resume
            && let Some(carrier) = self.carriers.get_mut(&id)
        {
            carrier.log.push_passing(header.len() + length);
        }
        Some(FrameHeader::new(header))
    }
}

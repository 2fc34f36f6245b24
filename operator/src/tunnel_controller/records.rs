//! The records of each end's certificate in the status.

use muxtunnel_crds::{CertificateStatus, CertificatesStatus};

use super::end::End;

/// The record of an end.
pub(super) trait Records {
    fn of(&self, end: End) -> Option<&CertificateStatus>;
    fn set(&mut self, end: End, record: CertificateStatus);
    /// Drops the records of ends that the tunnel does not have.
    fn keep(&mut self, has_entry: bool, has_exit: bool);
    /// When the last certificate was issued, in seconds since 1970.
    fn newest(&self) -> Option<i64>;
}

impl Records for CertificatesStatus {
    fn of(&self, end: End) -> Option<&CertificateStatus> {
        match end {
            End::Entry => self.entry.as_ref(),
            End::Exit => self.exit.as_ref(),
            End::Rendezvous => None,
        }
    }

    fn set(&mut self, end: End, record: CertificateStatus) {
        match end {
            End::Entry => self.entry = Some(record),
            End::Exit => self.exit = Some(record),
            End::Rendezvous => {}
        }
    }

    fn keep(&mut self, has_entry: bool, has_exit: bool) {
        self.entry = self.entry.take().filter(|_| has_entry);
        self.exit = self.exit.take().filter(|_| has_exit);
    }

    fn newest(&self) -> Option<i64> {
        let records = [&self.entry, &self.exit].into_iter().flatten();
        let times = records.filter_map(|record| record.issued_at.as_ref());
        times.map(|time| time.0.as_second()).max()
    }
}

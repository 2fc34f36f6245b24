//! The files that the gateway follows.

use prometheus_client::encoding::DescriptorEncoder;

use super::{Snapshot, family, gauge};

impl Snapshot {
    pub(super) fn encode_files(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let files = self.status.files.iter().flatten();
        let samples = files.map(|file| {
            let labels = vec![("file", file.path.as_str()), ("use", file.purpose.as_str())];
            gauge(labels, f64::from(u8::from(file.error.is_some())))
        });
        let help = "1: the newest content of a file is not in force";
        family(encoder, ("muxgate_file_rejected", help), samples)
    }
}

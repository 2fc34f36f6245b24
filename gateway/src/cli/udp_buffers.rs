//! `muxgate udp-buffers`: prints the buffer sizes that the kernel grants to a gateway's UDP sockets
//! on this host.

use muxtunnel_contract::sysctls::{QUIC_BUFFER_BYTES, RMEM_MAX, WMEM_MAX};

use crate::base::socket_buffers::{self, Buffers};

/// Describes the buffer sizes that the kernel grants.
///
/// # Errors
/// The sizes are smaller than the sizes that gateways request, or cannot be determined.
pub(super) fn udp_buffers() -> anyhow::Result<String> {
    judge(socket_buffers::max()?)
}

fn judge(Buffers { receive, send }: Buffers) -> anyhow::Result<String> {
    let max = format!("{RMEM_MAX} is {receive} and {WMEM_MAX} is {send}");
    if receive.min(send) < QUIC_BUFFER_BYTES {
        anyhow::bail!(
            "{max}; gateways request {QUIC_BUFFER_BYTES} bytes for their UDP sockets: set both sysctls to this value"
        );
    }
    Ok(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_either_way_is_an_error_that_names_what_is_to_be_set() {
        let wanted = QUIC_BUFFER_BYTES;
        let judged = |receive, send| judge(Buffers { receive, send });
        assert!(judged(wanted, wanted).is_ok());
        for (receive, send) in [(212_992, wanted), (wanted, 212_992)] {
            let expected = format!(
                "net.core.rmem_max is {receive} and net.core.wmem_max is {send}; gateways request 8388608 bytes for their UDP sockets: set both sysctls to this value"
            );
            assert_eq!(judged(receive, send).unwrap_err().to_string(), expected);
        }
    }
}

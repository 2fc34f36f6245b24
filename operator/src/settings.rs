//! What the installation decides, for all objects alike.

/// Settings of the operator, from its flags.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Image with `/usr/local/bin/muxgate`.
    pub gateway_image: String,
    /// Image with `/usr/local/bin/muxwan`.
    pub netem_image: String,
    /// Image with `/usr/local/bin/muxbench`.
    pub bench_image: String,
    /// `Always`, `IfNotPresent` or `Never`, for all pods that are made.
    pub image_pull_policy: String,
    /// Whether a tunnel may have WAN emulation, whose containers need NET_ADMIN.
    pub wan_emulation: bool,
}

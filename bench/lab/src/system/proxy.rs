//! Runs clients that do not support proxies: proxychains4 directs their connections to the entry's
//! proxy.

use std::path::Path;

use anyhow::{Context, Result};

use super::{PROXY_PORT, Setup};
use crate::process::find;

/// The program, from the Debian package proxychains4.
const PROXYCHAINS: &str = "proxychains4";

/// The protocol of the entry's proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proxy {
    /// SOCKS 5 (RFC 1928).
    Socks5,
    /// CONNECT (RFC 9110, section 9.3.6).
    Http,
}

/// The command that precedes a client's own command line.
///
/// # Errors
/// If proxychains4 is not installed, or its configuration file cannot be written.
pub(super) fn prefix(setup: &Setup<'_>, proxy: Proxy) -> Result<Vec<String>> {
    let program = find(Path::new(PROXYCHAINS));
    let program = program.context("proxychains4 (Debian: proxychains4)")?;
    let addresses = &setup.addresses;
    let kind = match proxy {
        Proxy::Socks5 => "socks5",
        Proxy::Http => "http",
    };
    // If the server has a separate address for direct requests, the direct requests of the loads
    // bypass the proxy.
    let around = if addresses.server == addresses.target {
        String::new()
    } else {
        format!("localnet {}/255.255.255.255\n", addresses.server)
    };
    let text = format!(
        "strict_chain\nquiet_mode\n{around}[ProxyList]\n{kind} {} {PROXY_PORT}\n",
        addresses.entry
    );
    let file = setup.file("proxychains.conf", &text)?;
    Ok(vec![
        program.display().to_string(),
        "-q".to_owned(),
        "-f".to_owned(),
        file,
    ])
}

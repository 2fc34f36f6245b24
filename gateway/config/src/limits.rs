//! The priority and the limits of a forward's streams.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::BitRate;

/// Maximum of [`Limits::streams`] and [`Limits::opens_per_second`].
pub const LIMIT_MAX: u32 = 1_000_000;
/// Minimum of [`Limits::bits_per_second`].
pub const RATE_MIN: BitRate = BitRate(100_000);
/// Maximum of [`Limits::bits_per_second`].
pub const RATE_MAX: BitRate = BitRate(1_000_000_000_000);

/// The priority of streams that share carriers. Auto: new streams and streams that send little data
/// go first. Interactive: even with much data, streams go ahead of bulk streams. Bulk: streams go
/// last. Default: Auto. With protocols HTTP2, HBONE and SSH, the priority has no effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum Priority {
    /// New streams and streams that send little data go first. Examples are shells and the requests
    /// and responses of databases.
    #[default]
    Auto,
    /// Even with much data, the streams go ahead of bulk streams. Streams that send little data
    /// still go first, as with Auto.
    Interactive,
    /// The streams go last. Use this priority for backups and copies.
    Bulk,
}

/// Parses a priority as the command line spells it, in upper or lower case.
impl FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [
            ("Auto", Self::Auto),
            ("Interactive", Self::Interactive),
            ("Bulk", Self::Bulk),
        ];
        let found = known
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(text));
        found.map(|(_, priority)| *priority).ok_or_else(|| {
            format!("{text:?} is not a priority; priorities are Auto, Interactive and Bulk")
        })
    }
}

/// Limits of the streams of one listening port. Each gateway counts for itself. Default: no limit.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(transform = crate::schema::open)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Maximum number of concurrent streams. Connections beyond the limit are reset; a SOCKS or HTTP
    /// client gets a refusal instead. Default: no limit.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000)))]
    pub streams: Option<u32>,
    /// Maximum number of new connections per second. After one second without new connections, this
    /// number of connections may arrive at once. Connections beyond the limit are reset or refused,
    /// as with `streams`. Default: no limit.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000)))]
    pub opens_per_second: Option<u32>,
    /// Maximum rate of payload in each direction, in bits per second, such as 500k, 100M or 1G. The
    /// gateway delays payload beyond the limit. Default: no limit.
    #[serde(default)]
    #[cfg_attr(feature = "schemars", schemars(with = "BitRate"))]
    pub bits_per_second: Option<BitRate>,
}

/// Maximum of [`PeerLimits::carriers`].
pub const PEER_CARRIERS_MAX: u32 = 256;

/// Limits of one peer of an exit. Each exit gateway counts for itself, and counts the streams of
/// both directions together. A change reaches running gateways, and ends no carrier and no stream.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(transform = crate::schema::open)
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeerLimits {
    /// Maximum number of concurrent streams. The exit refuses streams beyond the limit. Default: no
    /// limit.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000)))]
    pub streams: Option<u32>,
    /// Maximum number of new streams per second. After one second without new streams, this number
    /// of streams may arrive at once. The exit refuses streams beyond the limit. Default: no limit.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000)))]
    pub opens_per_second: Option<u32>,
    /// Maximum rate of the streams' payload in each direction, in bits per second, such as 500k, 100M
    /// or 1G. The exit delays payload beyond the limit, and drops nothing. IP packets do not count.
    /// Default: no limit.
    #[serde(default)]
    #[cfg_attr(feature = "schemars", schemars(with = "BitRate"))]
    pub bits_per_second: Option<BitRate>,
    /// Maximum number of carriers. At the limit, the first carrier of a session gets the place of a
    /// further carrier of another session of the peer, and the exit refuses other carriers. The entry
    /// has one session for each worker of each pod. Default: 64 in a MuxPeer, no limit in a gateway's
    /// file.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 256)))]
    pub carriers: Option<u32>,
}

impl PeerLimits {
    /// Maximum number of carriers of a MuxPeer without `limits.carriers`.
    pub const CARRIERS_DEFAULT: u32 = 64;

    /// The limits of the streams.
    #[must_use]
    pub const fn of_streams(&self) -> Limits {
        Limits {
            streams: self.streams,
            opens_per_second: self.opens_per_second,
            bits_per_second: self.bits_per_second,
        }
    }

    /// Returns the field of the first limit that is out of range, and the problem.
    pub(crate) fn problem(&self) -> Option<(&'static str, String)> {
        let mut carriers = self.carriers.into_iter();
        match carriers.find(|carriers| !(1..=PEER_CARRIERS_MAX).contains(carriers)) {
            Some(_) => Some(("carriers", format!("must be from 1 to {PEER_CARRIERS_MAX}"))),
            None => self.of_streams().problem(),
        }
    }
}

impl Limits {
    /// Returns the field of the first limit that is out of range, and the problem.
    pub(crate) fn problem(&self) -> Option<(&'static str, String)> {
        for (field, limit) in [
            ("streams", self.streams),
            ("opensPerSecond", self.opens_per_second),
        ] {
            if limit.is_some_and(|limit| !(1..=LIMIT_MAX).contains(&limit)) {
                return Some((field, format!("must be from 1 to {LIMIT_MAX}")));
            }
        }
        self.bits_per_second
            .filter(|rate| !(RATE_MIN..=RATE_MAX).contains(rate))
            .map(|rate| {
                let problem = format!("{rate} is out of range: expected {RATE_MIN} to {RATE_MAX}");
                ("bitsPerSecond", problem)
            })
    }
}

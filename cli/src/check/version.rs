//! Versions of Kubernetes.

/// The first version in which the sysctls of tuned gateways (`net.ipv4.tcp_rmem`, `tcp_wmem`) are
/// safe.
pub(super) const LEAST: (u64, u64) = (1, 32);

/// Major and minor number of `v1.33.2`, `1.32` or `v1.31.4-eks-1234`.
pub(super) fn parse(text: &str) -> Option<(u64, u64)> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts = text.split('.');
    let major = parts.next()?.parse().ok()?;
    // Some providers report "32+".
    let minor = parts.next()?;
    let digits = minor.bytes().take_while(u8::is_ascii_digit).count();
    Some((major, minor[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_providers_write_them() {
        for (text, wanted) in [
            ("v1.33.2", Some((1, 33))),
            ("1.32", Some((1, 32))),
            ("v1.31.4-eks-1234", Some((1, 31))),
            ("v1.32+", Some((1, 32))),
            ("v1", None),
            ("", None),
            ("v1.x", None),
        ] {
            assert_eq!(parse(text), wanted, "{text}");
        }
    }
}

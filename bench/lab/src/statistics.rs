//! Statistics of the lab. Medians and ranges are in `muxbench::statistics`.

/// Jain's index of fairness, (sum x)^2 / (n * sum x^2): 1 if all shares are equal, 1/n if one share
/// has everything. `None` if all shares are zero. Source: R. Jain, D. Chiu, W. Hawe, DEC-TR-301,
/// 1984.
pub(crate) fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair_and_one_that_has_all_is_not() {
        assert_eq!(jain(&[3.0; 10]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[0.0, 0.0]), None);
        assert_eq!(jain(&[]), None);
    }

    #[test]
    fn one_of_ten_at_half_the_others_rate_is_just_below_the_target() {
        let shares = [vec![1.0; 9], vec![0.5]].concat();
        let index = jain(&shares).unwrap();
        assert!((0.97..0.98).contains(&index), "{index}");
    }
}

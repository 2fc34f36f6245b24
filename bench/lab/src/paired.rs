//! Statistics of two builds that are measured in pairs: the ratio of each pair, and their median.
//! Pure.
//!
//! Input: the figures of both builds, one pair per round. Output: the median ratio with an interval
//! ([`interval`]), and whether the interval reaches the target ([`Interval::is_met`]). If the
//! machine is slow for a minute, both builds of a pair are slow, so their ratio does not change.
//! [`crate::against`] runs the builds.

use muxbench::statistics::spread;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::metric::Metric;

/// Least number of pairs for an interval. With fewer pairs, even the whole range is not a 95 %
/// interval.
pub(crate) const PAIRS_MIN: u32 = 9;
/// The ratio that an interval must reach: 1 minus the 3 % by which two runs of one build can
/// differ.
pub(crate) const RATIO_MIN: f64 = 0.97;
/// Number of resamples. With this number the ends of an interval vary by less than the third digit.
const RESAMPLES: usize = 10_000;
/// Seed of the bootstrap, so that the same figures always give the same interval.
const SEED: u64 = 16;

/// A build of muxgate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// The build that is judged.
    This,
    /// The build with which `This` is compared.
    Other,
}

/// The order of the builds in `round`. The order alternates, so that neither build always runs
/// second.
pub(crate) fn order(round: u32) -> [Build; 2] {
    match round.is_multiple_of(2) {
        false => [Build::This, Build::Other],
        true => [Build::Other, Build::This],
    }
}

/// The ratio of `this` to `other`. Above 1, `this` is faster or costs less.
pub(crate) fn ratio(metric: Metric, this: f64, other: f64) -> f64 {
    match metric.is_cost() {
        false => this / other,
        true => other / this,
    }
}

/// The median of ratios, with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Interval {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Interval {
    /// Whether the upper end of the interval reaches [`RATIO_MIN`]. If it does, the figures give no
    /// evidence that this build is slower.
    pub(crate) fn is_met(&self) -> bool {
        self.high >= RATIO_MIN
    }
}

/// The percentile bootstrap of the median. `None` with fewer than [`PAIRS_MIN`] ratios, or if a
/// ratio is not a positive number. Source: B. Efron, R. Tibshirani, "An Introduction to the
/// Bootstrap", 1993, chapter 13.
pub(crate) fn interval(ratios: &[f64]) -> Option<Interval> {
    let is_usable = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
    if ratios.len() < PAIRS_MIN as usize || !ratios.iter().all(is_usable) {
        return None;
    }
    let mut random = StdRng::seed_from_u64(SEED);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            let drawn: Vec<f64> = (0..ratios.len())
                .map(|_| ratios[random.random_range(0..ratios.len())])
                .collect();
            Some(spread(&drawn)?.median)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    Some(Interval {
        median: spread(ratios)?.median,
        low: medians[RESAMPLES * 25 / 1000],
        high: medians[RESAMPLES * 975 / 1000 - 1],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NINE: [f64; 9] = [0.90, 0.92, 0.94, 0.95, 0.96, 0.97, 0.99, 1.02, 1.05];

    fn around(middle: f64) -> Vec<f64> {
        NINE.iter().map(|ratio| ratio - 0.96 + middle).collect()
    }

    #[test]
    fn the_builds_take_turns_in_going_first() {
        assert_eq!(order(1), [Build::This, Build::Other]);
        assert_eq!(order(2), [Build::Other, Build::This]);
        assert_eq!(order(3), order(1));
    }

    #[test]
    fn larger_is_better_whether_the_figure_is_a_rate_or_a_cost() {
        assert_eq!(ratio(Metric::MbitS, 20.0, 10.0), 2.0);
        assert_eq!(ratio(Metric::P50Us, 20.0, 10.0), 0.5);
        assert_eq!(ratio(Metric::CpuSPerGb, 0.2, 0.4), 2.0);
    }

    /// Compares with the exact bootstrap distribution of the median of nine. The median of a
    /// resample is at most the k-th least figure if at least five of nine draws are among the k
    /// least figures.
    #[test]
    fn the_interval_of_nine_pairs_is_the_exact_one() {
        let at_most = |least: u32| -> f64 {
            let part = f64::from(least) / 9.0;
            let choose = [1.0, 9.0, 36.0, 84.0, 126.0, 126.0, 84.0, 36.0, 9.0, 1.0];
            (5..=9)
                .map(|draws: i32| {
                    choose[draws as usize] * part.powi(draws) * (1.0 - part).powi(9 - draws)
                })
                .sum()
        };
        let quantile = |share: f64| {
            let least = (1..=9).find(|least| at_most(*least) >= share).unwrap();
            NINE[least as usize - 1]
        };
        let mut shuffled = NINE;
        shuffled.reverse();
        let found = interval(&shuffled).unwrap();
        assert_eq!(found.median, 0.96);
        assert_eq!((found.low, found.high), (quantile(0.025), quantile(0.975)));
    }

    #[test]
    fn the_same_figures_give_the_same_interval() {
        assert_eq!(interval(&NINE), interval(&NINE));
    }

    #[test]
    fn a_build_is_worse_where_the_whole_interval_is_below_the_least_ratio() {
        assert!(interval(&around(1.0)).unwrap().is_met());
        assert!(interval(&around(0.95)).unwrap().is_met());
        let worse = interval(&around(0.88)).unwrap();
        assert!(!worse.is_met(), "{worse:?}");
        assert!(interval(&[RATIO_MIN; 9]).unwrap().is_met());
        assert!(!interval(&[RATIO_MIN - 0.001; 9]).unwrap().is_met());
    }

    #[test]
    fn too_few_pairs_and_unusable_figures_give_no_interval() {
        assert_eq!(interval(&NINE[1..]), None);
        for bad in [0.0, f64::NAN, f64::INFINITY] {
            let mut ratios = NINE;
            ratios[3] = bad;
            assert_eq!(interval(&ratios), None);
        }
    }
}

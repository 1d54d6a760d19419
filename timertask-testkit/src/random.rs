//! Numbers from a seed: the same seed, the same numbers, on every machine.

/// SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014): one addition and
/// a mix for each number, and no number twice within 2⁶⁴.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

/// What the state grows by for each number.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `n`; 0 where `n` is 0. The bias of the multiplication is below n / 2⁶⁴.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(n);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// True with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        // 53 bits make an exact f64 in [0, 1).
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        unit < probability
    }
}

/// The finaliser: every bit of `z` decides about every bit of the answer.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_as_the_paper_says() {
        // The first numbers for the seed 1234567, as the reference implementation prints them.
        let mut random = Random::new(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn stays_below_and_reaches_both_ends() {
        let mut random = Random::new(7);
        let drawn: Vec<u64> = (0..200).map(|_| random.below(3)).collect();
        assert!(drawn.iter().all(|n| *n < 3) && (0..3).all(|n| drawn.contains(&n)));
        assert!(!random.chance(0.0) && random.chance(1.0) && random.below(0) == 0);
    }
}

//! Random expressions from a seed.

/// A generator of 64-bit numbers: the golden ratio as a step, then a mix of the bits.
///
/// Where the flag is set, the items `a/n` are among the expressions.
pub(crate) struct Random(u64, bool);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed, true)
    }

    /// Without `a/n`, which not every dialect knows.
    pub(crate) fn common(seed: u64) -> Self {
        Self(seed, false)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        mixed = (mixed ^ mixed >> 29).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        mixed ^ mixed >> 32
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        let n = self.below(list.len() as u64);
        &list[usize::try_from(n).unwrap()]
    }

    fn within(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max - min + 1)
    }

    /// A value, a range or a step over a range; `a/n` too.
    fn item(&mut self, min: u64, max: u64) -> String {
        let (a, b) = (self.within(min, max), self.within(min, max));
        let (from, upto) = (a.min(b), a.max(b));
        let step = self.within(1, (max - min).min(20));
        match self.below(6) {
            0 => format!("{from}-{upto}"),
            1 => format!("{from}-{upto}/{step}"),
            2 if self.1 => format!("{from}/{step}"),
            _ => from.to_string(),
        }
    }

    /// A list, or with some probability what does not restrict.
    pub(crate) fn field(&mut self, min: u64, max: u64, star: u64) -> String {
        match self.below(10) {
            n if n < star => "*".into(),
            n if n < star + 1 => format!("*/{}", self.within(2, (max - min).min(20))),
            _ => {
                let items: Vec<String> = (0..=self.below(3)).map(|_| self.item(min, max)).collect();
                items.join(",")
            }
        }
    }

    /// Five fields that fire several times a year. Weekdays are written 0–6.
    pub(crate) fn five(&mut self) -> String {
        format!(
            "{} {} {} {} {}",
            self.field(0, 59, 1),
            self.field(0, 23, 3),
            self.field(1, 28, 6),
            self.field(1, 12, 7),
            self.field(0, 6, 6),
        )
    }

    /// Six fields in which day of month and month begin with 1, as do weekdays.
    pub(crate) fn quartz(&mut self) -> String {
        let (second, minute, hour) = (self.below(60), self.field(0, 59, 2), self.field(0, 23, 3));
        let (day, month, weekday) = (self.field(1, 28, 6), self.field(1, 12, 7), self.field(1, 7, 6));
        format!("{second} {minute} {hour} {day} {month} {weekday}")
    }

    /// An instant between 1990 and 2060, in seconds.
    pub(crate) fn instant(&mut self) -> i64 {
        i64::try_from(self.within(631_152_000, 2_840_140_800)).unwrap()
    }
}

//! Storage that grows by pieces.

/// How many elements a piece holds.
const PIECE: usize = 256;

/// A vector in pieces: it never moves what it holds, and never reserves more than one piece ahead, where a `Vec`
/// would have half of a million rows in reserve.
#[derive(Clone, Debug)]
pub(super) struct Chunked<T> {
    pieces: Vec<Vec<T>>,
    len: usize,
}

impl<T> Chunked<T> {
    pub(super) const fn new() -> Self {
        Self { pieces: Vec::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends `value`; its index.
    pub(super) fn push(&mut self, value: T) -> usize {
        let index = self.len;
        if index.is_multiple_of(PIECE) {
            // The first piece grows as needed, since most ledgers are small.
            self.pieces.push(if index == 0 { Vec::new() } else { Vec::with_capacity(PIECE) });
        }
        self.pieces[index / PIECE].push(value);
        self.len += 1;
        index
    }

    pub(super) fn get(&self, index: usize) -> &T {
        &self.pieces[index / PIECE][index % PIECE]
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut T {
        &mut self.pieces[index / PIECE][index % PIECE]
    }
}

/// Storage whose places are used again; the last one left is the first one taken, so that a small working set stays
/// in the processor's cache.
#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    places: Chunked<T>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { places: Chunked::new(), free: Vec::new() }
    }

    /// A free place, and what was left in it; a new one is filled by `fresh`.
    ///
    /// # Panics
    /// With more than 2³² − 2 places in use.
    pub(super) fn take(&mut self, fresh: impl FnOnce() -> T) -> u32 {
        self.free.pop().unwrap_or_else(|| index(self.places.push(fresh())))
    }

    /// Leaves a place; its value stays for whoever takes it next.
    pub(super) fn leave(&mut self, place: u32) {
        self.free.push(place);
    }

    pub(super) fn get(&self, place: u32) -> &T {
        self.places.get(place as usize)
    }

    pub(super) fn get_mut(&mut self, place: u32) -> &mut T {
        self.places.get_mut(place as usize)
    }

    /// How many places are in use.
    pub(super) fn used(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

/// `n` as a place's number. 2³² rows need hundreds of gigabytes; whoever has them is told rather than mixed up.
///
/// # Panics
/// Where `n` does not fit.
#[expect(clippy::expect_used, reason = "stated above")]
pub(super) fn index(n: usize) -> u32 {
    u32::try_from(n).ok().filter(|n| *n != u32::MAX).expect("at most 2^32 - 1 rows in memory")
}

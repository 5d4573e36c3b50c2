//! The order in which kube-scheduler examines possible victims.
//!
//! kube-scheduler sorts them by importance with Go's `sort.Slice` and then reprieves one after the other. That sort is not stable, so it
//! decides which pods of equal importance stay: it keeps their order up to twelve pods, and beyond that its pattern-defeating quicksort
//! determines the order. Mullion passes the pods in the order of their keys, so the same pods always stay.

/// Up to this length elements are sorted by insertion, which keeps the order of equal ones.
pub(super) const STABLE: usize = 12;
/// From this length on the pivot is chosen from nine elements instead of three, and a nearly sorted part is repaired.
const LONG: usize = 50;
/// The maximum number of pairs that a repair exchanges.
const MENDS: usize = 5;
/// The number of swaps that choosing a pivot from nine elements makes if all of them are in descending order.
const ALL_FALLING: usize = 12;

/// Sorts exactly as Go's `sort.Slice` does, including the order of equal elements. Constants and the order of
/// comparisons are Go's; changing one changes which pods stay.
pub(super) fn sort<T>(all: &mut [T], less: impl Fn(&T, &T) -> bool) {
    let end = all.len();
    // Go's `bits.Len`: so many bad partitions are allowed before heapsort takes over.
    let limit = usize::BITS - end.leading_zeros();
    Sort { all, less: &less }.quick(0, end, limit);
}

struct Sort<'a, T, L> {
    all: &'a mut [T],
    less: &'a L,
}

/// The order that choosing a pivot found in a part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hint {
    Rising,
    Falling,
    Unknown,
}

impl<T, L: Fn(&T, &T) -> bool> Sort<'_, T, L> {
    fn less(&self, a: usize, b: usize) -> bool {
        (self.less)(&self.all[a], &self.all[b])
    }

    fn quick(&mut self, mut start: usize, mut end: usize, mut limit: u32) {
        let (mut balanced, mut partitioned) = (true, true);
        loop {
            let len = end - start;
            if len <= STABLE {
                return self.insert(start, end);
            }
            if limit == 0 {
                return self.heap(start, end);
            }
            // The last partition was lopsided, which hints at a pattern that defeats the choice of pivots.
            if !balanced {
                self.scatter(start, end);
                limit -= 1;
            }
            let (mut pivot, mut hint) = self.pivot(start, end);
            // A descending part becomes ascending, and the pivot's index is mirrored with it.
            if hint == Hint::Falling {
                self.all[start..end].reverse();
                pivot = end - 1 - (pivot - start);
                hint = Hint::Rising;
            }
            if balanced && partitioned && hint == Hint::Rising && self.mend(start, end) {
                return;
            }
            // The element before the part is not below the pivot, so no element of the part is below the pivot either: all elements equal to
            // it are in place.
            if start > 0 && !self.less(start - 1, pivot) {
                start = self.pass_equals(start, end, pivot);
                continue;
            }
            let middle;
            (middle, partitioned) = self.partition(start, end, pivot);
            let (left, right) = (middle - start, end - middle);
            balanced = left.min(right) >= len / 8;
            // Recursion into the smaller side keeps the stack short; the larger one is the next turn of the loop.
            if left < right {
                self.quick(start, middle, limit);
                start = middle + 1;
            } else {
                self.quick(middle + 1, end, limit);
                end = middle;
            }
        }
    }

    fn insert(&mut self, start: usize, end: usize) {
        for next in start + 1..end {
            let mut at = next;
            while at > start && self.less(at, at - 1) {
                self.all.swap(at, at - 1);
                at -= 1;
            }
        }
    }

    fn heap(&mut self, start: usize, end: usize) {
        let len = end - start;
        for root in (0..=(len - 1) / 2).rev() {
            self.sift(root, len, start);
        }
        for last in (0..len).rev() {
            self.all.swap(start, start + last);
            self.sift(0, last, start);
        }
    }

    fn sift(&mut self, mut root: usize, len: usize, start: usize) {
        loop {
            let mut child = 2 * root + 1;
            if child >= len {
                return;
            }
            if child + 1 < len && self.less(start + child, start + child + 1) {
                child += 1;
            }
            if !self.less(start + root, start + child) {
                return;
            }
            self.all.swap(start + root, start + child);
            root = child;
        }
    }

    /// Swaps three elements in the middle with pseudo-random ones, with Go's own generator, to break patterns.
    fn scatter(&mut self, start: usize, end: usize) {
        let len = end - start;
        let mask = (1_u64 << (usize::BITS - len.leading_zeros())) - 1;
        let mut random = len as u64;
        let middle = start + len / 4 * 2;
        for at in middle - 1..=middle + 1 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let other = (random & mask) as usize;
            // The mask is a power of two less one, so one subtraction brings the number into the part.
            let other = if other >= len { other - len } else { other };
            self.all.swap(at, start + other);
        }
    }

    fn pivot(&self, start: usize, end: usize) -> (usize, Hint) {
        let quarter = (end - start) / 4;
        let mut swaps = 0;
        let [mut a, mut b, mut c] = [1, 2, 3].map(|part| start + quarter * part);
        if end - start >= LONG {
            [a, b, c] = [a, b, c].map(|at| self.median([at - 1, at, at + 1], &mut swaps));
        }
        b = self.median([a, b, c], &mut swaps);
        let hint = match swaps {
            0 => Hint::Rising,
            ALL_FALLING => Hint::Falling,
            _ => Hint::Unknown,
        };
        (b, hint)
    }

    fn median(&self, [mut a, mut b, mut c]: [usize; 3], swaps: &mut usize) -> usize {
        let mut order = |a: &mut usize, b: &mut usize| {
            if self.less(*b, *a) {
                std::mem::swap(a, b);
                *swaps += 1;
            }
        };
        order(&mut a, &mut b);
        order(&mut b, &mut c);
        order(&mut a, &mut b);
        b
    }

    /// Repairs a part that is nearly sorted. Returns `false` if it is not nearly sorted, or too short for a repair to be worth it.
    fn mend(&mut self, start: usize, end: usize) -> bool {
        let mut at = start + 1;
        for _ in 0..MENDS {
            while at < end && !self.less(at, at - 1) {
                at += 1;
            }
            if at == end {
                return true;
            }
            if end - start < LONG {
                return false;
            }
            self.all.swap(at, at - 1);
            if at - start >= 2 {
                let mut low = at - 1;
                // As in Go, not bounded by the start of the part: what is before it is never larger.
                while low >= 1 && self.less(low, low - 1) {
                    self.all.swap(low, low - 1);
                    low -= 1;
                }
            }
            if end - at >= 2 {
                let mut high = at + 1;
                while high < end && self.less(high, high - 1) {
                    self.all.swap(high, high - 1);
                    high += 1;
                }
            }
        }
        false
    }

    /// Partitions elements into those below the pivot and the others. Returns the pivot's new index, and whether nothing had to move.
    fn partition(&mut self, start: usize, end: usize, pivot: usize) -> (usize, bool) {
        self.all.swap(start, pivot);
        let (mut low, mut high) = self.meet(start, start + 1, end - 1);
        // Nothing had to be swapped: the part may be sorted already, which `mend` checks the next time.
        let in_place = low > high;
        while low <= high {
            self.all.swap(low, high);
            (low, high) = self.meet(start, low + 1, high - 1);
        }
        self.all.swap(high, start);
        (high, in_place)
    }

    /// Moves both ends to the next elements that are on the wrong side.
    fn meet(&self, pivot: usize, mut low: usize, mut high: usize) -> (usize, usize) {
        while low <= high && self.less(low, pivot) {
            low += 1;
        }
        while low <= high && !self.less(high, pivot) {
            high -= 1;
        }
        (low, high)
    }

    /// Moves the elements that equal the pivot to the front of a part in which none is below it. Returns the index after them.
    fn pass_equals(&mut self, start: usize, end: usize, pivot: usize) -> usize {
        self.all.swap(start, pivot);
        let (mut low, mut high) = (start + 1, end - 1);
        loop {
            while low <= high && !self.less(start, low) {
                low += 1;
            }
            while low <= high && self.less(start, high) {
                high -= 1;
            }
            if low > high {
                return low;
            }
            self.all.swap(low, high);
            low += 1;
            high -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sort;

    /// Returns the key of a number in one of several orders; many keys are equal.
    fn key(kind: &str, len: usize, by: usize, index: usize) -> usize {
        match kind {
            "mixed" => (index * index * 7 + index * 3) % by,
            "falling" => (len - index) / by,
            "pipe" => index.min(len - index) / by,
            "saw" => index % by,
            _ => (((index * 2_654_435_761) % 4_294_967_296) >> 7) % by,
        }
    }

    #[test]
    fn up_to_twelve_equals_keep_their_order() {
        for len in 0..=12 {
            let mut all: Vec<usize> = (0..len).collect();
            sort(&mut all, |a, b| a % 2 < b % 2);
            let mut stable: Vec<usize> = (0..len).collect();
            stable.sort_by_key(|index| index % 2);
            assert_eq!(all, stable);
        }
    }

    #[test]
    fn more_are_left_as_upstreams_sort_leaves_them() {
        let mut sixteen: Vec<usize> = (0..16).collect();
        let by = |index: &usize| key("mixed", 16, 3, *index);
        sort(&mut sixteen, |a, b| by(a) < by(b));
        assert_eq!(
            sixteen,
            [6, 15, 12, 3, 0, 9, 4, 7, 8, 5, 10, 11, 2, 13, 14, 1]
        );
        // A checksum of the order in which Go leaves longer inputs.
        let digests = [
            ("mixed", 13, 2, 584343),
            ("mixed", 16, 3, 396400),
            ("saw", 14, 4, 828832),
            ("falling", 20, 2, 18584),
            ("spread", 20, 2, 535127),
            ("mixed", 49, 5, 705452),
            ("pipe", 50, 1, 543459),
            ("falling", 60, 7, 747353),
            ("spread", 110, 3, 256708),
            ("pipe", 300, 3, 994841),
            ("saw", 200, 6, 265475),
            ("spread", 1000, 40, 950517),
            ("falling", 1000, 1, 614082),
            ("saw", 1000, 2, 964419),
        ];
        for (kind, len, by, digest) in digests {
            let mut all: Vec<usize> = (0..len).collect();
            let by = |index: &usize| key(kind, len, by, *index);
            sort(&mut all, |a, b| by(a) < by(b));
            assert!(all.is_sorted_by_key(by), "{kind} {len}");
            let found = all
                .iter()
                .fold(0, |sum, index| (sum * 31 + index) % 1_000_003);
            assert_eq!(found, digest, "{kind} {len}");
        }
    }
}

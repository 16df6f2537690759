//! Placing buffers in one arena: offsets from sizes and lifetimes.

/// Every offset is a multiple of this many bytes (a cache line, the widest vector).
pub const ALIGN: u64 = 64;

/// Where the buffers of an arena lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Byte offset per buffer.
    pub offsets: Vec<u64>,
    /// Size of the arena in bytes.
    pub total: u64,
}

/// Lays out buffers of `sizes` bytes that are live during the steps `first..=last`, so that buffers
/// live at the same time do not overlap. Large buffers are placed first, each into the smallest gap
/// that fits. The result depends on nothing but the arguments.
///
/// # Panics
/// If the lists differ in length.
pub fn layout(sizes: &[u64], live: &[(u32, u32)]) -> Layout {
    assert_eq!(sizes.len(), live.len(), "a lifetime per size");
    let rounded = |i: usize| sizes[i].div_ceil(ALIGN).saturating_mul(ALIGN);
    let mut order: Vec<usize> = (0..sizes.len()).filter(|i| sizes[*i] > 0).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(rounded(i)), live[i].0, i));

    let mut offsets = vec![0; sizes.len()];
    let mut total = 0;
    // Placed buffers by offset.
    let mut placed: Vec<(u64, usize)> = vec![];
    for i in order {
        let size = rounded(i);
        let (first, last) = live[i];
        let mut best: Option<(u64, u64)> = None; // (length of the gap, its start)
        let mut free = 0; // end of the buffers seen so far that are live together with `i`
        for &(offset, j) in &placed {
            if live[j].0 > last || first > live[j].1 {
                continue;
            }
            if offset > free {
                let gap = offset - free;
                if gap >= size && best.is_none_or(|(b, _)| gap < b) {
                    best = Some((gap, free));
                }
            }
            free = free.max(offset + rounded(j));
        }
        let at = best.map_or(free, |(_, at)| at);
        offsets[i] = at;
        total = total.max(at.saturating_add(size));
        let k = placed.partition_point(|p| *p < (at, i));
        placed.insert(k, (at, i));
    }
    Layout { offsets, total }
}

/// The largest number of bytes live at one step: no layout can be smaller.
pub fn lower_bound(sizes: &[u64], live: &[(u32, u32)]) -> u64 {
    let mut changes: Vec<(u32, bool, u64)> = vec![];
    for (s, &(first, last)) in sizes.iter().zip(live) {
        let s = s.div_ceil(ALIGN) * ALIGN;
        changes.push((first, true, s));
        changes.push((last + 1, false, s));
    }
    changes.sort_by_key(|c| (c.0, c.1));
    let (mut now, mut most) = (0u64, 0u64);
    for (_, starts, s) in changes {
        if starts {
            now += s;
        } else {
            now -= s;
        }
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_disjoint(sizes: &[u64], live: &[(u32, u32)], l: &Layout) {
        for i in 0..sizes.len() {
            assert_eq!(l.offsets[i] % ALIGN, 0);
            assert!(l.offsets[i] + sizes[i] <= l.total);
            for j in 0..i {
                let together = live[i].0 <= live[j].1 && live[j].0 <= live[i].1;
                let overlap =
                    l.offsets[i] < l.offsets[j] + sizes[j] && l.offsets[j] < l.offsets[i] + sizes[i];
                assert!(!(together && overlap && sizes[i] > 0 && sizes[j] > 0), "{i} and {j} of {l:?}");
            }
        }
    }

    /// A small deterministic generator (xorshift).
    fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
        move |n| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % n
        }
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        let sizes = [1000; 10];
        let live: Vec<(u32, u32)> = (0..10).map(|i| (i, i + 1)).collect();
        let l = layout(&sizes, &live);
        assert_eq!(l.total, 2048);
        assert_disjoint(&sizes, &live, &l);
    }

    #[test]
    fn empty_and_zero() {
        assert_eq!(layout(&[], &[]), Layout { offsets: vec![], total: 0 });
        assert_eq!(layout(&[0, 1], &[(0, 5), (0, 5)]), Layout { offsets: vec![0, 0], total: 64 });
    }

    #[test]
    fn random_layouts_do_not_overlap_and_are_tight() {
        let (mut used, mut needed) = (0, 0);
        for seed in 1..200 {
            let mut next = numbers(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            let n = 1 + next(60) as usize;
            let sizes: Vec<u64> = (0..n)
                .map(|_| {
                    let magnitude = 4 + next(14);
                    if next(10) == 0 { 0 } else { 1 + next(1 << magnitude) }
                })
                .collect();
            let live: Vec<(u32, u32)> = (0..n)
                .map(|_| {
                    let first = next(50) as u32;
                    (first, first + next(8) as u32)
                })
                .collect();
            let l = layout(&sizes, &live);
            assert_disjoint(&sizes, &live, &l);
            assert_eq!(l, layout(&sizes, &live));
            assert!(l.total >= lower_bound(&sizes, &live));
            used += l.total;
            needed += lower_bound(&sizes, &live);
        }
        assert!(used * 100 <= needed * 108, "{used} against {needed}");
    }
}

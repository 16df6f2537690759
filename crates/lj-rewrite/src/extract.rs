//! Choosing one node per class.
//!
//! Greedy over the DAG: a class's cost is that of the set of classes its choice needs, each counted
//! once (a bitset per class). A tree extractor would count shared values once per use and trade
//! sharing away. For e-graphs with more classes than [`DAG_LIMIT`] the bitsets grow too large
//! (classes²/8 bytes) and the tree cost has to do.

use crate::cost::Cost;
use crate::lang::{ENode, Graphs};
use egg::{Id, Language};

/// The largest number of classes for which bitsets are used (50 MB).
const DAG_LIMIT: usize = 20_000;

/// The chosen node of each class.
pub(crate) struct Choice {
    dense: Vec<u32>,
    chosen: Vec<Option<ENode>>,
}

impl Choice {
    /// The choice for a class, given by its canonical id.
    pub fn node(&self, class: Id) -> Option<&ENode> {
        let i = *self.dense.get(usize::from(class))? as usize;
        self.chosen.get(i)?.as_ref()
    }
}

struct Candidate {
    node: ENode,
    cost: f64,
    children: Vec<u32>,
}

/// Chooses a node for every class that has a finite one. The choice has no cycles.
pub(crate) fn extract(eg: &Graphs, roots: &[Id], cost: &Cost<'_>) -> Option<Choice> {
    let mut ids: Vec<Id> = eg.classes().map(|c| c.id).collect();
    ids.sort_unstable();
    let size = ids.last().map_or(0, |i| usize::from(*i) + 1);
    let mut dense = vec![u32::MAX; size];
    for (i, id) in ids.iter().enumerate() {
        dense[usize::from(*id)] = i as u32;
    }
    let classes: Vec<Vec<Candidate>> = ids
        .iter()
        .map(|id| {
            let mut list: Vec<Candidate> = eg[*id]
                .nodes
                .iter()
                .map(|n| {
                    let mut children: Vec<u32> =
                        n.children().iter().map(|c| dense[usize::from(eg.find(*c))]).collect();
                    children.sort_unstable();
                    children.dedup();
                    Candidate { node: n.clone(), cost: cost.of(eg, n, *id), children }
                })
                .collect();
            list.sort_by(|a, b| a.cost.total_cmp(&b.cost).then_with(|| a.node.cmp(&b.node)));
            list
        })
        .collect();
    let root_indices: Vec<usize> = roots.iter().map(|r| dense[usize::from(eg.find(*r))] as usize).collect();
    let mut picks = if ids.len() <= DAG_LIMIT { dag(&classes) } else { tree(&classes) };
    if has_cycle(&classes, &picks, &root_indices) {
        picks = tree(&classes);
        if has_cycle(&classes, &picks, &root_indices) {
            return None;
        }
    }
    let chosen = classes.iter().zip(&picks).map(|(c, p)| p.map(|p| c[p].node.clone())).collect();
    Some(Choice { dense, chosen })
}

/// A set of classes.
#[derive(Clone)]
struct Bits(Vec<u64>);

impl Bits {
    fn has(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }
    fn set(&mut self, i: usize) {
        if self.0.len() <= i / 64 {
            self.0.resize(i / 64 + 1, 0);
        }
        self.0[i / 64] |= 1 << (i % 64);
    }
    /// Adds `other`; returns the summed weight of what is new.
    fn add(&mut self, other: &Bits, weight: &[f64]) -> f64 {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut sum = 0.0;
        for (w, (mine, theirs)) in self.0.iter_mut().zip(&other.0).enumerate() {
            let mut new = theirs & !*mine;
            *mine |= theirs;
            while new != 0 {
                sum += weight[w * 64 + new.trailing_zeros() as usize];
                new &= new - 1;
            }
        }
        sum
    }
}

/// Cost set of a class.
struct Best {
    pick: usize,
    total: f64,
    set: Bits,
}

fn dag(classes: &[Vec<Candidate>]) -> Vec<Option<usize>> {
    let n = classes.len();
    let mut best: Vec<Option<Best>> = (0..n).map(|_| None).collect();
    let mut own = vec![0.0; n];
    let parents = parents(classes);
    let mut dirty = vec![true; n];
    // Each pass only lowers costs; a graph that was loaded in order needs two or three.
    for _ in 0..32 {
        let mut changed = false;
        for c in 0..n {
            if !std::mem::replace(&mut dirty[c], false) {
                continue;
            }
            let mut better = false;
            for (pick, cand) in classes[c].iter().enumerate() {
                let limit = best[c].as_ref().map_or(f64::INFINITY, |b| b.total);
                let Some((total, set)) = evaluate(c, cand, &best, &own) else { continue };
                // A relative margin, so that rounding in the sums decides nothing.
                if total < limit - limit.abs().min(f64::MAX) * 1e-12 {
                    own[c] = cand.cost;
                    best[c] = Some(Best { pick, total, set });
                    better = true;
                }
            }
            if better {
                changed = true;
                for &p in &parents[c] {
                    dirty[p as usize] = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    best.into_iter().map(|b| b.map(|b| b.pick)).collect()
}

/// The cost set of a candidate, if its operands have one and it does not need itself.
fn evaluate(c: usize, cand: &Candidate, best: &[Option<Best>], own: &[f64]) -> Option<(f64, Bits)> {
    let mut largest: Option<usize> = None;
    for &k in &cand.children {
        let b = best[k as usize].as_ref()?;
        if k as usize == c || b.set.has(c) {
            return None;
        }
        if largest.is_none_or(|l| best[l].as_ref().is_none_or(|x| x.total < b.total)) {
            largest = Some(k as usize);
        }
    }
    let (mut total, mut set) = match largest.and_then(|l| best[l].as_ref()) {
        Some(b) => (b.total, b.set.clone()),
        None => (0.0, Bits(vec![])),
    };
    for &k in &cand.children {
        if Some(k as usize) != largest {
            total += set.add(&best[k as usize].as_ref()?.set, own);
        }
    }
    set.set(c);
    Some((total + cand.cost, set))
}

/// Bottom-up tree costs. A choice is replaced only by a strictly cheaper one, which keeps the
/// choices free of cycles.
fn tree(classes: &[Vec<Candidate>]) -> Vec<Option<usize>> {
    let n = classes.len();
    let parents = parents(classes);
    let mut best: Vec<Option<(f64, usize)>> = vec![None; n];
    let mut dirty = vec![true; n];
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for c in 0..n {
            if !std::mem::replace(&mut dirty[c], false) {
                continue;
            }
            for (pick, cand) in classes[c].iter().enumerate() {
                let children: Option<f64> =
                    cand.children.iter().map(|k| best[*k as usize].map(|b| b.0)).sum();
                let Some(total) = children.map(|s| (s + cand.cost).min(f64::MAX)) else { continue };
                if best[c].is_none_or(|b| total < b.0) {
                    best[c] = Some((total, pick));
                    changed = true;
                    for &p in &parents[c] {
                        dirty[p as usize] = true;
                    }
                }
            }
        }
    }
    best.into_iter().map(|b| b.map(|b| b.1)).collect()
}

fn parents(classes: &[Vec<Candidate>]) -> Vec<Vec<u32>> {
    let mut out = vec![vec![]; classes.len()];
    for (c, list) in classes.iter().enumerate() {
        for k in list.iter().flat_map(|cand| &cand.children) {
            out[*k as usize].push(c as u32);
        }
    }
    for p in &mut out {
        p.dedup();
    }
    out
}

/// Whether following the choices from the roots comes back to where it was, or to nothing.
fn has_cycle(classes: &[Vec<Candidate>], picks: &[Option<usize>], roots: &[usize]) -> bool {
    #[derive(Clone, Copy, PartialEq)]
    enum Color {
        New,
        Open,
        Done,
    }
    let mut color = vec![Color::New; classes.len()];
    for &root in roots {
        let mut stack = vec![(root, 0usize)];
        while let Some((c, next)) = stack.pop() {
            let Some(pick) = picks[c] else { return true };
            if color[c] == Color::Done {
                continue;
            }
            color[c] = Color::Open;
            let children = &classes[c][pick].children;
            match children.get(next) {
                None => color[c] = Color::Done,
                Some(&k) => {
                    stack.push((c, next + 1));
                    match color[k as usize] {
                        Color::Open => return true,
                        Color::New => stack.push((k as usize, 0)),
                        Color::Done => {}
                    }
                }
            }
        }
    }
    false
}

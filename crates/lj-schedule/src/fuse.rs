//! Fusion: items that iterate over one space and only exchange values at equal coordinates become
//! one group, hence one kernel.
//!
//! A group has a *space*, a list of extents that refines the domain of every member; members relate
//! to it by position. At most one set of dims is *reduced* by reductions whose results other members
//! may use (rows: a softmax, a norm); reductions over exactly the other dims may join as *columns*
//! (the weight gradient of a norm) if nothing in the group uses them.

use crate::analysis::Analysis;
use crate::coords::{Bounds, join_parts};
use crate::items::{Dest, Item, domain_var};
use lj_ir::shape::refine;
use lj_ir::{Expr, Facts, NodeId, Op, Sym, Type, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// What an item is within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Computed at every point of the space.
    Full,
    /// A reduction over the row dims.
    Row,
    /// Computed once per row.
    Outer,
    /// A reduction over all dims that are not row dims.
    Col,
    /// A scan along the row, which then has one dim.
    Scan,
}

/// Items that share one kernel.
#[derive(Clone, Debug)]
pub struct Group {
    /// Members, as indices into the list of items, in topological order.
    pub items: Vec<usize>,
    /// What each member is.
    pub roles: Vec<Role>,
    /// Extents.
    pub space: Vec<Expr>,
    /// Which dims the row reductions reduce; `None` when there are none.
    pub rows: Option<Vec<bool>>,
}

/// Something that runs as a whole.
#[derive(Clone, Debug)]
pub enum Unit {
    /// One of our kernels.
    Group(Group),
    /// A node that runs by itself: an ATen call, a matrix product, a scatter.
    Node(NodeId),
}

/// The space variable of dim `d`.
pub fn space_var(d: usize) -> Sym {
    Sym::new(&format!("x{d}"))
}

/// Members beyond this number start a new group.
const MAX_ITEMS: usize = 48;
/// Only this many of the most recent groups are tried for horizontal fusion.
const HORIZONTAL_WINDOW: usize = 8;

impl Group {
    /// Coordinates of `item`'s domain, and of its result, over the space's variables.
    pub fn coords(&self, item: &Item, role: Role, facts: &Facts) -> Option<(Vec<Expr>, Vec<Expr>)> {
        let kept_only = role == Role::Outer;
        let dims: Vec<usize> = (0..self.space.len())
            .filter(|&d| !kept_only || !self.rows.as_ref().is_some_and(|r| r[d]))
            .collect();
        let extents: Vec<Expr> = dims.iter().map(|&d| self.space[d].clone()).collect();
        let (parts, cover, cover_item) = refine(&extents, &item.domain, facts)?;
        // The space must already be at least as fine as the item's domain.
        if cover.iter().zip(&extents).any(|(&c, e)| c > 1 || (c == 0 && !e.is(1))) {
            return None;
        }
        let vars: Vec<Expr> = dims
            .iter()
            .zip(&cover)
            .filter(|(_, c)| **c == 1)
            .map(|(&d, _)| Expr::sym(space_var(d).name()))
            .collect();
        let domain = join_parts(&vars, &parts, &cover_item);
        let result = match &item.reduce {
            None => domain.clone(),
            Some((_, m)) => domain.iter().zip(m).filter(|(_, r)| !**r).map(|(e, _)| e.clone()).collect(),
        };
        Some((domain, result))
    }

    /// Ranges of the space's variables.
    pub fn bounds(&self, facts: &Facts) -> Bounds {
        let extents = self.space.iter().enumerate().map(|(d, e)| (space_var(d), e.clone())).collect();
        Bounds { facts: facts.clone(), extents }
    }
}

/// Partition of the work, with the units every unit needs.
pub struct Fusion {
    /// Units, in order of creation (not in run order).
    pub units: Vec<Unit>,
    /// For each unit, the units that must run before it.
    pub deps: Vec<BTreeSet<usize>>,
}

struct Fuser<'a, 'g> {
    a: &'a Analysis<'g>,
    items: &'a [Item],
    units: Vec<Unit>,
    deps: Vec<BTreeSet<usize>>,
    /// All units a unit depends on, directly or not.
    ancestors: Vec<Bits>,
    /// Units that make a value.
    makers: BTreeMap<ValueId, BTreeSet<usize>>,
    /// Unit, position within it, of the item that computes a value for itself.
    member: BTreeMap<ValueId, (usize, usize)>,
    last_effect: Option<usize>,
    /// For each value, the nodes that give sizes it is made with.
    definers: Vec<BTreeSet<NodeId>>,
    /// Units of nodes that run by themselves.
    unit_of: BTreeMap<NodeId, usize>,
}

#[derive(Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn has(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }
    fn add(&mut self, i: usize) {
        if self.0.len() <= i / 64 {
            self.0.resize(i / 64 + 1, 0);
        }
        self.0[i / 64] |= 1 << (i % 64);
    }
    fn join(&mut self, o: &Bits) {
        if self.0.len() < o.0.len() {
            self.0.resize(o.0.len(), 0);
        }
        for (a, b) in self.0.iter_mut().zip(&o.0) {
            *a |= b;
        }
    }
}

/// Puts items into groups. `node_reads[n]` lists the realised values that unit-by-itself node `n`
/// reads.
pub fn fuse(a: &Analysis, items: &[Item], node_reads: &BTreeMap<NodeId, Vec<ValueId>>) -> Fusion {
    let mut f = Fuser {
        a,
        items,
        units: vec![],
        deps: vec![],
        ancestors: vec![],
        makers: BTreeMap::new(),
        member: BTreeMap::new(),
        last_effect: None,
        definers: crate::late::definers(a.graph),
        unit_of: BTreeMap::new(),
    };
    let mut next = 0;
    for n in 0..a.graph.nodes.len() {
        let id = NodeId(n as u32);
        while next < items.len() && items[next].node == id {
            f.place(next);
            next += 1;
        }
        if let Some(reads) = node_reads.get(&id) {
            f.node(id, reads);
        }
    }
    Fusion { units: f.units, deps: f.deps }
}

impl Fuser<'_, '_> {
    fn needed(&self, reads: impl IntoIterator<Item = ValueId>) -> BTreeSet<usize> {
        reads.into_iter().filter_map(|v| self.makers.get(&v)).flatten().copied().collect()
    }

    /// Units that give a size that `v` is made with.
    fn sizes_of(&self, v: ValueId) -> impl Iterator<Item = usize> {
        self.definers[v.index()].iter().filter_map(|n| self.unit_of.get(n)).copied()
    }

    fn new_unit(&mut self, unit: Unit, deps: BTreeSet<usize>) -> usize {
        let mut all = Bits::default();
        for &d in &deps {
            all.add(d);
            all.join(&self.ancestors[d]);
        }
        self.units.push(unit);
        self.deps.push(deps);
        self.ancestors.push(all);
        self.units.len() - 1
    }

    fn node(&mut self, id: NodeId, reads: &[ValueId]) {
        let node = &self.a.graph.nodes[id.index()];
        let mut deps = self.needed(reads.iter().copied());
        // Numbers that calls give to calls lie in no memory.
        let numbers = node.inputs.iter().filter(|v| matches!(self.a.graph.ty(**v), Type::Scalar(_)));
        deps.extend(self.needed(numbers.copied()));
        deps.extend(node.outputs.iter().flat_map(|v| self.sizes_of(*v)));
        if node.op.has_effect() {
            deps.extend(self.last_effect);
        }
        let unit = self.new_unit(Unit::Node(id), deps);
        if node.op.has_effect() {
            self.last_effect = Some(unit);
        }
        self.unit_of.insert(id, unit);
        for &v in &node.outputs {
            self.makers.entry(v).or_default().insert(unit);
        }
    }

    fn place(&mut self, i: usize) {
        let item = &self.items[i];
        let mut deps = self.needed(item.reads.iter().map(|(v, _)| *v));
        deps.extend(self.sizes_of(item.value));
        let mut candidates: Vec<usize> = deps.iter().rev().copied().collect();
        // Neighbours that read the same memory: one pass over it serves both.
        let recent = self.units.len().saturating_sub(4 * HORIZONTAL_WINDOW);
        let leaves: BTreeSet<ValueId> = item.reads.iter().map(|(v, _)| *v).collect();
        let mut tried = 0;
        for u in (recent..self.units.len()).rev() {
            let Unit::Group(g) = &self.units[u] else { continue };
            if deps.contains(&u) || tried >= HORIZONTAL_WINDOW {
                continue;
            }
            let shares = g.items.iter().any(|&k| self.items[k].reads.iter().any(|(v, _)| leaves.contains(v)));
            if shares || g.items.iter().any(|&k| self.items[k].node == item.node) {
                candidates.push(u);
                tried += 1;
            }
        }
        for u in candidates {
            if deps.iter().any(|&d| d != u && self.ancestors[d].has(u)) {
                continue;
            }
            if let Some((group, role)) = self.joined(u, i) {
                self.join(u, i, group, role, &deps);
                return;
            }
        }
        let rows = item.rows();
        let role = match (&item.reduce, &item.scan) {
            (Some(_), _) => Role::Row,
            (_, Some(_)) => Role::Scan,
            _ => Role::Full,
        };
        let group = Group { items: vec![i], roles: vec![role], space: item.domain.clone(), rows };
        let unit = self.new_unit(Unit::Group(group), deps);
        self.register(i, unit, 0);
    }

    fn register(&mut self, i: usize, unit: usize, position: usize) {
        let item = &self.items[i];
        match &item.dest {
            Dest::Own => {
                self.makers.entry(item.value).or_default().insert(unit);
                self.member.insert(item.value, (unit, position));
            }
            Dest::Window { cat, .. } => {
                self.makers.entry(*cat).or_default().insert(unit);
            }
            Dest::Input(_) => {}
        }
    }

    fn join(&mut self, u: usize, i: usize, group: Group, role: Role, deps: &BTreeSet<usize>) {
        let mut group = group;
        group.items.push(i);
        group.roles.push(role);
        let position = group.items.len() - 1;
        self.units[u] = Unit::Group(group);
        let mut added = Bits::default();
        for &d in deps.iter().filter(|d| **d != u) {
            self.deps[u].insert(d);
            added.add(d);
            added.join(&self.ancestors[d]);
        }
        self.ancestors[u].join(&added);
        let all = self.ancestors[u].clone();
        for k in 0..self.units.len() {
            if self.ancestors[k].has(u) {
                self.ancestors[k].join(&all);
            }
        }
        self.register(i, u, position);
    }

    /// The group of unit `u` changed so that item `i` may join it, and the item's role.
    fn joined(&self, u: usize, i: usize) -> Option<(Group, Role)> {
        let Unit::Group(g) = &self.units[u] else { return None };
        if g.items.len() >= MAX_ITEMS {
            return None;
        }
        let item = &self.items[i];
        for outer in [false, true] {
            if let Some((group, role)) = self.fit(g, item, outer)
                && self.scans_fit(&group, item, role)
                && self.reads_fit(&group, item, role, u)
            {
                return Some((group, role));
            }
        }
        None
    }

    /// Scans need a row of one dim, which one loop walks in order: all of them in the same, and forwards
    /// if something asks for the first position. They know no columns.
    fn scans_fit(&self, group: &Group, item: &Item, role: Role) -> bool {
        let members = || group.items.iter().map(|&i| &self.items[i]).chain([item]);
        let ways: BTreeSet<bool> = members().filter_map(|i| i.scan.map(|(_, _, reverse)| reverse)).collect();
        let positions = members().any(|i| i.reduce.as_ref().is_some_and(|(op, _)| op.is_arg()));
        let columns = group.roles.contains(&Role::Col) || role == Role::Col;
        let one_dim = || group.rows.as_ref().is_some_and(|r| r.iter().filter(|r| **r).count() == 1);
        match (ways.len(), ways.contains(&true)) {
            (0, _) => true,
            (1, reverse) => one_dim() && !columns && !(reverse && positions),
            _ => false,
        }
    }

    /// Refines the space for the item; `outer` tries it as once-per-row.
    fn fit(&self, g: &Group, item: &Item, outer: bool) -> Option<(Group, Role)> {
        let facts = &self.a.graph.facts;
        let mut group = g.clone();
        if outer {
            let rows = g.rows.as_ref()?;
            if item.rows().is_some() {
                return None;
            }
            let kept: Vec<Expr> =
                g.space.iter().zip(rows).filter(|(_, r)| !**r).map(|(e, _)| e.clone()).collect();
            let (parts, cover, _) = refine(&kept, &item.domain, facts)?;
            let (mut space, mut new_rows, mut at, mut k) = (vec![], vec![], 0, 0);
            for (e, &r) in g.space.iter().zip(rows) {
                if r {
                    space.push(e.clone());
                    new_rows.push(true);
                } else {
                    let n = cover[k];
                    space.extend(parts[at..at + n].iter().cloned());
                    new_rows.extend(std::iter::repeat_n(false, n));
                    at += n;
                    k += 1;
                }
            }
            group.space = space;
            group.rows = Some(new_rows);
            return Some((group, Role::Outer));
        }
        let (parts, cover, cover_item) = refine(&g.space, &item.domain, facts)?;
        let spread = |mask: &[bool], cover: &[usize]| -> Vec<bool> {
            mask.iter().zip(cover).flat_map(|(&m, &n)| std::iter::repeat_n(m, n)).collect()
        };
        group.rows = g.rows.as_ref().map(|r| spread(r, &cover));
        group.space = parts;
        let Some(mask) = item.rows() else { return Some((group, Role::Full)) };
        let mask = spread(&mask, &cover_item);
        let has_col = g.roles.contains(&Role::Col);
        let role = if item.scan.is_some() { Role::Scan } else { Role::Row };
        if group.rows.is_none() {
            group.rows = Some(mask);
            return Some((group, role));
        }
        let arg = item.reduce.as_ref().is_none_or(|(op, _)| op.is_arg());
        match &group.rows {
            Some(rows) if *rows == mask => Some((group, role)),
            Some(rows) if rows.iter().zip(&mask).all(|(a, b)| a != b) && !arg => {
                // One of the two sets is the rows: the one with the innermost dim.
                let inner = |m: &[bool]| m.last().copied().unwrap_or(false);
                if inner(rows) {
                    return Some((group, Role::Col));
                }
                let swappable = !has_col
                    && g.roles.iter().all(|r| matches!(r, Role::Full | Role::Row))
                    && g.items.iter().zip(&g.roles).all(|(&k, r)| {
                        *r != Role::Row || self.items[k].reduce.as_ref().is_some_and(|(op, _)| !op.is_arg())
                    });
                // Members that use the old rows' results would no longer see them.
                let used = g.items.iter().any(|&k| {
                    self.items[k].reads.iter().any(|(v, _)| {
                        g.items
                            .iter()
                            .zip(&g.roles)
                            .any(|(&p, r)| *r == Role::Row && self.items[p].value == *v)
                    })
                });
                if !swappable || used {
                    return None;
                }
                for r in &mut group.roles {
                    if *r == Role::Row {
                        *r = Role::Col;
                    }
                }
                group.rows = Some(mask);
                Some((group, Role::Row))
            }
            _ => None,
        }
    }

    /// Whether everything the item reads from members stands at the same coordinates.
    fn reads_fit(&self, group: &Group, item: &Item, role: Role, u: usize) -> bool {
        let facts = &self.a.graph.facts;
        let bounds = group.bounds(facts);
        let Some((domain, _)) = group.coords(item, role, facts) else { return false };
        let names: BTreeMap<Sym, Expr> =
            domain.iter().enumerate().map(|(d, e)| (domain_var(d), e.clone())).collect();
        item.reads.iter().all(|(v, coords)| {
            if !self.makers.get(v).is_some_and(|m| m.contains(&u)) {
                return true;
            }
            let Some(&(unit, position)) = self.member.get(v) else { return false };
            if unit != u {
                return false;
            }
            let maker = &self.items[group.items[position]];
            let maker_role = group.roles[position];
            let per_point = matches!(maker_role, Role::Full | Role::Scan);
            if maker_role == Role::Col || (role == Role::Outer && per_point) {
                return false;
            }
            let Some((_, result)) = group.coords(maker, maker_role, facts) else { return false };
            coords.iter().zip(&result).zip(&self.a.graph.tensor(*v).shape).all(|((c, r), extent)| {
                extent.is(1) || bounds.simplify(&c.substitute(&|s| names.get(s).cloned())) == *r
            })
        })
    }
}

/// Units in an order that respects their dependencies; ties go to the unit whose first node is
/// earliest, so that the order stays close to the graph's.
pub fn order(fusion: &Fusion, items: &[Item]) -> Vec<usize> {
    let key = |u: usize| match &fusion.units[u] {
        Unit::Node(n) => n.0,
        Unit::Group(g) => g.items.iter().map(|&i| items[i].node.0).min().unwrap_or(0),
    };
    let mut missing: Vec<usize> = fusion.deps.iter().map(BTreeSet::len).collect();
    let mut users: Vec<Vec<usize>> = vec![vec![]; fusion.units.len()];
    for (u, deps) in fusion.deps.iter().enumerate() {
        for &d in deps {
            users[d].push(u);
        }
    }
    let mut ready: BTreeSet<(u32, usize)> =
        (0..fusion.units.len()).filter(|&u| missing[u] == 0).map(|u| (key(u), u)).collect();
    let mut out = vec![];
    while let Some((_, u)) = ready.pop_first() {
        out.push(u);
        for &k in &users[u] {
            missing[k] -= 1;
            if missing[k] == 0 {
                ready.insert((key(k), k));
            }
        }
    }
    out
}

/// Whether a node runs by itself.
pub fn stands_alone(op: &Op) -> bool {
    matches!(op, Op::Extern(_) | Op::Matmul { .. } | Op::Scatter { .. })
}

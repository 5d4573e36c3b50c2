//! The order that breaks ties between equal nodes: nodes sorted by a hash of their names, each with a position.
//!
//! The seed selects a place on a circle of hashes, and the first of the equal nodes at or after this place wins. So
//! one order serves all seeds, and sets of nodes are bit sets over positions. Invariant: the order depends only on
//! the names, never on ids or arrival. A removed node keeps its position until the next sorting.

use crate::cluster::{Node, NodeId};
use crate::intern::{Interner, Symbol};
use crate::tie::{tie_place, tie_start};

/// Marks a node without a position.
const NOWHERE: u32 = u32::MAX;

/// Nodes in the order of their hashes.
#[derive(Clone, Debug, Default)]
pub(in crate::cluster) struct Order {
    /// The hash of the node at each position.
    places: Vec<u64>,
    /// The node at each position.
    nodes: Vec<NodeId>,
    /// An index of the circle, by the leading bits of a hash.
    sectors: Vec<Sector>,
    /// The position of each node.
    positions: Vec<u32>,
    /// The name of each node when it got its position.
    names: Vec<Symbol>,
    /// Whether a node has no position yet.
    stale: bool,
    version: u64,
}

/// Where to search for the nodes in one part of the circle.
#[derive(Clone, Copy, Debug)]
struct Sector {
    /// The first position in this part or after it.
    first: u32,
    /// The leading bits of the hash at that position.
    place: u32,
}

/// Returns the leading 32 bits of a hash.
fn leading(place: u64) -> u32 {
    (place >> 32) as u32
}

/// Returns the part of the circle that a hash is in; `sectors` is a power of two and at least two.
fn sector_of(place: u64, sectors: usize) -> usize {
    (place >> (64 - sectors.trailing_zeros())) as usize
}

impl Order {
    /// Records a new node. The node may still have the position of an earlier node with this id and name.
    pub(in crate::cluster) fn arrive(&mut self, node: NodeId, name: Symbol) {
        let known =
            self.names.get(node.index()) == Some(&name) && self.positions[node.index()] != NOWHERE;
        self.stale |= !known;
    }

    /// Sorts the nodes anew if one has no position.
    pub(super) fn settle(&mut self, nodes: &[Option<Node>], names: &Interner) {
        if !self.stale {
            return;
        }
        // Equal hashes are ordered by name, so that ids never decide.
        let mut sorted: Vec<_> = nodes
            .iter()
            .flatten()
            .map(|node| {
                let name = names.text(node.fixed.name);
                (tie_place(name), name, node.fixed.id)
            })
            .collect();
        sorted.sort_unstable();
        self.version += 1;
        self.stale = false;
        self.positions = vec![NOWHERE; nodes.len()];
        self.names = vec![Symbol::EMPTY; nodes.len()];
        for (position, (_, _, node)) in sorted.iter().enumerate() {
            self.positions[node.index()] = position as u32;
        }
        for node in nodes.iter().flatten() {
            self.names[node.fixed.id.index()] = node.fixed.name;
        }
        self.places = sorted.iter().map(|(place, _, _)| *place).collect();
        self.nodes = sorted.into_iter().map(|(_, _, node)| node).collect();
        // About as many sectors as nodes, so that a search starts next to its goal.
        let sectors = self.nodes.len().next_power_of_two().max(2);
        let places = &self.places;
        let first =
            |sector: usize| places.partition_point(|place| sector_of(*place, sectors) < sector);
        self.sectors = (0..sectors)
            .map(|sector| {
                let first = first(sector);
                Sector {
                    first: first as u32,
                    place: places.get(first).map_or(0, |place| leading(*place)),
                }
            })
            .collect();
    }

    /// Returns the number of sortings so far.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the number of positions.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn position(&self, node: NodeId) -> u32 {
        self.positions[node.index()]
    }

    pub(super) fn node(&self, position: u32) -> NodeId {
        self.nodes[position as usize]
    }

    /// Returns the position from which equal nodes are searched for this seed.
    pub(super) fn start(&self, seed: u64) -> u32 {
        let from = tie_start(seed);
        // On average a sector has one node, so the comparison of leading bits usually decides.
        let Some(near) = self.sectors.get(sector_of(from, self.sectors.len())) else {
            return 0;
        };
        // The leading bits are beyond the seed's place already, so the sector's first node is the answer.
        if near.place > leading(from) {
            return near.first;
        }
        let near = near.first as usize;
        let after = self.places[near..].iter().position(|place| *place >= from);
        after.map_or(0, |after| (near + after) as u32)
    }

    /// Returns the distance of a position from the start, around the circle; the nearest node wins.
    pub(super) fn distance(&self, start: u32, position: u32) -> u32 {
        if position >= start {
            position - start
        } else {
            position + self.len() as u32 - start
        }
    }
}

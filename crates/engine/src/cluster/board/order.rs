//! The order that breaks ties: nodes sorted by a hash of their names, each with a position in it.
//!
//! Equals are told apart by who comes first at or after a place that the seed picks, around the circle; so any seed
//! can be served from one order, and sets of nodes are bit sets over positions. Invariant: the order depends on the
//! names alone, never on ids or arrival. A node that is gone leaves its position behind until the next sorting.

use crate::cluster::{Node, NodeId};
use crate::intern::{Interner, Symbol};
use crate::tie::{tie_place, tie_start};

/// No position.
const NOWHERE: u32 = u32::MAX;

/// See the module's words.
#[derive(Clone, Debug, Default)]
pub(in crate::cluster) struct Order {
    /// By position.
    places: Vec<u64>,
    /// By position.
    nodes: Vec<NodeId>,
    /// By the leading bits of a place.
    sectors: Vec<Sector>,
    /// By node.
    positions: Vec<u32>,
    /// By node: the name it has its position by.
    names: Vec<Symbol>,
    /// A node has no position yet.
    stale: bool,
    version: u64,
}

/// Where to look for the nodes of one part of the circle.
#[derive(Clone, Copy, Debug)]
struct Sector {
    /// The first position in it or after it.
    first: u32,
    /// The leading bits of that position's place.
    place: u32,
}

/// The leading bits of a place.
fn leading(place: u64) -> u32 {
    (place >> 32) as u32
}

/// Which of this many equal parts of the circle, a power of two from two on, a place is in.
fn sector_of(place: u64, sectors: usize) -> usize {
    (place >> (64 - sectors.trailing_zeros())) as usize
}

impl Order {
    /// A node is there. It may have its position from before.
    pub(in crate::cluster) fn arrive(&mut self, node: NodeId, name: Symbol) {
        let known =
            self.names.get(node.index()) == Some(&name) && self.positions[node.index()] != NOWHERE;
        self.stale |= !known;
    }

    /// Sorts if a node arrived that has no position.
    pub(super) fn settle(&mut self, nodes: &[Option<Node>], names: &Interner) {
        if !self.stale {
            return;
        }
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

    /// Grows with every sorting.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// How many positions there are.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn position(&self, node: NodeId) -> u32 {
        self.positions[node.index()]
    }

    pub(super) fn node(&self, position: u32) -> NodeId {
        self.nodes[position as usize]
    }

    /// The position from which equals are looked for.
    pub(super) fn start(&self, seed: u64) -> u32 {
        let from = tie_start(seed);
        // About one node is in a sector: mostly it is the one, and its leading bits say so.
        let Some(near) = self.sectors.get(sector_of(from, self.sectors.len())) else {
            return 0;
        };
        if near.place > leading(from) {
            return near.first;
        }
        let near = near.first as usize;
        let after = self.places[near..].iter().position(|place| *place >= from);
        after.map_or(0, |after| (near + after) as u32)
    }

    /// How far a position is from the start, around the circle: the nearest wins.
    pub(super) fn distance(&self, start: u32, position: u32) -> u32 {
        if position >= start {
            position - start
        } else {
            position + self.len() as u32 - start
        }
    }
}

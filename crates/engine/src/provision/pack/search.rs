//! Finds the best filling of one machine with whole pods by branch and bound.

/// Scratch space of a search, used again for the next one.
#[derive(Default)]
pub(super) struct Search {
    /// The places of the steps that the machine has room for: first those for the empty machine, then those for the
    /// machine with each of the pods that were taken.
    open: Vec<u32>,
    /// The pods on the machine, by the places of their steps.
    taken: Vec<u32>,
    /// The best filling: places of steps, each as often as it has pods.
    pub(super) found: Vec<u32>,
    /// What the best filling is worth.
    pub(super) best: f64,
    nodes: usize,
    most_nodes: usize,
}

/// An item that a machine may hold, where `ROWS` resources count. Nearly all the time of a search goes into reading
/// these in order, so they are kept small.
pub(super) struct Step<const ROWS: usize> {
    pub(super) request: [i64; ROWS],
    pub(super) value: f64,
    /// The value of the room that it takes on the machine.
    pub(super) size: f64,
    /// The value of a pod beyond that of its room.
    pub(super) excess: f64,
    /// The most that this step and those after it can be worth beyond their room.
    pub(super) beyond: f64,
    /// The most that pods of this step and later ones make of their room, excess left out.
    pub(super) density: f64,
    /// The maximum number that fits or is wanted.
    pub(super) most: u32,
    /// The most that pods of this step and later ones are worth for a unit of each resource.
    pub(super) rates: [f64; ROWS],
}

/// A machine with some pods on it, of which the last is of the step at `place`.
#[derive(Clone, Copy)]
struct Node<const ROWS: usize> {
    place: usize,
    /// The number of pods of that step.
    there: u32,
    room: [i64; ROWS],
    /// What the free room is worth.
    left: f64,
    /// What the pods are worth.
    value: f64,
}

impl<const ROWS: usize> Step<ROWS> {
    /// Returns the most that a filling is worth that has the pods of a node, `count` of them of this step, and more of
    /// this step and later ones.
    fn most_from(&self, node: &Node<ROWS>, count: u32) -> f64 {
        let beyond = match count {
            0 => self.beyond,
            _ => self.beyond - self.excess * f64::from(count),
        };
        node.value + beyond + node.left * self.density
    }

    /// Returns whether no filling with more of this step and later ones can be worth more than `best`, because one
    /// resource alone does not allow it.
    fn is_full(&self, node: &Node<ROWS>, best: f64) -> bool {
        let missing = best - node.value;
        let mut rooms = node.room.iter().zip(self.rates);
        rooms.any(|(room, rate)| *room as f64 * rate <= missing)
    }

    /// Returns what is left of a room when a pod of this step takes its part.
    fn rest(&self, room: &[i64; ROWS]) -> [i64; ROWS] {
        std::array::from_fn(|row| room[row] - self.request[row])
    }

    /// Returns whether a room holds a pod of this step.
    fn fits(&self, room: &[i64; ROWS]) -> bool {
        // The sign of the differences together, which takes no branch for each resource.
        let rest = (0..ROWS).fold(0, |rest, row| rest | (room[row] - self.request[row]));
        rest >= 0
    }
}

impl Search {
    /// Searches all fillings of a room worth `left`. Counts only those worth more than `enough`, and looks at
    /// `most_nodes` of them at most. Steps must be sorted by `density`. Returns `false` if there are too many.
    pub(super) fn all<const ROWS: usize>(
        &mut self,
        steps: &[Step<ROWS>],
        (room, left): ([i64; ROWS], f64),
        enough: f64,
        most_nodes: usize,
    ) -> bool {
        debug_assert!(steps.is_sorted_by(|one, next| one.density >= next.density));
        self.taken.clear();
        self.found.clear();
        self.best = enough;
        self.nodes = 0;
        self.most_nodes = most_nodes;
        self.open.clear();
        self.open.extend(0..steps.len() as u32);
        let node = Node {
            place: 0,
            there: 0,
            room,
            left,
            value: 0.0,
        };
        self.look(steps, 0, node)
    }

    /// Searches all fillings that have the pods of a node and more of its step or later ones, among those in `open`
    /// from `first` on. Returns `false` if there are too many.
    fn look<const ROWS: usize>(
        &mut self,
        steps: &[Step<ROWS>],
        first: usize,
        node: Node<ROWS>,
    ) -> bool {
        self.nodes += 1;
        if node.value > self.best * (1.0 + 1e-12) {
            self.best = node.value;
            self.found.clone_from(&self.taken);
        }
        if self.nodes > self.most_nodes {
            return self.is_done(steps, &node, node.place, node.there);
        }
        if steps
            .get(node.place)
            .is_some_and(|step| step.is_full(&node, self.best))
        {
            return true;
        }
        let own = self.open.len();
        let end = self.open_for(steps, first, &node);
        let mut is_complete = true;
        for at in own..end {
            let place = self.open[at] as usize;
            let step = &steps[place];
            let count = if place == node.place { node.there } else { 0 };
            // Asked again, because the best may have become better since.
            if step.most_from(&node, count) <= self.best {
                break;
            }
            let next = Node {
                place,
                there: count + 1,
                room: step.rest(&node.room),
                left: (node.left - step.size).max(0.0),
                value: node.value + step.value,
            };
            self.taken.push(place as u32);
            is_complete = self.look(steps, at, next);
            self.taken.pop();
            if is_complete && self.nodes > self.most_nodes {
                is_complete = self.is_done(steps, &node, place + 1, 0);
                break;
            }
            if !is_complete {
                break;
            }
        }
        self.open.truncate(own);
        is_complete
    }

    /// Appends to `open` those of its places from `first` on that a node has room for. Returns the end of those that may
    /// make it better than the best.
    ///
    /// Nodes below it have less room, so they need not look at other places. They may well look at those behind the end,
    /// because their pods are worth more.
    fn open_for<const ROWS: usize>(
        &mut self,
        steps: &[Step<ROWS>],
        first: usize,
        node: &Node<ROWS>,
    ) -> usize {
        let own = self.open.len();
        self.open.resize(own + own - first, 0);
        let (parents, open) = self.open.split_at_mut(own);
        let parents = &parents[first..];
        let (mut end, mut looked) = (0, 0);
        for place in parents.iter().copied() {
            let step = &steps[place as usize];
            let count = if place as usize == node.place {
                node.there
            } else {
                0
            };
            // Steps are sorted by density, so if this one cannot beat the best any more, no later one can.
            if step.most_from(node, count) <= self.best {
                break;
            }
            looked += 1;
            // Whether a pod has room is hard to foresee for the processor, so the place is written in any case.
            open[end] = place;
            end += usize::from((count < step.most) & step.fits(&node.room));
        }
        let mut len = end;
        // Most nodes are full and have none below them.
        if end > 0 {
            for place in parents[looked..].iter().copied() {
                open[len] = place;
                len += usize::from(steps[place as usize].fits(&node.room));
            }
        }
        self.open.truncate(own + len);
        own + end
    }

    /// Returns whether no filling of a node with more of the step at `place` or later ones can beat the best. `count` is
    /// the number of pods of that step that it has.
    fn is_done<const ROWS: usize>(
        &self,
        steps: &[Step<ROWS>],
        node: &Node<ROWS>,
        place: usize,
        count: u32,
    ) -> bool {
        let step = steps.get(place);
        step.is_none_or(|step| step.most_from(node, count) <= self.best)
    }
}

//! The most that the pods on one machine can be worth: a bounded knapsack in several resources, by branch and bound.

use super::fill::{ALIKE, Filler};
use super::{DIMENSIONS, Load, Offer, within};

/// Ways to begin a filling that are looked at for one machine. Beyond that fractions of pods are allowed.
const MOST_NODES: usize = 2000;
/// Mixes of two resources' shares that are tried for the one that says most.
const SECTIONS: usize = 8;
const GOLDEN: f64 = 0.618_033_988_75;
/// Where they are too many to find all that are worth more than enough, a little more than that is enough.
const SLACK: [f64; 4] = [1.0, 1.001, 1.003, 1.01];

/// An item that a machine may hold.
struct Choice {
    item: usize,
    value: f64,
    /// The share of the machine's room that a pod takes, all resources together.
    size: f64,
    density: f64,
    request: Load,
    wanted: u32,
}

/// A search for the most valuable filling.
struct Search {
    /// By density, the highest first.
    choices: Vec<Choice>,
    /// Choices of the filling that is looked at, one for each pod.
    taken: Vec<usize>,
    best: f64,
    /// The best filling.
    found: Vec<usize>,
    nodes: usize,
}

impl Filler<'_> {
    /// Returns a value that no filling of the machine exceeds, and the best filling that was found, if one is worth more than `enough`; rules are not
    /// looked at. The value is as low as can be, but not below
    /// `enough`, where few enough fillings are worth more.
    pub(super) fn most(
        &mut self,
        offer: &Offer,
        demand: &[(usize, u32)],
        values: &[f64],
        enough: f64,
    ) -> (f64, Vec<(usize, u32)>) {
        let demand: Vec<(usize, u32)> = demand
            .iter()
            .filter(|(item, _)| values[*item] > 0.0 && offer.fits.contains(*item))
            .map(|(item, wanted)| (*item, self.alone(offer, *item).min(*wanted)))
            .collect();
        let mut weights: Vec<[f64; DIMENSIONS]> = vec![ALIKE, self.shortage];
        for dimension in 0..DIMENSIONS {
            if self.shortage[dimension] > 0.0 {
                let mut one = [0.0; DIMENSIONS];
                one[dimension] = 1.0;
                weights.push(one);
            }
        }
        let mut most = f64::INFINITY;
        let mut tightest = ALIKE;
        // By resource: what holds where it alone has to.
        let mut alone: Vec<(f64, usize)> = Vec::new();
        for weights in weights {
            let value = self.surrogate(offer, &demand, values, &weights);
            if value < most {
                (most, tightest) = (value, weights);
            }
            if most <= enough {
                return (most, Vec::new());
            }
            let mut only = (0..DIMENSIONS).filter(|dimension| weights[*dimension] > 0.0);
            if let (Some(dimension), None) = (only.next(), only.next()) {
                alone.push((value, dimension));
            }
        }
        alone.sort_by(|a, b| a.0.total_cmp(&b.0));
        if let [(_, one), (_, other), ..] = alone[..] {
            let mut mixed = |part: f64| {
                let mut weights = [0.0; DIMENSIONS];
                (weights[one], weights[other]) = (part, 1.0 - part);
                let value = self.surrogate(offer, &demand, values, &weights);
                if value < most {
                    (most, tightest) = (value, weights);
                }
                value
            };
            // The value falls, then rises: golden sections.
            let (mut low, mut high) = (0.0, 1.0);
            let (mut left, mut right) = (1.0 - GOLDEN, GOLDEN);
            let (mut at_left, mut at_right) = (mixed(left), mixed(right));
            for _ in 0..SECTIONS {
                if at_left < at_right {
                    (high, right, at_right) = (right, left, at_left);
                    left = high - GOLDEN * (high - low);
                    at_left = mixed(left);
                } else {
                    (low, left, at_left) = (left, right, at_right);
                    right = low + GOLDEN * (high - low);
                    at_right = mixed(right);
                }
            }
            if most <= enough {
                return (most, Vec::new());
            }
        }
        let mut share = [0.0; DIMENSIONS];
        let mut room = 0.0;
        for dimension in 0..DIMENSIONS {
            if offer.room[dimension] > 0 {
                share[dimension] = tightest[dimension] / offer.room[dimension] as f64;
                room += tightest[dimension];
            }
        }
        let choice = |(item, wanted): &(usize, u32)| {
            let request = self.problem.items[*item].request;
            let shares = request.iter().zip(&share);
            let size: f64 = shares.map(|(request, share)| *request as f64 * share).sum();
            let (size, value) = (size.max(1e-12), values[*item]);
            Choice {
                item: *item,
                value,
                size,
                density: value / size,
                request,
                wanted: *wanted,
            }
        };
        let mut choices: Vec<Choice> = demand.iter().map(choice).collect();
        choices.sort_by(|a, b| b.density.total_cmp(&a.density));
        let mut search = Search {
            choices,
            taken: Vec::new(),
            best: 0.0,
            found: Vec::new(),
            nodes: 0,
        };
        for slack in SLACK {
            search.best = enough * slack;
            search.nodes = 0;
            if search.best >= most {
                break;
            }
            if search.look(0, 0, &offer.room, room, 0.0) {
                return (search.best.min(most), search.pods());
            }
        }
        (most, search.pods())
    }
}

impl Search {
    /// The best filling that was found: item and number.
    fn pods(&self) -> Vec<(usize, u32)> {
        let mut pods: Vec<(usize, u32)> = Vec::new();
        for place in &self.found {
            let item = self.choices[*place].item;
            match pods.last_mut() {
                Some(last) if last.0 == item => last.1 += 1,
                _ => pods.push((item, 1)),
            }
        }
        pods
    }

    /// Looks at all fillings that have more of the choices from one of them on, of which so many are there. False where they are too many.
    fn look(&mut self, from: usize, there: u32, room: &Load, left: f64, value: f64) -> bool {
        self.nodes += 1;
        if value > self.best {
            self.best = value;
            self.found.clone_from(&self.taken);
        }
        for place in from..self.choices.len() {
            if value + self.at_most(place, room, left) <= self.best {
                break;
            }
            if self.nodes > MOST_NODES {
                return false;
            }
            let there = if place == from { there } else { 0 };
            let choice = &self.choices[place];
            if there == choice.wanted || !within(&choice.request, room) {
                continue;
            }
            let mut rest = *room;
            super::add(&mut rest, &choice.request, -1);
            let (left, value) = (left - choice.size, value + choice.value);
            self.taken.push(place);
            let all = self.look(place, there + 1, &rest, left, value);
            self.taken.pop();
            if !all {
                return false;
            }
        }
        true
    }

    /// What choices from one of them on add at most: those that fit alone, in fractions.
    fn at_most(&self, from: usize, room: &Load, mut left: f64) -> f64 {
        let mut value = 0.0;
        for choice in &self.choices[from..] {
            if left <= 0.0 {
                break;
            }
            if choice.wanted == 0 || !within(&choice.request, room) {
                continue;
            }
            let fit = choice.request.iter().zip(room).filter(|own| *own.0 > 0);
            let fit = fit.map(|(request, room)| room / request).min();
            let count = fit.map_or(choice.wanted, |fit| {
                u32::try_from(fit).unwrap_or(u32::MAX).min(choice.wanted)
            });
            let used = (choice.size * f64::from(count)).min(left);
            value += choice.density * used;
            left -= used;
        }
        value
    }
}
